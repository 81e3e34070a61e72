//! Precision, recall and F1 over all labels of all texts, per label, and the share of texts whose labels are all right.

use serde::{Deserialize, Serialize};

use super::{METRIC, MultiLabelData};
use crate::kinds::{Details, Evaluation};
use crate::metrics::outcomes::{EntityCounts, List, Outcomes};
use crate::metrics::{NamedScores, Scores};
use crate::{Error, Labels, Result};

/// How well sets of labels were predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MultiLabelReport {
    /// Over all labels of all texts together.
    pub overall: Scores,
    /// The unweighted mean of the labels' scores.
    pub macro_average: Scores,
    /// The share of texts whose labels are all right.
    pub exact: f64,
    /// How many texts were scored.
    pub examples: usize,
    /// One per label, in the order of the labels.
    pub per_class: Vec<NamedScores>,
}

/// Scores the predicted labels of a data set.
pub(crate) fn score(data: &MultiLabelData, predictions: &[Vec<usize>], labels: &Labels) -> Result<Evaluation> {
    let gold: Option<Vec<&Vec<usize>>> = data.sets.iter().map(Option::as_ref).collect();
    let gold = gold.ok_or(Error::NothingToScore { what: "labels" })?;
    if gold.len() != predictions.len() {
        let what = "predicted sets of labels".to_owned();
        return Err(Error::Length { what, expected: gold.len(), found: predictions.len() });
    }
    let mut counts = vec![[0_usize; 3]; labels.len()];
    let mut outcomes = Vec::with_capacity(gold.len());
    for (gold, found) in gold.iter().zip(predictions) {
        let mut correct = 0;
        for (place, set) in [(1, found), (2, *gold)] {
            for &label in set {
                let count = labels.len();
                counts.get_mut(label).ok_or(Error::LabelId { id: label, count })?[place] += 1;
            }
        }
        for &label in found.iter().filter(|label| gold.contains(label)) {
            counts[label][0] += 1;
            correct += 1;
        }
        outcomes.push(EntityCounts { correct, predicted: found.len(), gold: gold.len() });
    }
    let scores: Vec<Scores> =
        counts.iter().map(|&[right, found, gold]| Scores::from_counts(right, found, gold)).collect();
    let total = |place: usize| counts.iter().map(|own| own[place]).sum::<usize>();
    let exact = gold.iter().zip(predictions).filter(|(gold, found)| **gold == *found).count();
    let named = |(name, &scores): (&String, &Scores)| NamedScores { name: name.clone(), scores };
    let report = MultiLabelReport {
        overall: Scores::from_counts(total(0), total(1), total(2)),
        macro_average: Scores::mean(&scores),
        exact: exact as f64 / gold.len().max(1) as f64,
        examples: gold.len(),
        per_class: labels.names().iter().zip(&scores).map(named).collect(),
    };
    Ok(Evaluation {
        metric: METRIC,
        value: 100.0 * report.overall.f1,
        examples: report.examples,
        left_out: None,
        label_map: Vec::new(),
        details: Details::MultiLabel(report),
        outcomes: Outcomes::Entities(List(outcomes)),
    })
}
