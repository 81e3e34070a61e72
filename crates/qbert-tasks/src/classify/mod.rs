//! Classification of single texts and of pairs: one label each.
//!
//! `sst2` and `classify` label one text, `mnli` and `pair` two. They differ only in the second text, so they share
//! one module and have a [`Profile`] each.

mod decode;
mod encode;
mod read;
mod score;

pub use decode::{Choice, best, decode, softmax};
pub use encode::{ClassifyFeature, encode, encode_all};
pub(crate) use read::{LIST_SEPARATOR, RawExample, read, read_rows};
pub(crate) use score::score;
pub use score::{ClassificationReport, report};

use std::collections::BTreeSet;

use crate::batch::Targets;
use crate::kinds::{Examples, InputShape, LeftOut, Output, Profile, Recipe};
use crate::qa::QaOptions;
use crate::stats::{self, DataStatistics, ExampleLengths};
use crate::{Error, Labels, Result, Tokenizer};

/// The metric in tables.
pub(crate) const METRIC: &str = "accuracy";

/// Single texts.
pub(crate) const TEXTS: Profile = Profile {
    examples: "texts",
    sequence: "text",
    sequences: "texts",
    purpose: "classifying texts",
    hub_task: "text-classification",
    default_max_len: 128,
    input: InputShape::Text,
    output: Output::Sequence,
    has_columns: true,
    has_labels: true,
    recipe: Recipe { epochs: 3, quantization_epochs: 3, batch: 32, learning_rate: 8e-5 },
};

/// Pairs of texts.
pub(crate) const PAIRS: Profile = Profile {
    examples: "pairs",
    sequence: "pair",
    sequences: "pairs",
    purpose: "classifying pairs of texts",
    input: InputShape::Pair,
    recipe: Recipe { epochs: 3, quantization_epochs: 3, batch: 32, learning_rate: 1.5e-4 },
    ..TEXTS
};

/// One text, or a pair, with its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifyExample {
    /// The id column's value, or the line number.
    pub id: String,
    /// The (first) text.
    pub text: String,
    /// The second text of a pair.
    pub text2: Option<String>,
    /// The label's id.
    pub label: Option<usize>,
}

/// Examples of a classification or pair task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifyData {
    /// In the order of the files.
    pub examples: Vec<ClassifyExample>,
    /// `None` only for unlabelled data read without given labels.
    pub labels: Option<Labels>,
    /// The labels as they stand in the files.
    pub found: BTreeSet<String>,
    /// Rows left out because their annotators did not agree (MNLI's `-`).
    pub skipped: usize,
}

impl ClassifyData {
    pub(crate) fn first(&self, count: usize) -> Self {
        let examples = self.examples.iter().take(count).cloned().collect();
        Self { examples, labels: self.labels.clone(), found: self.found.clone(), skipped: self.skipped }
    }
}

impl Examples for ClassifyData {
    fn len(&self) -> usize {
        self.examples.len()
    }

    fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    fn found(&self) -> Option<(&BTreeSet<String>, usize)> {
        Some((&self.found, self.found.len()))
    }

    fn left_out(&self) -> Option<LeftOut> {
        LeftOut::some(self.skipped, "pairs whose annotators did not agree (`-`)")
    }

    fn count(&self, statistics: &mut DataStatistics) {
        statistics.skipped = self.skipped;
        let ids = self.examples.iter().filter_map(|example| example.label);
        statistics.labels = stats::label_counts(self.labels.as_ref(), ids);
        statistics.unlabelled = self.examples.iter().filter(|example| example.label.is_none()).count();
    }

    fn lengths(&self, tokenizer: &Tokenizer, options: &QaOptions) -> Result<Vec<ExampleLengths>> {
        lengths(&self.examples, tokenizer, options)
    }
}

/// The lengths of texts and pairs in tokens.
pub(crate) fn lengths(
    examples: &[ClassifyExample],
    tokenizer: &Tokenizer,
    options: &QaOptions,
) -> Result<Vec<ExampleLengths>> {
    let one = |example: &ClassifyExample| {
        let encoded = encode(tokenizer, &example.text, example.text2.as_deref(), options.max_len)?;
        let (length, removed) = (encoded.len(), encoded.removed);
        Ok(ExampleLengths { whole: length + removed, truncated: removed > 0, sequences: vec![length] })
    };
    examples.iter().map(one).collect()
}

/// The labels of these examples, for the loss.
pub(crate) fn targets(labels: &[Option<usize>], indices: &[usize]) -> Result<Targets> {
    let label = |&index: &usize| labels[index].map(|label| label as u32).ok_or(Error::Unlabelled { sequence: index });
    Ok(Targets::Sequences(indices.iter().map(label).collect::<Result<_>>()?))
}
