//! Writes a plan as text for people: comments, one line per layer, columns aligned.
//!
//! What most sites of a section have in common stands once at its head; a site that differs says so.

use super::{Plan, SitePlan, VERSION};
use crate::groups::GroupSpec;
use crate::range::RangeMethod;
use crate::site::{Embedding, Matrix};
use std::fmt::Write;

const HEADER: &str = "\
# Bit plan: how each part of the model is quantized. Made to be read and edited.
# bits    1 to 8 for each weight, 1.6 for ternary codes; 32 leaves it in f32
# groups  how many groups of output neurons have a range of their own: a number, \"head\" or \"neuron\"
# range   how a range is found: \"min-max\", \"mse\" or \"percentile:99.9\" (the central 99.9 percent)
# A site that needs more than bits is written { bits = 4, groups = \"neuron\", range = \"min-max\" }.
";

/// These stand in the header only where they matter, so that other plans have the text that they always had.
const ROWS: &str = "# groups = \"row\" in a table: every row has a range of its own.\n";
const PRODUCT: &str = "# \"8/6\" in a table: six values of a row share a code of a byte (product codes).\n";

/// What the head of a section says.
#[derive(Clone, Copy)]
struct Common {
    groups: GroupSpec,
    range: RangeMethod,
}

pub(super) fn to_toml(plan: &Plan, origin: &str) -> String {
    let mut text = HEADER.to_owned();
    if plan.sites().any(|(_, site)| site.product.is_some()) {
        text.push_str(PRODUCT);
    }
    if plan.sites().any(|(_, site)| site.groups == GroupSpec::PerRow) {
        text.push_str(ROWS);
    }
    for (index, line) in origin.lines().enumerate() {
        // TOML allows no control characters in comments, and a file's name may hold them.
        let line: String = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        let _ = writeln!(text, "{}# {line}", if index == 0 { "#\n" } else { "" });
    }
    let _ = write!(text, "version = {VERSION}\n\n");
    encoder(plan, &mut text);
    embedding(plan, &mut text);
    let activation = plan.activation();
    let _ = write!(
        text,
        "\n[activation]            # one range per tensor; bits = 32 leaves activations in f32\nbits = {}\nrange = \"{}\"\n",
        activation.bits, activation.range
    );
    text
}

fn encoder(plan: &Plan, text: &mut String) {
    let cells: Vec<&SitePlan> =
        plan.layers().iter().flat_map(|layer| Matrix::ALL.map(|matrix| layer.get(matrix))).collect();
    let common = common(&cells);
    text.push_str("[encoder]               # layers are numbered from 0\n");
    head(common, text);
    let cells: Vec<[String; 6]> = plan
        .layers()
        .iter()
        .map(|layer| Matrix::ALL.map(|matrix| format!("{} = {}", matrix.name(), value(layer.get(matrix), common))))
        .collect();
    let number_width = plan.layers().len().saturating_sub(1).to_string().len();
    for (layer, row) in cells.iter().enumerate() {
        let key = format!("layer.{layer}");
        let _ = write!(text, "{key:<width$} = {{ ", width = 6 + number_width);
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == row.len() {
                let _ = writeln!(text, "{cell} }}");
            } else {
                let width = cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
                // The comma belongs to the cell, the padding comes after it.
                let _ = write!(text, "{:<width$} ", format!("{cell},"), width = width + 1);
            }
        }
    }
}

fn embedding(plan: &Plan, text: &mut String) {
    let cells = Embedding::ALL.map(|table| plan.embedding().get(table));
    let common = common(&cells);
    text.push_str("\n[embedding]             # groups are over the hidden columns\n");
    head(common, text);
    for (table, cell) in Embedding::ALL.iter().zip(cells) {
        let _ = writeln!(text, "{} = {}", table.name(), value(cell, common));
    }
}

fn head(common: Common, text: &mut String) {
    let _ = writeln!(text, "groups = {}\nrange = \"{}\"", quoted(common.groups), common.range);
}

/// The most frequent of each; the first of equally frequent ones.
fn common(cells: &[&SitePlan]) -> Common {
    Common {
        groups: most_frequent(cells.iter().map(|cell| cell.groups)).unwrap_or(GroupSpec::Count(1)),
        range: most_frequent(cells.iter().map(|cell| cell.range)).unwrap_or(RangeMethod::Mse),
    }
}

fn most_frequent<T: PartialEq>(items: impl Iterator<Item = T>) -> Option<T> {
    let mut counts: Vec<(T, usize)> = Vec::new();
    for item in items {
        match counts.iter_mut().find(|(known, _)| *known == item) {
            Some((_, count)) => *count += 1,
            None => counts.push((item, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max()?;
    counts.into_iter().find(|(_, count)| *count == most).map(|(item, _)| item)
}

fn value(cell: &SitePlan, common: Common) -> String {
    let width = match cell.product {
        None => cell.bits.to_string(),
        Some(_) => format!("\"{}\"", cell.width()),
    };
    if cell.groups == common.groups && cell.range == common.range {
        return width;
    }
    let mut text = format!("{{ bits = {width}");
    if cell.groups != common.groups {
        let _ = write!(text, ", groups = {}", quoted(cell.groups));
    }
    if cell.range != common.range {
        let _ = write!(text, ", range = \"{}\"", cell.range);
    }
    text + " }"
}

fn quoted(groups: GroupSpec) -> String {
    match groups {
        GroupSpec::Count(count) => count.to_string(),
        words => format!("\"{words}\""),
    }
}
