//! The report as one self-contained HTML page with style and script inside.
//!
//! A content security policy allows this one script by its hash and nothing else: even text that slipped through unescaped
//! could not run.

use std::fmt::Write as _;

use crate::content::{Block, Cell, DataTable, Figure, Panel, Section, Tone};
use crate::plot::palette;
use crate::plot::surface::{self, Surface};
use crate::text::safe;

const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");

/// SHA-256 of the script in base64; a test prints the new value when the script changes.
const SCRIPT_HASH: &str = "MWypI+Rs31ALt7gOwmpKmw/SKyZSL7YTF1cGgrTBbrw=";

/// The page.
pub(crate) fn page(title: &str, headline: Option<&str>, sections: &[Section]) -> String {
    let mut out = String::with_capacity(1 << 18);
    let (title, variables, marks) = (safe(title), palette::page_variables(), palette::page_marks());
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'sha256-{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{variables}{STYLE}{marks}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip to the report</a>\n\
         <header>\n<div class=\"bar\"><span class=\"eyebrow\">qbert report</span>\
         <button type=\"button\" id=\"theme\" hidden>Theme: system</button></div>\n<h1><bdi>{title}</bdi></h1>\n"
    );
    if let Some(headline) = headline {
        let _ = writeln!(out, "<p class=\"lead\">{}</p>", safe(headline));
    }
    write_contents(&mut out, sections);
    out.push_str("</header>\n<main id=\"main\">\n");
    for section in sections {
        write_section(&mut out, section);
    }
    let _ = write!(out, "</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn write_contents(out: &mut String, sections: &[Section]) {
    if sections.len() < 3 {
        return;
    }
    out.push_str("<nav aria-label=\"Contents\"><ul>");
    for section in sections {
        let _ = write!(out, "<li><a href=\"#{}\">{}</a></li>", section.id, safe(section.title));
    }
    out.push_str("</ul></nav>\n");
}

fn write_section(out: &mut String, section: &Section) {
    let _ = writeln!(
        out,
        "<section id=\"{0}\" aria-labelledby=\"{0}-title\">\n<h2 id=\"{0}-title\">{1}</h2>",
        section.id,
        safe(section.title)
    );
    for block in &section.blocks {
        write_block(out, block);
    }
    out.push_str("</section>\n");
}

fn write_block(out: &mut String, block: &Block) {
    match block {
        Block::Text(text) => {
            let _ = writeln!(out, "<p>{}</p>", safe(text));
        }
        Block::Note(text) => {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", safe(text));
        }
        Block::Warning(text) => {
            let _ = writeln!(out, "<p class=\"warning\"><strong>Warning.</strong> {}</p>", safe(text));
        }
        Block::Tiles(tiles) => {
            out.push_str("<dl class=\"tiles\">\n");
            for tile in tiles {
                let tone = tone(tile.tone);
                let _ = writeln!(
                    out,
                    "<div><dt>{}</dt><dd class=\"figure{tone}\">{}</dd><dd class=\"detail\">{}</dd></div>",
                    safe(&tile.label),
                    safe(&tile.value),
                    safe(&tile.detail)
                );
            }
            out.push_str("</dl>\n");
        }
        Block::Figure(figure) => write_figure(out, figure),
        Block::Table(table) => write_table(out, table),
        Block::Commands(commands) => {
            out.push_str("<pre tabindex=\"0\" aria-label=\"Commands\"><code>");
            for command in commands {
                let _ = writeln!(out, "{}", safe(command));
            }
            out.push_str("</code></pre>\n");
        }
        Block::Missing(parts) => {
            out.push_str("<ul class=\"missing\">\n");
            for (what, how) in parts {
                let _ = writeln!(out, "<li>{}: <code>{}</code></li>", safe(what), safe(how));
            }
            out.push_str("</ul>\n");
        }
    }
}

fn tone(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => " good",
        Tone::Bad => " bad",
    }
}

fn write_figure(out: &mut String, figure: &Figure) {
    let several = if figure.panels.len() > 1 { " several" } else { "" };
    let _ = writeln!(out, "<figure id=\"figure-{}\">\n<div class=\"panels{several}\">", figure.name);
    for panel in &figure.panels {
        write_panel(out, panel);
    }
    let _ = writeln!(out, "</div>\n<figcaption>{}</figcaption>", safe(&figure.caption));
    if let Some(table) = &figure.table {
        out.push_str("<details><summary>Numbers</summary>\n");
        write_table(out, table);
        out.push_str("</details>\n");
    }
    out.push_str("</figure>\n");
}

fn write_panel(out: &mut String, panel: &Panel) {
    out.push_str("<div class=\"panel\">\n");
    if !panel.title.is_empty() {
        let _ = writeln!(out, "<h3>{}</h3>", safe(&panel.title));
    }
    if let Some(surface) = &panel.surface {
        write_turnable(out, panel, surface);
    }
    let wide = panel.wide.inline(&panel.description);
    match &panel.narrow {
        Some(narrow) => {
            let narrow = narrow.inline(&panel.description);
            let _ = writeln!(out, "<div class=\"wide\">{wide}</div>\n<div class=\"narrow\">{narrow}</div>");
        }
        None => {
            let class = if panel.surface.is_some() { "still" } else { "both" };
            let _ = writeln!(out, "<div class=\"{class}\">{wide}</div>");
        }
    }
    out.push_str("</div>\n");
}

