//! What pairs of texts teach a model of vectors, by the cosines of their vectors.
//!
//! | pairs | loss, over the pairs of a batch |
//! |---|---|
//! | with scores | `log(1 + Σ e^(20·(c_j − c_i)))` over all `i`, `j` where pair `i` has the larger score: only the order of the scores counts (`CoSENT`) |
//! | without | the mean over pairs of the cross-entropy of finding a text's partner among all partners in the batch, at a temperature of 1/20, in both directions |
//!
//! Both are divided by 20, so that the gradient of a cosine is of the size that the distances to the teacher's vectors have. At
//! full size they outweigh the teacher: all-MiniLM-L6-v2 at 3 bits then learned less from STS Benchmark than without labels.
//!
//! There are few vectors in a batch, so everything is computed in f64, on one thread.

use libm::{exp, log};
use qbert_tasks::LabelledPair;

use super::sentence_vector::{Scaled, dot, wide};

/// What cosines are multiplied by before they are compared, as in sentence-transformers.
const SHARPNESS: f64 = 20.0;

/// The loss of vectors `[B, width]`. Adds its gradient, times `scale`, to `d_vectors`.
pub fn loss(vectors: &[f32], width: usize, pairs: &[LabelledPair], scale: f64, d_vectors: &mut [f32]) -> f64 {
    if pairs.is_empty() {
        return 0.0;
    }
    let mut cosines = Cosines::new(vectors, width);
    let scored: Vec<(&LabelledPair, f64)> = pairs.iter().filter_map(|pair| Some((pair, pair.score?))).collect();
    let matched: Vec<&LabelledPair> = pairs.iter().filter(|pair| pair.score.is_none()).collect();
    let total = order(&scored, &mut cosines) + partners(&matched, &mut cosines);
    cosines.add_gradient(scale / SHARPNESS, width, d_vectors);
    total / SHARPNESS
}

/// Pairs with larger scores should have larger cosines.
fn order(pairs: &[(&LabelledPair, f64)], cosines: &mut Cosines) -> f64 {
    let found: Vec<f64> = pairs.iter().map(|(pair, _)| cosines.of(pair.first, pair.second)).collect();
    let wrong = |above: usize, below: usize| SHARPNESS * (found[below] - found[above]);
    let ordered: Vec<(usize, usize)> = (0..pairs.len())
        .flat_map(|above| (0..pairs.len()).map(move |below| (above, below)))
        .filter(|&(above, below)| pairs[above].1 > pairs[below].1)
        .collect();
    // The 1 in the logarithm is one more term, of exponent 0.
    let largest = ordered.iter().map(|&(above, below)| wrong(above, below)).fold(0.0, f64::max);
    let sum = ordered.iter().map(|&(above, below)| exp(wrong(above, below) - largest)).sum::<f64>() + exp(-largest);
    for &(above, below) in &ordered {
        let share = SHARPNESS * exp(wrong(above, below) - largest) / sum;
        cosines.pull(pairs[below].0.first, pairs[below].0.second, share);
        cosines.pull(pairs[above].0.first, pairs[above].0.second, -share);
    }
    largest + log(sum)
}

/// The partner of a text should be nearer than those of the others.
fn partners(pairs: &[&LabelledPair], cosines: &mut Cosines) -> f64 {
    let weight = 1.0 / (2 * pairs.len().max(1)) as f64;
    let sides = [|pair: &LabelledPair| pair.first, |pair: &LabelledPair| pair.second];
    let mut total = 0.0;
    for (own, other) in [(sides[0], sides[1]), (sides[1], sides[0])] {
        for (index, pair) in pairs.iter().enumerate() {
            let text = own(pair);
            let scores: Vec<f64> = pairs.iter().map(|pair| SHARPNESS * cosines.of(text, other(pair))).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| exp(score - largest)).sum();
            total += weight * (largest + log(sum) - scores[index]);
            for (candidate, score) in scores.iter().enumerate() {
                let probability = exp(score - largest) / sum;
                let right = if candidate == index { 1.0 } else { 0.0 };
                cosines.pull(text, other(pairs[candidate]), weight * SHARPNESS * (probability - right));
            }
        }
    }
    total
}

/// Vectors as directions and lengths, and the gradient of their directions.
struct Cosines {
    vectors: Vec<Scaled>,
    d_directions: Vec<Vec<f64>>,
}

impl Cosines {
    fn new(vectors: &[f32], width: usize) -> Self {
        let vectors: Vec<Scaled> = vectors.chunks_exact(width).map(|own| Scaled::of(&wide(own))).collect();
        Self { d_directions: vec![vec![0.0; width]; vectors.len()], vectors }
    }

