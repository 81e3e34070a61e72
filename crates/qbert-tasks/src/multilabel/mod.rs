//! Texts with any number of labels each, or none.
//!
//! A label counts where its probability is at least one half. In tables, labels stand in one cell, with `|` or, where
//! there is none, commas between them; in jsonl they are a list. An empty cell means no label.

mod score;

pub use score::MultiLabelReport;
pub(crate) use score::score;

use std::collections::BTreeSet;
use std::path::Path;

use crate::batch::Targets;
use crate::classify::{self, ClassifyExample, LIST_SEPARATOR};
use crate::files::unknown_label;
use crate::kinds::{Examples, Output, Profile};
use crate::qa::QaOptions;
use crate::stats::{self, DataStatistics, ExampleLengths};
use crate::{Error, Labels, ReadOptions, Result, Task, Tokenizer};

/// The metric in tables: over all labels of all texts together.
pub(crate) const METRIC: &str = "f1";

pub(crate) const PROFILE: Profile =
    Profile { purpose: "giving texts any number of labels", output: Output::LabelSet, ..classify::TEXTS };

/// Texts with their labels.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiLabelData {
    /// In the order of the files; the label in there is unused.
    pub examples: Vec<ClassifyExample>,
    /// The labels of each, ascending; `None` without a column of labels.
    pub sets: Vec<Option<Vec<usize>>>,
    /// `None` only for unlabelled data read without given labels.
    pub labels: Option<Labels>,
    /// The labels as they stand in the files.
    pub found: BTreeSet<String>,
}

/// The names in a cell.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    let between = [LIST_SEPARATOR, '|'].into_iter().find(|&between| cell.contains(between)).unwrap_or(',');
    cell.split(between).map(str::trim).filter(|name| !name.is_empty())
}

pub(crate) fn read(task: Task, paths: &[&Path], options: &ReadOptions) -> Result<MultiLabelData> {
    let raw = classify::read_rows(task, paths, options)?;
    let cells = raw.iter().filter_map(|(_, row)| row.label.as_deref());
    let found: BTreeSet<String> = cells.flat_map(names).map(str::to_owned).collect();
    let labels = match options.labels.for_data(task, &found, found.len())? {
        Some(labels) => Some(labels),
        None if found.is_empty() => None,
        None => Some(Labels::found_in(&found)?),
    };
    let (mut examples, mut sets) = (Vec::with_capacity(raw.len()), Vec::with_capacity(raw.len()));
    for (path, row) in raw {
        let set = match (&row.label, &labels) {
            (Some(cell), Some(labels)) => {
                let id = |name: &str| labels.id(name).ok_or_else(|| unknown_label(&path, row.line, name, labels));
                let mut set = names(cell).map(id).collect::<Result<Vec<usize>>>()?;
                set.sort_unstable();
                set.dedup();
                Some(set)
            }
            _ if options.require_labels => return Err(Error::MissingLabel { path, line: row.line }),
            _ => None,
        };
        examples.push(row.example);
        sets.push(set);
    }
    Ok(MultiLabelData { examples, sets, labels, found })
}

impl MultiLabelData {
    pub(crate) fn first(&self, count: usize) -> Self {
        let examples = self.examples.iter().take(count).cloned().collect();
        let sets = self.sets.iter().take(count).cloned().collect();
        Self { examples, sets, labels: self.labels.clone(), found: self.found.clone() }
    }
}

impl Examples for MultiLabelData {
    fn len(&self) -> usize {
        self.examples.len()
    }

    fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    fn found(&self) -> Option<(&BTreeSet<String>, usize)> {
        Some((&self.found, self.found.len()))
    }

    fn count(&self, statistics: &mut DataStatistics) {
        let ids = self.sets.iter().flatten().flatten().copied();
        statistics.labels = stats::label_counts(self.labels.as_ref(), ids);
        statistics.unlabelled = self.sets.iter().filter(|set| set.is_none()).count();
    }

    fn lengths(&self, tokenizer: &Tokenizer, options: &QaOptions) -> Result<Vec<ExampleLengths>> {
        classify::lengths(&self.examples, tokenizer, options)
    }
}

/// The labels of these examples, for the loss.
pub(crate) fn targets(sets: &[Option<Vec<usize>>], indices: &[usize]) -> Result<Targets> {
    let set = |&index: &usize| match &sets[index] {
        Some(set) => Ok(set.iter().map(|&label| label as u32).collect()),
        None => Err(Error::Unlabelled { sequence: index }),
    };
    Ok(Targets::LabelSets(indices.iter().map(set).collect::<Result<_>>()?))
}

/// The labels that a row of scores gives, with the probability of each output.
pub fn decode(scores: &[f32]) -> (Vec<usize>, Vec<f64>) {
    let probability = |&score: &f32| {
        let score = if score.is_nan() { f64::NEG_INFINITY } else { f64::from(score) };
        1.0 / (1.0 + libm::exp(-score))
    };
    let probabilities: Vec<f64> = scores.iter().map(probability).collect();
    let set = (0..scores.len()).filter(|&label| probabilities[label] >= 0.5).collect();
    (set, probabilities)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_a_list_of_names() {
        let list = |cell: &str| names(cell).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(list("a, b"), ["a", "b"]);
        assert_eq!(list("warm, friendly|loud"), ["warm, friendly", "loud"]);
        assert_eq!(list(&format!("a|b{LIST_SEPARATOR}c")), ["a|b", "c"]);
        assert!(list("").is_empty());
    }

    #[test]
    fn a_label_counts_from_one_half() {
        let (set, probabilities) = decode(&[0.0, -0.1, 3.0, f32::NAN]);
        assert_eq!(set, [0, 2]);
        assert_eq!((probabilities[0], probabilities[3]), (0.5, 0.0));
    }
}
