//! The predictions that quantization changed most. Texts come from data files: nothing in them is trusted.

use qbert_documents::{Answer, Change};

use crate::content::{Block, Cell, DataTable, Section, Tone};
use crate::data::Report;
use crate::text::{count, cut, fixed};

/// The table has at most this many rows.
const SHOWN: usize = 25;

fn answer(answer: &Answer) -> Cell {
    let confidence = answer.confidence.filter(|confidence| confidence.is_finite());
    let confidence = confidence.map(|confidence| format!(" {} %", fixed(confidence * 100.0, 0))).unwrap_or_default();
    Cell::Quote(format!("{}{confidence}", cut(&answer.label)))
}

fn verdict(change: &Change) -> Cell {
    let flipped = change.before.label != change.after.label;
    match &change.gold {
        _ if !flipped => Cell::from("same label"),
        Some(gold) if *gold == change.after.label => Cell::Marked(Tone::Good, "now right".to_owned()),
        Some(gold) if *gold == change.before.label => Cell::Marked(Tone::Bad, "now wrong".to_owned()),
        Some(_) => Cell::from("wrong both times"),
        None => Cell::from("label changed"),
    }
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let changes = report.changes.as_ref()?;
    if changes.compared == 0 && changes.examples.is_empty() {
        return None;
    }
    let share = 100.0 * changes.flipped as f64 / changes.compared.max(1) as f64;
    let text = format!(
        "Of {} predictions {} changed their label ({} %): {} from right to wrong, {} from wrong to right.",
        count(changes.compared),
        count(changes.flipped),
        fixed(share, 1),
        count(changes.broken),
        count(changes.fixed)
    );
    let mut blocks = vec![Block::Text(text)];
    if !changes.examples.is_empty() {
        let known = changes.examples.iter().any(|change| change.gold.is_some());
        let mut head = vec!["text", "full precision", "quantized", ""];
        if known {
            head.insert(1, "right answer");
        }
        let mut table = DataTable::new("The predictions that changed most, with the model's confidence", &head);
        if let Some(last) = table.head.last_mut() {
            last.name = "verdict".to_owned();
        }
        for change in changes.examples.iter().take(SHOWN) {
            let mut row =
                vec![Cell::Quote(cut(&change.text)), answer(&change.before), answer(&change.after), verdict(change)];
            if known {
                row.insert(1, Cell::Quote(cut(change.gold.as_deref().unwrap_or("–"))));
            }
            table.row(row);
        }
        table.cards = true;
        blocks.push(Block::Table(table));
        if changes.examples.len() > SHOWN {
            blocks.push(Block::Note(format!("{} more in report.json.", count(changes.examples.len() - SHOWN))));
        }
    }
    Some(Section { id: "changes", title: "Changed predictions", blocks })
}
