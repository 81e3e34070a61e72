//! `changes.json`: predictions that quantization changed.

use serde::{Deserialize, Serialize};

use crate::document::{Document, Header};

/// Predictions that differ between the full-precision and the quantized model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// Predictions compared.
    pub compared: usize,
    /// Labels that changed.
    pub flipped: usize,
    /// Wrong before, right after.
    pub fixed: usize,
    /// Right before, wrong after.
    pub broken: usize,
    /// The largest changes, the largest first.
    pub examples: Vec<Change>,
}

impl Document for Changes {
    const HEADER: Option<Header> = Some(Header { format: "qbert-changes", version: 1 });
}

/// One example's predictions. Texts come from data files: they are untrusted, and escaped wherever they are shown.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// The text.
    pub text: String,
    /// The right answer, where it is known.
    pub gold: Option<String>,
    /// Full precision.
    pub before: Answer,
    /// Quantized.
    pub after: Answer,
}

/// A predicted label.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The label.
    pub label: String,
    /// Its probability, from 0 to 1.
    pub confidence: Option<f64>,
}

impl Changes {
    /// Compares the predictions of all examples and keeps the `most` largest changes: first changed labels, by the mean of
    /// both confidences, then the rest by how far their confidence moved. Equal changes keep their order.
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

/// How far the confidence moved; for a changed label, the mean of both confidences.
fn moved(change: &Change) -> f64 {
    let [before, after] =
        [&change.before, &change.after].map(|a| a.confidence.filter(|c| c.is_finite()).unwrap_or(0.0));
    if change.before.label == change.after.label { (before - after).abs() } else { (before + after) / 2.0 }
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
