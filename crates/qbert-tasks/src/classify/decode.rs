//! From a row of scores to a label. Named entities decode each word the same way.

/// What a row of scores says.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The output with the largest score; 0 if there is none.
    pub label: usize,
    /// The probability of each output.
    pub probabilities: Vec<f64>,
}

impl Choice {
    /// The probability of the chosen label.
    pub fn probability(&self) -> f64 {
        self.probabilities.get(self.label).copied().unwrap_or(0.0)
    }
}

/// Decodes the scores of one text, or of one token.
pub fn decode(scores: &[f32]) -> Choice {
    Choice { label: best(scores).unwrap_or(0), probabilities: softmax(scores) }
}

/// The index of the largest score, the first one if equal; NaN counts as smaller than everything. `None` if empty.
pub fn best(scores: &[f32]) -> Option<usize> {
    let mut found: Option<(usize, f32)> = None;
    for (index, &score) in scores.iter().enumerate() {
        let score = if score.is_nan() { f32::NEG_INFINITY } else { score };
        if found.is_none_or(|(_, known)| score > known) {
            found = Some((index, score));
        }
    }
    found.map(|(index, _)| index)
}

/// Probabilities from scores, in f64 and without overflow. All equal where every score is −∞ or NaN.
pub fn softmax(scores: &[f32]) -> Vec<f64> {
    let finite = |score: f32| if score.is_nan() { f64::NEG_INFINITY } else { f64::from(score) };
    let largest = scores.iter().map(|&score| finite(score)).fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return vec![1.0 / scores.len() as f64; scores.len()];
    }
    let weight = |&score: &f32| if f64::from(score) == largest { 1.0 } else { libm::exp(finite(score) - largest) };
    let weights: Vec<f64> = scores.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_first_and_nan_never_wins() {
        assert_eq!(best(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(best(&[f32::NAN, -5.0]), Some(1));
        assert_eq!(best(&[f32::NAN, f32::NAN]), Some(0));
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn softmax_sums_to_one_whatever_comes_in() {
        for scores in [
            vec![1.0, 2.0, 3.0],
            vec![1e38, -1e38],
            vec![f32::NAN, 0.0],
            vec![f32::INFINITY, 0.0],
            vec![f32::NEG_INFINITY; 3],
        ] {
            let total: f64 = softmax(&scores).iter().sum();
            assert!((total - 1.0).abs() < 1e-12, "{scores:?} {total}");
        }
        assert!(softmax(&[]).is_empty());
    }
}
