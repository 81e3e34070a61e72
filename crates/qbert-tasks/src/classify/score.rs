//! Accuracy, per-class precision, recall and F1, the confusion matrix and Matthews' correlation, as `scikit-learn`
//! computes them (undefined values are 0).

use serde::{Deserialize, Serialize};

use super::{ClassifyData, METRIC};
use crate::kinds::{Details, Evaluation};
use crate::metrics::outcomes::{List, Outcomes, Right};
use crate::metrics::{NamedScores, Scores};
use crate::{Error, Labels, Result};

/// How well labels were predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassificationReport {
    /// The share of right labels.
    pub accuracy: f64,
    /// How many examples were scored.
    pub examples: usize,
    /// The unweighted mean of the classes' scores.
    pub macro_average: Scores,
    /// Matthews' correlation coefficient, for any number of classes.
    pub matthews: f64,
    /// One per label, in the order of the labels.
    pub per_class: Vec<NamedScores>,
    /// `confusion[gold][predicted]`.
    pub confusion: Vec<Vec<usize>>,
}

/// Scores the predicted labels of a data set.
pub(crate) fn score(data: &ClassifyData, predictions: &[(usize, f64)], labels: &Labels) -> Result<Evaluation> {
    let gold: Option<Vec<usize>> = data.examples.iter().map(|example| example.label).collect();
    let gold = gold.ok_or(Error::NothingToScore { what: "labels" })?;
    let found: Vec<usize> = predictions.iter().map(|(label, _)| *label).collect();
    let right = gold.iter().zip(&found).map(|(gold, found)| Right(gold == found)).collect();
    let report = report(&gold, &found, labels)?;
    Ok(Evaluation {
        metric: METRIC,
        value: 100.0 * report.accuracy,
        examples: report.examples,
        left_out: None,
        label_map: Vec::new(),
        details: Details::Classification(report),
        outcomes: Outcomes::Right(List(right)),
    })
}

/// Scores predicted label ids against the true ones.
///
/// # Errors
/// [`Error::Length`] for lists of different lengths, [`Error::LabelId`] for an id that is no label.
pub fn report(gold: &[usize], predicted: &[usize], labels: &Labels) -> Result<ClassificationReport> {
    if gold.len() != predicted.len() {
        let what = "predicted labels".to_owned();
        return Err(Error::Length { what, expected: gold.len(), found: predicted.len() });
    }
    let count = labels.len();
    let mut confusion = vec![vec![0; count]; count];
    for (&gold, &predicted) in gold.iter().zip(predicted) {
        let id = gold.max(predicted);
        if id >= count {
            return Err(Error::LabelId { id, count });
        }
        confusion[gold][predicted] += 1;
    }
    let predicted_counts: Vec<usize> = (0..count).map(|class| confusion.iter().map(|row| row[class]).sum()).collect();
    let gold_counts: Vec<usize> = confusion.iter().map(|row| row.iter().sum()).collect();
    let correct: usize = (0..count).map(|class| confusion[class][class]).sum();
    let scores: Vec<Scores> = (0..count)
        .map(|class| Scores::from_counts(confusion[class][class], predicted_counts[class], gold_counts[class]))
        .collect();
    let named = |(name, &scores): (&String, &Scores)| NamedScores { name: name.clone(), scores };
    Ok(ClassificationReport {
        accuracy: if gold.is_empty() { 0.0 } else { correct as f64 / gold.len() as f64 },
        examples: gold.len(),
        macro_average: Scores::mean(&scores),
        matthews: matthews(correct, &gold_counts, &predicted_counts),
        per_class: labels.names().iter().zip(&scores).map(named).collect(),
        confusion,
    })
}

/// Gorodkin's correlation of many classes from the marginals of the confusion matrix; 0 where one side has a single class.
fn matthews(correct: usize, gold: &[usize], predicted: &[usize]) -> f64 {
    let total = gold.iter().sum::<usize>() as f64;
    let dot = |a: &[usize], b: &[usize]| a.iter().zip(b).map(|(&x, &y)| x as f64 * y as f64).sum::<f64>();
    let covariance = correct as f64 * total - dot(gold, predicted);
    let spread = (total * total - dot(gold, gold)) * (total * total - dot(predicted, predicted));
    if spread == 0.0 { 0.0 } else { covariance / spread.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_predicted_and_bad_ids() {
        let labels = Labels::new(["a", "b"]).unwrap();
        let empty = report(&[], &[], &labels).unwrap();
        assert_eq!((empty.accuracy, empty.matthews, empty.examples), (0.0, 0.0, 0));
        assert!(matches!(report(&[0], &[2], &labels), Err(Error::LabelId { id: 2, count: 2 })));
        assert!(matches!(report(&[0], &[], &labels), Err(Error::Length { .. })));
    }
}
