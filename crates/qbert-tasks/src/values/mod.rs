//! Texts and pairs of texts with a value each: regression, similarity, ranking.

mod score;

pub use score::ValueReport;
pub(crate) use score::{ranks, score};

use std::path::Path;

use crate::batch::Targets;
use crate::classify::{self, ClassifyExample};
use crate::kinds::{Examples, InputShape, Output, Profile};
use crate::qa::QaOptions;
use crate::stats::{DataStatistics, ExampleLengths};
use crate::{Error, ReadOptions, Result, Task, Tokenizer};

/// The metric in tables: the correlation with the true values.
pub(crate) const METRIC: &str = "pearson";

/// What `transformers` calls the output of such a head.
pub(crate) const OUTPUT_NAME: &str = "LABEL_0";

pub(crate) const TEXTS: Profile =
    Profile { purpose: "giving texts a value", output: Output::Value, has_labels: false, ..classify::TEXTS };

pub(crate) const PAIRS: Profile = Profile {
    purpose: "giving pairs of texts a value",
    input: InputShape::Pair,
    output: Output::Value,
    has_labels: false,
    ..classify::PAIRS
};

/// Texts with their values.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueData {
    /// In the order of the files; the label in there is unused.
    pub examples: Vec<ClassifyExample>,
    /// The value of each.
    pub values: Vec<Option<f64>>,
}

pub(crate) fn read(task: Task, paths: &[&Path], options: &ReadOptions) -> Result<ValueData> {
    let raw = classify::read_rows(task, paths, options)?;
    let (mut examples, mut values) = (Vec::with_capacity(raw.len()), Vec::with_capacity(raw.len()));
    for (path, row) in raw {
        let value = match &row.label {
            Some(cell) => {
                // Beyond f32 a value would become infinite in training.
                let value = cell.parse::<f64>().ok().filter(|value| (*value as f32).is_finite());
                Some(value.ok_or_else(|| Error::NotAValue {
                    path: path.clone(),
                    line: row.line,
                    cell: cell.clone(),
                })?)
            }
            None if options.require_labels => return Err(Error::MissingLabel { path, line: row.line }),
            None => None,
        };
        examples.push(row.example);
        values.push(value);
    }
    Ok(ValueData { examples, values })
}

impl ValueData {
    pub(crate) fn first(&self, count: usize) -> Self {
        Self {
            examples: self.examples.iter().take(count).cloned().collect(),
            values: self.values.iter().take(count).copied().collect(),
        }
    }
}

impl Examples for ValueData {
    fn len(&self) -> usize {
        self.examples.len()
    }

    fn count(&self, statistics: &mut DataStatistics) {
        statistics.unlabelled = self.values.iter().filter(|value| value.is_none()).count();
    }

    fn lengths(&self, tokenizer: &Tokenizer, options: &QaOptions) -> Result<Vec<ExampleLengths>> {
        classify::lengths(&self.examples, tokenizer, options)
    }
}

/// The values of these examples, for the loss.
pub(crate) fn targets(values: &[Option<f64>], indices: &[usize]) -> Result<Targets> {
    let value = |&index: &usize| values[index].map(|value| value as f32).ok_or(Error::Unlabelled { sequence: index });
    Ok(Targets::Values(indices.iter().map(value).collect::<Result<_>>()?))
}
