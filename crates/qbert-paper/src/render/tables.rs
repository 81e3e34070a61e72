//! The section of a task: the paper's tables with our columns next to the paper's, and the sizes.

use std::fmt::Write as _;

use super::collect::{Collected, Sample, Variant, name_of};
use super::figures::{self, Named};
use super::markdown::MarkdownTable;
use super::task_title;
use crate::paper::{PaperRow, Printed};
use crate::rows::{Ranges, method_name};
use qbert_pipeline::Result;

/// The section of a task, with its figure.
pub(super) fn section(collected: &Collected, figure: Option<&Named>) -> Result<String> {
    let mut text = format!("## {}\n\n", task_title(collected.task));
    text += &about(collected);
    if let Some(figure) = figure {
        let _ = write!(text, "{}\n\n{}\n\n", figure.image(figures::DIRECTORY), figure.drawing.caption);
    }
    let mut rest = Vec::new();
    for printed in Printed::ALL {
        if is_run(collected, printed)? {
            let _ = write!(text, "### Table {}: {}\n\n", printed.number(), printed.subject());
            let _ = writeln!(text, "{}", table(collected, printed)?);
        } else {
            rest.push(printed.number());
        }
    }
    if !rest.is_empty() {
        let _ = write!(text, "Tables of the paper that were not run on this task: {}.\n\n", rest.join(", "));
    }
    let _ = write!(text, "### Sizes\n\n{}\n", sizes(collected)?);
    Ok(text)
}

/// Whether any row was run that only this table has; all have rows of the main one.
fn is_run(collected: &Collected, printed: Printed) -> Result<bool> {
    let main = Printed::Main.rows()?;
    let own = printed.rows()?;
    let own = own.iter().filter(|row| printed == Printed::Main || main.iter().all(|other| other.method != row.method));
    let names: Vec<String> = own.map(|row| method_name(&row.method, None)).collect();
    Ok(collected.rows.iter().any(|row| names.iter().any(|name| name == name_of(row))))
}

fn about(collected: &Collected) -> String {
    let mut text = String::new();
    match &collected.budgets[..] {
        [] => text += "Nothing was trained.\n\n",
        [one] => {
            let _ = write!(text, "Trained rows: {one}.\n\n");
        }
        several => {
            text += "Trained rows, by their budget:\n\n";
            for (index, budget) in several.iter().enumerate() {
                let _ = writeln!(text, "- ({}) {budget}", letter(index));
            }
            text += "\nRows without a letter have budget (a).\n\n";
        }
    }
    if let Some(sensitivity) = &collected.sensitivity {
        let order: Vec<String> = sensitivity.ranking.iter().map(usize::to_string).collect();
        let _ = write!(
            text,
            "Layers from most to least sensitive by Ω, counted from 0: {} (`results/sensitivity-{}.json`).\n\n",
            order.join(", "),
            collected.task
        );
    }
    let trained = collected.rows.iter().find(|row| row.last.is_some());
    let _ = write!(
        text,
        "A typical command for a row:\n\n```text\n{}\n```\n\n",
        trained.unwrap_or(collected.any()).command
    );
    text
}

fn letter(index: usize) -> char {
    char::from(b'a' + u8::try_from(index.min(25)).unwrap_or(25))
}

/// Figures of all metrics, in the order of the tables.
fn joined(collected: &Collected, figure: impl Fn(&str) -> Option<f64>) -> String {
    let cells = collected.metrics().into_iter().map(|metric| figure(metric).map(|value| format!("{value:.2}")));
    match cells.clone().any(|cell| cell.is_some()) {
        true => cells.map(|cell| cell.unwrap_or_else(|| "–".to_owned())).collect::<Vec<_>>().join(" / "),
        false => "–".to_owned(),
    }
}

/// Mean and deviation of all metrics.
fn figures(collected: &Collected, sample: &Sample) -> String {
    let one = |metric: &str| {
        let deviation = sample.deviation(metric).map_or(String::new(), |deviation| format!(" ± {deviation:.2}"));
        sample.mean(metric).map_or("–".to_owned(), |mean| format!("{mean:.2}{deviation}"))
    };
    let mut text = collected.metrics().into_iter().map(one).collect::<Vec<_>>().join(" / ");
    if sample.len() > 1 {
        let _ = write!(text, " (n={})", sample.len());
    }
    let other: String = sample.budgets.iter().filter(|&&index| index > 0).map(|&index| letter(index)).collect();
    if !other.is_empty() {
        let _ = write!(text, " ({other})");
    }
    text
}

fn drop_of(collected: &Collected, sample: &Sample) -> String {
    joined(collected, |metric| Some(collected.full(metric) - sample.mean(metric)?))
}