    fn of(&self, first: usize, second: usize) -> f64 {
        dot(&self.vectors[first].direction, &self.vectors[second].direction)
    }

    /// Adds `share` to the gradient of a cosine.
    fn pull(&mut self, first: usize, second: usize, share: f64) {
        for (own, other) in [(first, second), (second, first)] {
            let towards = &self.vectors[other].direction;
            self.d_directions[own].iter_mut().zip(towards).for_each(|(d, u)| *d += share * u);
        }
    }

    fn add_gradient(&self, scale: f64, width: usize, d_vectors: &mut [f32]) {
        let rows = d_vectors.chunks_exact_mut(width).zip(self.vectors.iter().zip(&self.d_directions));
        for (out, (vector, d)) in rows {
            out.iter_mut().zip(vector.gradient(d)).for_each(|(out, d)| *out += (scale * d) as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(first: usize, second: usize, score: Option<f64>) -> LabelledPair {
        LabelledPair { first, second, score }
    }

    fn vectors(count: usize, width: usize) -> Vec<f32> {
        (0..count * width).map(|seed| ((seed * 37 % 101) as f32 / 101.0 - 0.5) * 2.0).collect()
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let cases: [&[LabelledPair]; 3] = [
            &[pair(0, 1, Some(0.5)), pair(2, 3, Some(4.0)), pair(4, 5, Some(0.5))],
            &[pair(0, 1, None), pair(2, 3, None), pair(5, 4, None)],
            &[pair(0, 1, Some(1.0)), pair(2, 3, Some(2.0)), pair(4, 5, None), pair(1, 2, None)],
        ];
        let width = 5;
        let start = vectors(6, width);
        for pairs in cases {
            let mut gradient = vec![0.0; start.len()];
            loss(&start, width, pairs, 1.0, &mut gradient);
            assert!(gradient.iter().any(|d| d.abs() > 1e-3));
            for place in 0..start.len() {
                let at = |step: f32| {
                    let mut moved = start.clone();
                    moved[place] += step;
                    loss(&moved, width, pairs, 1.0, &mut vec![0.0; start.len()])
                };
                let expected = (at(1e-3) - at(-1e-3)) / 2e-3;
                assert!(
                    (f64::from(gradient[place]) - expected).abs() < 5e-3,
                    "{place}: {} {expected}",
                    gradient[place]
                );
            }
        }
    }

    #[test]
    fn the_right_order_and_the_right_partner_cost_little() {
        // Vectors 0 and 1 point the same way, 2 and 3 do, and 4 and 5 do not.
        let vectors = [1.0_f32, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
        let at = |pairs: &[LabelledPair]| loss(&vectors, 2, pairs, 1.0, &mut [0.0; 12]);
        assert!(at(&[pair(0, 1, Some(5.0)), pair(4, 5, Some(0.0))]) < 1e-8);
        assert!((at(&[pair(0, 1, Some(0.0)), pair(4, 5, Some(5.0))]) - 1.0).abs() < 1e-6);
        // Equal scores say nothing about the order.
        assert_eq!(at(&[pair(0, 1, Some(1.0)), pair(4, 5, Some(1.0))]), 0.0);
        assert!(at(&[pair(0, 1, None), pair(2, 3, None)]) < 1e-8);
        assert!((at(&[pair(0, 3, None), pair(2, 1, None)]) - 1.0).abs() < 1e-6);
    }

    /// Figures of sentence-transformers' `CoSENTLoss` and `MultipleNegativesRankingLoss` on the vectors of [`vectors`], the second
    /// as the mean of both directions: `reference/metrics/pair_losses.py`.
    #[test]
    fn agrees_with_sentence_transformers() {
        let own = vectors(6, 5);
        let at = |pairs: &[LabelledPair]| SHARPNESS * loss(&own, 5, pairs, 1.0, &mut vec![0.0; own.len()]);
        let scored = at(&[pair(0, 1, Some(0.5)), pair(2, 3, Some(4.0)), pair(4, 5, Some(2.0))]);
        let matched = at(&[pair(0, 1, None), pair(2, 3, None), pair(4, 5, None)]);
        assert!((scored - COSENT).abs() < 1e-4 && (matched - PARTNERS).abs() < 1e-4, "{scored} {matched}");
    }

    const COSENT: f64 = 9.864_234_442;
    const PARTNERS: f64 = 26.222_742_510;
}
