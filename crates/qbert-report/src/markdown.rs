//! The report as Markdown, with its figures as SVG files beside it.

use std::fmt::Write as _;

use crate::content::{Block, Cell, DataTable, Figure, Section};
use crate::text::{escape_markdown, visible};

fn safe(text: &str) -> String {
    escape_markdown(&visible(text))
}

/// Code between backticks, more of them than in any run inside it.
fn code(text: &str) -> String {
    let text = visible(text).replace('|', "\\|");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let pad = if longest > 0 { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// The text and the figures' names and contents.
pub(crate) fn page(title: &str, headline: Option<&str>, sections: &[Section]) -> (String, Vec<(String, String)>) {
    let mut out = format!("# {}\n", safe(title));
    if let Some(headline) = headline {
        let _ = write!(out, "\n{}\n", safe(headline));
    }
    let mut figures = Vec::new();
    for section in sections {
        let _ = write!(out, "\n## {}\n", safe(section.title));
        for block in &section.blocks {
            write_block(&mut out, &mut figures, block);
        }
    }
    (out, figures)
}

fn write_block(out: &mut String, figures: &mut Vec<(String, String)>, block: &Block) {
    out.push('\n');
    match block {
        Block::Text(text) | Block::Note(text) => {
            let _ = writeln!(out, "{}", safe(text));
        }
        Block::Warning(text) => {
            let _ = writeln!(out, "> **Warning:** {}", safe(text));
        }
        Block::Tiles(tiles) => {
            out.push_str("| | | |\n|---|---:|---|\n");
            for tile in tiles {
                let _ = writeln!(out, "| {} | **{}** | {} |", safe(&tile.label), safe(&tile.value), safe(&tile.detail));
            }
        }
        Block::Figure(figure) => write_figure(out, figures, figure),
        Block::Table(table) => write_table(out, table),
        Block::Commands(commands) => {
            let longest = commands.iter().flat_map(|c| c.split(|c| c != '`')).map(str::len).max().unwrap_or(0);
            let fence = "`".repeat(longest.max(2) + 1);
            let _ = writeln!(out, "{fence}sh");
            for command in commands {
                let _ = writeln!(out, "{}", visible(command));
            }
            let _ = writeln!(out, "{fence}");
        }
        Block::Missing(parts) => {
            for (what, how) in parts {
                let _ = writeln!(out, "- {}: {}", safe(what), code(how));
            }
        }
    }
}

fn write_figure(out: &mut String, figures: &mut Vec<(String, String)>, figure: &Figure) {
    for (index, panel) in figure.panels.iter().enumerate() {
        let number = if figure.panels.len() > 1 { format!("-{}", index + 1) } else { String::new() };
        let name = format!("report-figures/{}{number}.svg", figure.name);
        let _ = writeln!(out, "![{}]({name})", safe(&panel.description));
        figures.push((name, panel.wide.standalone(&panel.description)));
    }
    let _ = write!(out, "\n{}\n", safe(&figure.caption));
    if let Some(table) = &figure.table {
        out.push('\n');
        write_table(out, table);
    }
}

fn write_table(out: &mut String, table: &DataTable) {
    let names: Vec<String> = table.head.iter().map(|head| safe(&head.name)).collect();
    let rules: Vec<&str> = table.head.iter().map(|head| if head.numeric { "---:" } else { "---" }).collect();
    let _ = writeln!(out, "| {} |\n| {} |", names.join(" | "), rules.join(" | "));
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(cell).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) | Cell::Quote(text) => safe(text),
        Cell::Marked(_, text) => format!("**{}**", safe(text)),
        Cell::Code(text) if text.is_empty() => String::new(),
        Cell::Code(text) => code(text),
    }
}
