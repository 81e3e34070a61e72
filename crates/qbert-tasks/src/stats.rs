//! Statistics of a data set, before training: counts, label balance, lengths, what a maximum length costs.
//!
//! Everything is counted over the whole set, without sampling.

use serde::{Deserialize, Serialize};

use crate::ner::TagScheme;
use crate::qa::QaOptions;
use crate::{Dataset, Labels, Result, Tokenizer};

/// A data set in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataStatistics {
    /// Texts, pairs, sentences or questions.
    pub examples: usize,
    /// Left out by the reader (MNLI's `-`, SQuAD 2.0's impossible questions).
    pub skipped: usize,
    /// How often each label occurs, counted in examples for classification and in words for NER; empty for QA.
    pub labels: Vec<LabelCount>,
    /// Examples, or words in NER, without label; questions without answer.
    pub unlabelled: usize,
    /// Words, in NER.
    pub words: Option<usize>,
    /// How the tags are written in the file, in NER.
    pub scheme: Option<TagScheme>,
    /// Distinct contexts, in QA.
    pub contexts: Option<usize>,
    /// Lengths, if a tokenizer was given.
    pub tokens: Option<TokenStatistics>,
}

/// How often a label occurs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelCount {
    /// The label's name.
    pub label: String,
    /// How often.
    pub count: usize,
}

/// Lengths in tokens, special ones included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenStatistics {
    /// Of whole examples, before truncation; in QA of question and whole context.
    pub lengths: Quantiles,
    /// All tokens of all sequences that would go into a model.
    pub total: usize,
    /// The maximum length the following counts are for.
    pub max_len: usize,
    /// Examples that lose text at `max_len`: in QA a part of the question, in NER a part of a word.
    pub truncated: usize,
    /// `truncated` as a share of the examples.
    pub truncated_share: f64,
    /// Sequences that would go into a model, more than examples if long ones are split into windows.
    pub windows: usize,
}

/// Quantiles of a list of lengths: the smallest value that at least this share of the list does not exceed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The smallest.
    pub min: usize,
    /// The median.
    pub p50: usize,
    /// 90 % are at most this long.
    pub p90: usize,
    /// 95 % are at most this long.
    pub p95: usize,
    /// 99 % are at most this long.
    pub p99: usize,
    /// The largest.
    pub max: usize,
    /// The mean.
    pub mean: f64,
}

impl Quantiles {
    /// Quantiles of a list; all 0 if it is empty.
    pub fn of(mut values: Vec<usize>) -> Self {
        values.sort_unstable();
        let Some((&min, &max)) = values.first().zip(values.last()) else { return Self::default() };
        // Rank ⌈n·percent/100⌉ in whole numbers, so that no rounding decides.
        let at = |percent: usize| values[(values.len() * percent).div_ceil(100).max(1) - 1];
        let mean = values.iter().sum::<usize>() as f64 / values.len() as f64;
        Self { min, p50: at(50), p90: at(90), p95: at(95), p99: at(99), max, mean }
    }
}

/// Describes a data set, and with a tokenizer its lengths for sequences of at most `qa.max_len` tokens.
///
/// `qa.max_len` is the maximum length of every kind of task; the other fields matter to question answering only.
///
/// # Errors
/// [`crate::Error::MaxLen`] when the maximum length is too small for the kind of task.
pub fn statistics(dataset: &Dataset, tokenizer: Option<&Tokenizer>, qa: &QaOptions) -> Result<DataStatistics> {
    let mut statistics = counts(dataset);
    if let Some(tokenizer) = tokenizer {
        statistics.tokens = Some(token_statistics(dataset, tokenizer, qa)?);
    }
    Ok(statistics)
}

fn counts(dataset: &Dataset) -> DataStatistics {
    let mut statistics = DataStatistics {
        examples: dataset.len(),
        skipped: 0,
        labels: Vec::new(),
        unlabelled: 0,
        words: None,
        scheme: None,
        contexts: None,
        tokens: None,
    };
    dataset.examples().count(&mut statistics);
    statistics
}

/// How often each label occurs among these ids; empty without labels.
pub(crate) fn label_counts(labels: Option<&Labels>, ids: impl Iterator<Item = usize>) -> Vec<LabelCount> {
    let Some(labels) = labels else { return Vec::new() };
    let mut counts: Vec<LabelCount> =
        labels.names().iter().map(|label| LabelCount { label: label.clone(), count: 0 }).collect();
    for id in ids {
        if let Some(label) = counts.get_mut(id) {
            label.count += 1;
        }
    }
    counts
}

/// The lengths of one example, in tokens.
pub(crate) struct ExampleLengths {
    /// Before any truncation.
    pub(crate) whole: usize,
    /// Whether it loses text.
    pub(crate) truncated: bool,
    /// Of each of its sequences.
    pub(crate) sequences: Vec<usize>,
}

fn token_statistics(dataset: &Dataset, tokenizer: &Tokenizer, options: &QaOptions) -> Result<TokenStatistics> {
    let lengths = dataset.examples().lengths(tokenizer, options)?;
    let sequences = || lengths.iter().flat_map(|length| &length.sequences);
    let truncated = lengths.iter().filter(|length| length.truncated).count();
    Ok(TokenStatistics {
        total: sequences().sum(),
        windows: sequences().count(),
        max_len: options.max_len,
        truncated,
        truncated_share: if lengths.is_empty() { 0.0 } else { truncated as f64 / lengths.len() as f64 },
        lengths: Quantiles::of(lengths.iter().map(|length| length.whole).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_list() {
        let quantiles = Quantiles::of((1..=100).rev().collect());
        assert_eq!((quantiles.min, quantiles.p50, quantiles.p90, quantiles.p99, quantiles.max), (1, 50, 90, 99, 100));
        assert_eq!(quantiles.mean, 50.5);
        assert_eq!(Quantiles::of(vec![7]).p50, 7);
        assert_eq!(Quantiles::of(Vec::new()), Quantiles::default());
    }
}
