//! What the tasks' metrics share.
//!
//! Each task scores in its own module: accuracy as `scikit-learn` ([`crate::classify::report`]), entity F1 as
//! `conlleval` and `seqeval` in its default mode ([`crate::ner::report`]), exact match and F1 as the official SQuAD
//! v1.1 script ([`crate::qa::report`]). [`outcomes`] keeps the result of every example, to estimate the error of a
//! difference between two models.
//!
//! The tests compare with those programs on predictions with every kind of error:
//! `reference/metrics/make_goldens.py`.

pub mod outcomes;

use serde::{Deserialize, Serialize};

/// Precision, recall and F1 of one class, type or whole; 0 where a denominator is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Correct among the predicted.
    pub precision: f64,
    /// Correct among the true.
    pub recall: f64,
    /// Their harmonic mean.
    pub f1: f64,
    /// How many true ones there are.
    pub support: usize,
}

impl Scores {
    pub(crate) fn from_counts(correct: usize, predicted: usize, actual: usize) -> Self {
        let ratio = |whole: usize| if whole == 0 { 0.0 } else { correct as f64 / whole as f64 };
        let (precision, recall) = (ratio(predicted), ratio(actual));
        let sum = precision + recall;
        let f1 = if sum == 0.0 { 0.0 } else { 2.0 * precision * recall / sum };
        Self { precision, recall, f1, support: actual }
    }

    /// The unweighted mean over several.
    pub(crate) fn mean(all: &[Scores]) -> Self {
        Self::weighted(all, |_| 1.0)
    }

    /// The mean weighted by support.
    pub(crate) fn mean_by_support(all: &[Scores]) -> Self {
        Self::weighted(all, |scores| scores.support as f64)
    }

    fn weighted(all: &[Scores], weight: impl Fn(&Scores) -> f64) -> Self {
        let support = all.iter().map(|scores| scores.support).sum();
        let total: f64 = all.iter().map(&weight).sum();
        if total == 0.0 {
            return Self { support, ..Self::default() };
        }
        let mean = |part: fn(&Scores) -> f64| all.iter().map(|s| part(s) * weight(s)).sum::<f64>() / total;
        Self { precision: mean(|s| s.precision), recall: mean(|s| s.recall), f1: mean(|s| s.f1), support }
    }
}

/// Scores with the name of what they are of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NamedScores {
    /// The label or entity type.
    pub name: String,
    /// Its scores.
    #[serde(flatten)]
    pub scores: Scores,
}
