//! The predictions that quantization changed most. Texts come from data files: nothing in them is trusted.

use crate::content::{Block, Cell, Section, Table, Tone};
use crate::data::{Answer, Change, Changes, Report};
use crate::text::{count, cut, fixed};

/// The table has at most this many rows.
const SHOWN: usize = 25;

impl Changes {
    /// Compares predictions of all examples and keeps the `most` that changed most: first labels that changed, by the
    /// confidence given up and gained, then the rest by how far their confidence moved. Equal changes keep their order.
    pub fn between(all: impl IntoIterator<Item = Change>, most: usize) -> Self {
        let mut changes = Self::default();
        for change in all {
            changes.compared += 1;
            let flipped = change.before.label != change.after.label;
            changes.flipped += usize::from(flipped);
            if let (true, Some(gold)) = (flipped, &change.gold) {
                changes.fixed += usize::from(*gold == change.after.label);
                changes.broken += usize::from(*gold == change.before.label);
            }
            if flipped || moved(&change) > 0.0 {
                changes.examples.push(change);
            }
        }
        changes.examples.sort_by(|one, other| {
            let flipped = |change: &Change| change.before.label != change.after.label;
            flipped(other).cmp(&flipped(one)).then(moved(other).total_cmp(&moved(one)))
        });
        changes.examples.truncate(most);
        changes
    }
}

/// How far the confidence moved: between labels, what was given up and gained on the average.
fn moved(change: &Change) -> f64 {
    let [before, after] =
        [&change.before, &change.after].map(|a| a.confidence.filter(|c| c.is_finite()).unwrap_or(0.0));
    if change.before.label == change.after.label { (before - after).abs() } else { (before + after) / 2.0 }
}

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
        let mut table = Table::new("The predictions that changed most, with the model's confidence", &head);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn change(gold: &str, before: (&str, f64), after: (&str, f64)) -> Change {
        let answer =
            |(label, confidence): (&str, f64)| Answer { label: label.to_owned(), confidence: Some(confidence) };
        Change { text: String::new(), gold: Some(gold.to_owned()), before: answer(before), after: answer(after) }
    }

    #[test]
    fn flips_come_first_and_are_counted_by_what_they_did() {
        let all = [
            change("a", ("a", 0.9), ("a", 0.9)),
            change("a", ("a", 0.9), ("a", 0.2)),
            change("a", ("a", 0.6), ("b", 0.6)),
            change("b", ("a", 0.9), ("b", 0.9)),
            change("c", ("a", 0.5), ("b", 0.5)),
        ];
        let changes = Changes::between(all, 4);
        assert_eq!((changes.compared, changes.flipped, changes.fixed, changes.broken), (5, 3, 1, 1));
        let golds: Vec<&str> = changes.examples.iter().map(|change| change.gold.as_deref().unwrap()).collect();
        assert_eq!(golds, ["b", "a", "c", "a"], "the unchanged one is left out");
    }
}
