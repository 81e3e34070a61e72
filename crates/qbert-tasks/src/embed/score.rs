//! How good vectors are: similarities of pairs, and the other aims' measures put into one form.

use serde::{Deserialize, Serialize};

use super::{EmbedAim, EmbedData, TextPair, probe, retrieval};
use crate::kinds::{Details, Evaluation};
use crate::metrics::outcomes::{List, Outcomes, Overlap, Right, ValuePair, pearson};
use crate::values::ranks;
use crate::{Error, Result};

/// How well similarities of vectors agree with those that people see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimilarityReport {
    /// Spearman's correlation of the ranks of cosine similarities and scores.
    pub spearman: f64,
    /// Pearson's correlation of cosine similarities and scores.
    pub pearson: f64,
    /// How many pairs were scored.
    pub pairs: usize,
}

/// Scores the vectors of all texts of a data set.
pub(crate) fn score(data: &EmbedData, vectors: &[Vec<f32>]) -> Result<Evaluation> {
    if vectors.len() != data.texts.len() {
        let what = "vectors".to_owned();
        return Err(Error::Length { what, expected: data.texts.len(), found: vectors.len() });
    }
    let (value, examples, details, outcomes) = match &data.aim {
        EmbedAim::None => return Err(Error::NothingToScore { what: "scored pairs, relevant documents or classes" }),
        EmbedAim::Pairs(pairs) => {
            let (report, ranked) = similarity(pairs, vectors)?;
            (report.spearman, report.pairs, Details::Similarity(report), Outcomes::Values(List(ranked)))
        }
        EmbedAim::Retrieval { queries, documents } => {
            let (report, gains) = retrieval::score(queries, documents, vectors);
            let gains = gains.into_iter().map(Overlap).collect();
            (report.ndcg_at_10, report.queries, Details::Retrieval(report), Outcomes::Overlap(List(gains)))
        }
        EmbedAim::Classes { of_text, names } => {
            let (report, right) = probe::score(of_text, names.len(), vectors)?;
            let right = right.into_iter().map(Right).collect();
            (report.accuracy, report.tested, Details::Probe(report), Outcomes::Right(List(right)))
        }
    };
    let (metric, value) = (data.aim.metric(), 100.0 * value);
    Ok(Evaluation { metric, value, examples, left_out: None, label_map: Vec::new(), details, outcomes })
}

fn similarity(pairs: &[TextPair], vectors: &[Vec<f32>]) -> Result<(SimilarityReport, Vec<ValuePair>)> {
    let scored: Vec<(f64, f64)> = pairs
        .iter()
        .filter_map(|pair| Some((pair.score?, cosine(&vectors[pair.first], &vectors[pair.second]))))
        .collect();
    if scored.is_empty() {
        return Err(Error::NothingToScore { what: "scores of pairs" });
    }
    let (gold, found): (Vec<f64>, Vec<f64>) = scored.into_iter().unzip();
    let pair = |gold: &[f64], found: &[f64]| -> Vec<ValuePair> {
        gold.iter().zip(found).map(|(&gold, &found)| ValuePair { gold, found }).collect()
    };
    let ranked = pair(&ranks(&gold), &ranks(&found));
    let report =
        SimilarityReport { spearman: pearson(&ranked), pearson: pearson(&pair(&gold, &found)), pairs: gold.len() };
    Ok((report, ranked))
}

/// The cosine of the angle between two vectors; 0 where one is zero.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let norms = dot(a, a).sqrt() * dot(b, b).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(angle: f64) -> Vec<f32> {
        vec![angle.cos() as f32, angle.sin() as f32]
    }

    /// The order of the similarities is that of the scores but for one swap: scipy's `spearmanr` gives 0.8.
    #[test]
    fn similarities_are_ranked_as_scipy_does() {
        let angles = [0.1, 0.5, 0.4, 1.2];
        let scores = [5.0, 4.0, 3.0, 0.5];
        let mut texts = Vec::new();
        let mut pairs = Vec::new();
        let mut vectors = Vec::new();
        for (place, (&angle, &score)) in angles.iter().zip(&scores).enumerate() {
            texts.extend([String::new(), String::new()]);
            vectors.extend([vector(0.0), vector(angle)]);
            pairs.push(TextPair { first: 2 * place, second: 2 * place + 1, score: Some(score) });
        }
        let found = score(&EmbedData { texts, aim: EmbedAim::Pairs(pairs) }, &vectors).unwrap();
        assert_eq!(found.metric, "spearman");
        assert!((found.value - 80.0).abs() < 1e-9, "{}", found.value);
        assert!((found.outcomes.value() - 80.0).abs() < 1e-9);
    }

    #[test]
    fn texts_alone_cannot_be_scored() {
        let data = EmbedData { texts: vec![String::new()], aim: EmbedAim::None };
        assert!(matches!(score(&data, &[vec![1.0]]), Err(Error::NothingToScore { .. })));
        assert!(matches!(score(&data, &[]), Err(Error::Length { .. })));
    }
}