/// The data with which the script draws the surface; hidden without script and in print.
fn write_turnable(out: &mut String, panel: &Panel, surface: &Surface) {
    let grid = surface::thinned(&surface.heights, surface::TURNABLE);
    let numbers = |row: &Vec<f64>| {
        let cells: Vec<String> = row.iter().map(|value| plain(*value)).collect();
        format!("[{}]", cells.join(","))
    };
    let rows: Vec<String> = grid.iter().map(numbers).collect();
    let pair = |(low, high): (f64, f64)| format!("[{},{}]", plain(low), plain(high));
    let (turn, tilt) = surface::VIEW;
    let _ = writeln!(
        out,
        "<div class=\"turnable\" data-heights=\"[{}]\" data-own=\"{}\" data-shared=\"{}\" data-middle=\"{}\" data-turn=\"{turn}\" \
         data-tilt=\"{tilt}\" data-rows=\"{}\" data-columns=\"{}\">\n\
         <canvas width=\"{}\" height=\"{}\" tabindex=\"0\" role=\"img\" aria-label=\"{}. Drag it, or use the arrow keys, to turn \
         it.\"></canvas>\n\
         <div class=\"controls\"><label>turn <input type=\"range\" min=\"-180\" max=\"180\" value=\"{turn}\" data-what=\"turn\">\
         </label><label>tilt <input type=\"range\" min=\"0\" max=\"90\" value=\"{tilt}\" data-what=\"tilt\"></label>\
         <label><input type=\"checkbox\" checked data-what=\"shared\"> same height scale</label></div>\n</div>",
        rows.join(","),
        pair(surface.own),
        pair(surface.shared),
        plain(surface.middle),
        safe(&surface.names[0]),
        safe(&surface.names[1]),
        surface::SIDE,
        surface::HEIGHT,
        safe(&panel.description),
    );
}

/// A number for the script: five digits are more than a screen can show.
fn plain(value: f64) -> String {
    if !value.is_finite() {
        return "null".to_owned();
    }
    let rounded: f64 = format!("{value:.4e}").parse().unwrap_or(value);
    format!("{rounded}")
}

fn write_table(out: &mut String, table: &DataTable) {
    let caption = safe(&table.caption);
    let _ = write!(
        out,
        "<div class=\"scroll{}\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\n<table{}>\n<caption>{caption}</caption>\n",
        if table.cards { " cards" } else { "" },
        // Cards are no longer laid out as a table, so the role must be said.
        if table.cards { " role=\"table\"" } else { "" },
    );
    let headed = table.head.iter().any(|head| !head.name.is_empty());
    if headed {
        out.push_str("<thead><tr>");
        for head in &table.head {
            let class = if head.numeric { " class=\"number\"" } else { "" };
            let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", safe(&head.name));
        }
        out.push_str("</tr></thead>\n");
    }
    out.push_str("<tbody>\n");
    for row in &table.rows {
        out.push_str(if table.cards { "<tr role=\"row\">" } else { "<tr>" });
        for (column, cell) in row.iter().enumerate() {
            let numeric = table.head.get(column).is_some_and(|head| head.numeric);
            let label = table.head.get(column).filter(|_| table.cards).map(|head| head.name.as_str());
            write_cell(out, cell, Place { numeric, heads_row: column == 0 && !headed, label });
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// Where a cell stands.
struct Place<'a> {
    numeric: bool,
    heads_row: bool,
    /// Its column's name, to be repeated in cards.
    label: Option<&'a str>,
}

fn write_cell(out: &mut String, cell: &Cell, place: Place<'_>) {
    let Place { numeric, heads_row, label } = place;
    let (class, inner) = match cell {
        Cell::Text(text) => ("", safe(text)),
        Cell::Quote(text) => ("quote", format!("<bdi>{}</bdi>", safe(text))),
        Cell::Code(text) if text.is_empty() => ("", String::new()),
        Cell::Code(text) => ("", format!("<code>{}</code>", safe(text))),
        Cell::Marked(mark, text) => (tone(*mark).trim(), safe(text)),
    };
    let classes: Vec<&str> =
        [class, if numeric { "number" } else { "" }].into_iter().filter(|c| !c.is_empty()).collect();
    let class = if classes.is_empty() { String::new() } else { format!(" class=\"{}\"", classes.join(" ")) };
    let label = label.map(|label| format!(" role=\"cell\" data-label=\"{}\"", safe(label))).unwrap_or_default();
    let (open, close) = if heads_row { ("th scope=\"row\"", "th") } else { ("td", "td") };
    let _ = write!(out, "<{open}{class}{label}>{inner}</{close}>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
            for index in 0..4 {
                let letter = LETTERS[(word >> (18 - 6 * index)) as usize & 63];
                text.push(if index <= chunk.len() { letter as char } else { '=' });
            }
        }
        text
    }

    #[test]
    fn the_policy_allows_the_script_it_has() {
        assert_eq!(base64(b"any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
        let hash = base64(&Sha256::digest(SCRIPT.as_bytes()));
        assert_eq!(SCRIPT_HASH, hash, "the script changed: put its new hash into SCRIPT_HASH");
    }

    #[test]
    fn the_script_cannot_end_its_element() {
        assert!(!SCRIPT.to_lowercase().contains("</script") && !SCRIPT.contains("<!--"));
    }
}
