//! Correlations of predicted values with the true ones (Pearson's, and Spearman's of the ranks), and the squared error.

use serde::{Deserialize, Serialize};

use super::{METRIC, ValueData};
use crate::kinds::{Details, Evaluation};
use crate::metrics::outcomes::{List, Outcomes, ValuePair, pearson};
use crate::{Error, Result};

/// How well values were predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValueReport {
    /// Pearson's correlation; 0 where one side is constant.
    pub pearson: f64,
    /// Spearman's correlation of the ranks.
    pub spearman: f64,
    /// The mean squared error.
    pub mean_squared_error: f64,
    /// How many examples were scored.
    pub examples: usize,
}

/// Scores the predicted values of a data set.
pub(crate) fn score(data: &ValueData, predictions: &[f64]) -> Result<Evaluation> {
    let gold: Option<Vec<f64>> = data.values.iter().copied().collect();
    let gold = gold.ok_or(Error::NothingToScore { what: "values" })?;
    if gold.len() != predictions.len() {
        let what = "predicted values".to_owned();
        return Err(Error::Length { what, expected: gold.len(), found: predictions.len() });
    }
    let pair = |gold: &[f64], found: &[f64]| -> Vec<ValuePair> {
        gold.iter().zip(found).map(|(&gold, &found)| ValuePair { gold, found }).collect()
    };
    let pairs = pair(&gold, predictions);
    let ranked = pair(&ranks(&gold), &ranks(predictions));
    let squares: f64 = pairs.iter().map(|pair| (pair.found - pair.gold).powi(2)).sum();
    let report = ValueReport {
        pearson: pearson(&pairs),
        spearman: pearson(&ranked),
        mean_squared_error: squares / gold.len().max(1) as f64,
        examples: gold.len(),
    };
    Ok(Evaluation {
        metric: METRIC,
        value: 100.0 * report.pearson,
        examples: report.examples,
        left_out: None,
        label_map: Vec::new(),
        details: Details::Values(report),
        outcomes: Outcomes::Values(List(pairs)),
    })
}

/// The rank of each value; equal values share the mean of their ranks.
pub(crate) fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let same = order[start..].iter().take_while(|&&index| values[index] == values[order[start]]).count().max(1);
        let rank = start as f64 + (same - 1) as f64 / 2.0;
        order[start..start + same].iter().for_each(|&index| ranks[index] = rank);
        start += same;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(values: &[f64]) -> ValueData {
        ValueData { examples: Vec::new(), values: values.iter().map(|&value| Some(value)).collect() }
    }

    /// Figures of scipy's `pearsonr` and `spearmanr`.
    #[test]
    fn correlations_are_those_of_scipy() {
        let gold = data(&[1.0, 2.5, 3.0, 3.0, 5.0]);
        let found = score(&gold, &[0.9, 2.0, 4.0, 2.5, 4.5]).unwrap();
        let Details::Values(report) = found.details else { panic!("another report") };
        assert!((report.pearson - 0.900_275_431_421_103).abs() < 1e-9, "{}", report.pearson);
        assert!((report.spearman - 0.974_679_434_480_896_3).abs() < 1e-9, "{}", report.spearman);
        assert!((report.mean_squared_error - 0.352).abs() < 1e-12, "{}", report.mean_squared_error);
    }

    #[test]
    fn a_constant_prediction_says_nothing() {
        let found = score(&data(&[1.0, 2.0]), &[3.0, 3.0]).unwrap();
        assert_eq!(found.value, 0.0);
        assert!(score(&data(&[1.0]), &[]).is_err());
    }
}