/// A table's figures, the paper's next to ours.
fn table(collected: &Collected, printed: Printed) -> Result<MarkdownTable> {
    let rows = printed.rows()?;
    let names: Vec<String> = rows.iter().map(|row| method_name(&row.method, None)).collect();
    // Plain variants have their columns whether they were run or not, the others where a row of this table was.
    let runs = |variant: &Variant| names.iter().any(|name| collected.sample(name, *variant).is_some());
    let extra: Vec<Variant> = Variant::all().into_iter().filter(|own| !own.is_plain() && runs(own)).collect();
    let metrics = collected.metrics().join(" / ");
    let [first, second] = printed.columns();
    let mut header = ["method", first, second].map(str::to_owned).to_vec();
    header.extend([format!("paper: {metrics}"), "drop".to_owned()]);
    for ranges in Ranges::ALL {
        header.extend([Variant::untrained(ranges), Variant::trained(ranges)].map(Variant::text));
        header.push("drop".to_owned());
    }
    for variant in &extra {
        header.extend([variant.text(), "drop".to_owned()]);
    }
    let mut table = MarkdownTable::new(header);
    let baseline = rows.first();
    for (row, name) in rows.iter().zip(&names) {
        let mut cells = vec![row.label.to_owned()];
        cells.extend(row.widths.map(str::to_owned));
        cells.push(joined(collected, |metric| row.figure(collected.task, metric)));
        if row.method.is_full() {
            cells.push("–".to_owned());
            let own = joined(collected, |metric| Some(collected.full(metric)));
            let empty = 2 * extra.len();
            cells.extend([own.clone(), "–".to_owned(), "–".to_owned(), own, "–".to_owned(), "–".to_owned()]);
            cells.extend(std::iter::repeat_n("–".to_owned(), empty));
        } else {
            cells.push(joined(collected, |metric| paper_drop(collected, baseline, row, metric)));
            cells.extend(measured(collected, name, &extra));
        }
        table.row(cells);
    }
    Ok(table)
}

fn paper_drop(collected: &Collected, baseline: Option<&PaperRow>, row: &PaperRow, metric: &str) -> Option<f64> {
    Some(baseline?.figure(collected.task, metric)? - row.figure(collected.task, metric)?)
}

/// Our cells of a row.
fn measured(collected: &Collected, name: &str, extra: &[Variant]) -> Vec<String> {
    let cell = |sample: Option<&Sample>| sample.map_or("not run".to_owned(), |own| figures(collected, own));
    let drop = |sample: Option<&Sample>| sample.map_or("–".to_owned(), |own| drop_of(collected, own));
    let mut cells = Vec::new();
    for ranges in Ranges::ALL {
        let untrained = collected.sample(name, Variant::untrained(ranges));
        let trained = collected.sample(name, Variant::trained(ranges));
        cells.extend([cell(untrained.as_ref()), cell(trained.as_ref())]);
        cells.push(drop(trained.as_ref().or(untrained.as_ref())));
    }
    for &variant in extra {
        let own = collected.sample(name, variant);
        cells.extend([cell(own.as_ref()), drop(own.as_ref())]);
    }
    cells
}

/// Sizes of everything that was run, each method once, in the paper's order.
fn sizes(collected: &Collected) -> Result<MarkdownTable> {
    let mut known: Vec<PaperRow> = Vec::new();
    for printed in Printed::ALL {
        for row in printed.rows()? {
            if !known.iter().any(|other| other.method == row.method) {
                known.push(row);
            }
        }
    }
    let header = [
        "row",
        "paper: MB",
        "without embedding",
        "times",
        "here: MiB as the paper counts",
        "encoder",
        "times",
        "packed file, MB",
        "times",
    ];
    let mut table = MarkdownTable::new(header);
    let whole = known.first().and_then(|row| row.sizes(collected.task));
    let mut names: Vec<String> = known.iter().map(|row| method_name(&row.method, None)).collect();
    // Rows that no table of the paper has: other numbers of layers at the higher width.
    for row in &collected.rows {
        if !names.iter().any(|name| name == name_of(row)) {
            names.push(name_of(row).to_owned());
        }
    }
    for (index, name) in names.iter().enumerate() {
        let Some(result) = collected.sized(name) else { continue };
        let mut cells = vec![format!("`{name}`")];
        let printed = known.get(index).and_then(|row| row.sizes(collected.task));
        match printed.zip(whole) {
            Some(([all, encoder], [_, full])) => {
                cells.extend([format!("{all:.1}"), format!("{encoder:.1}"), format!("{:.1}", full / encoder)]);
            }
            None => cells.extend(["–", "–", "–"].map(str::to_owned)),
        }
        let own = &result.sizes;
        cells.extend([
            format!("{:.2}", own.paper_mib.total),
            format!("{:.2}", own.paper_mib.encoder),
            format!("{:.1}", own.compression.encoder),
            format!("{:.2}", own.file_bytes as f64 / 1e6),
            format!("{:.1}", own.compression.file),
        ]);
        table.row(cells);
    }
    Ok(table)
}
