//! The vector of a text: its tokens' hidden states pooled, and scaled to length 1 where the model does so.
//!
//! With `x` the pooled vector, `n` its length and `u = x/n`:
//!
//! | | pooled only | scaled |
//! |---|---|---|
//! | forward | `x` | `u` |
//! | backward | `dx = d` | `dx = (d − (d·u)·u)/n` |
//! | forward tangent | `ẋ` | `u̇ = (ẋ − (u·ẋ)·u)/n` |
//! | backward tangent | `dẋ = ḋ` | the tangent of `dx`, with `ṅ = u·ẋ` |
//!
//! There is one vector per sequence, so everything is recomputed from the hidden states instead of kept, in f64.

use qbert_kernels::{TokenPooling, unit_length};
use qbert_model::Embedder;

use super::Dual;
use crate::batch::Batch;

/// How the sequences of a batch become vectors.
#[derive(Debug, Clone, Copy)]
pub struct SentenceVector<'a> {
    /// The sequences.
    pub batch: &'a Batch,
    /// How token vectors become one.
    pub pooling: TokenPooling,
    /// Whether it is scaled to length 1.
    pub normalize: bool,
    /// Width of a hidden state.
    pub width: usize,
    /// Numbers of the pooled vector that are kept, from the first.
    pub kept: usize,
}

impl<'a> SentenceVector<'a> {
    /// What a model's settings ask for; `None` where its pooler makes the vectors.
    pub fn new(embedder: &Embedder, width: usize, batch: &'a Batch) -> Option<Self> {
        let pooling = embedder.pooling.of_tokens()?;
        let kept = embedder.dimensions.unwrap_or(width).min(width);
        Some(Self { batch, pooling, normalize: embedder.normalize, width, kept })
    }

    /// The vectors `[B, kept]` of hidden states `[T, H]`.
    pub fn forward(&self, hidden: &[f32], vectors: &mut [f32]) {
        let mut whole = vec![0.0; self.width];
        for (vector, rows) in vectors.chunks_exact_mut(self.kept).zip(self.sequences(hidden)) {
            self.pooling.forward(rows, &mut whole);
            vector.copy_from_slice(&whole[..self.kept]);
            if self.normalize {
                unit_length(vector);
            }
        }
    }

    /// The gradient of the hidden states from that of the vectors.
    pub fn backward(&self, hidden: &[f32], d_vectors: &[f32], d_hidden: &mut [f32]) {
        let mut d_whole = vec![0.0; self.width];
        for (sequence, (d, rows)) in d_vectors.chunks_exact(self.kept).zip(self.sequences(hidden)).enumerate() {
            if self.normalize {
                let scaled = Scaled::of(&self.pooled(rows));
                write(&scaled.gradient(&wide(d)), &mut d_whole);
            } else {
                d_whole[..self.kept].copy_from_slice(d);
            }
            self.pooling.backward(rows, &d_whole, self.rows_of(sequence, d_hidden));
        }
    }

    /// The tangent of the vectors.
    pub fn forward_tangent(&self, hidden: Dual<'_>, vectors_tangent: &mut [f32]) {
        let mut whole = vec![0.0; self.width];
        let sequences = self.sequences(hidden.value).zip(self.sequences(hidden.tangent));
        for (out, (rows, moved)) in vectors_tangent.chunks_exact_mut(self.kept).zip(sequences) {
            self.pooling.tangent(rows, moved, &mut whole);
            if self.normalize {
                let scaled = Scaled::of(&self.pooled(rows));
                // The Jacobian is symmetric.
                write(&scaled.gradient(&wide(&whole[..self.kept])), out);
            } else {
                out.copy_from_slice(&whole[..self.kept]);
            }
        }
    }

    /// The tangent of [`SentenceVector::backward`].
    pub fn backward_tangent(&self, hidden: Dual<'_>, d_vectors: Dual<'_>, d_hidden_tangent: &mut [f32]) {
        let (mut d_whole, mut whole_tangent) = (vec![0.0; self.width], vec![0.0; self.width]);
        let sequences = self.sequences(hidden.value).zip(self.sequences(hidden.tangent));
        let gradients = d_vectors.value.chunks_exact(self.kept).zip(d_vectors.tangent.chunks_exact(self.kept));
        for (sequence, ((rows, moved), (d, d_tangent))) in sequences.zip(gradients).enumerate() {
            if self.normalize {
                self.pooling.tangent(rows, moved, &mut whole_tangent);
                let scaled = Scaled::of(&self.pooled(rows));
                let moved = wide(&whole_tangent[..self.kept]);
                write(&scaled.gradient_tangent(&moved, &wide(d), &wide(d_tangent)), &mut d_whole);
            } else {
                d_whole[..self.kept].copy_from_slice(d_tangent);
            }
            self.pooling.backward(rows, &d_whole, self.rows_of(sequence, d_hidden_tangent));
        }
    }

    fn pooled(&self, rows: &[f32]) -> Vec<f64> {
        let mut whole = vec![0.0; self.width];
        self.pooling.forward(rows, &mut whole);
        wide(&whole[..self.kept])
    }

    fn sequences<'b>(&self, hidden: &'b [f32]) -> impl Iterator<Item = &'b [f32]> {
        let width = self.width;
        self.batch.ranges().map(move |range| &hidden[range.start * width..range.end * width])
    }

    fn rows_of<'b>(&self, sequence: usize, hidden: &'b mut [f32]) -> &'b mut [f32] {
        let range = self.batch.sequence(sequence);
        &mut hidden[range.start * self.width..range.end * self.width]
    }
}

/// A vector as its direction and its length.
pub(super) struct Scaled {
    pub(super) direction: Vec<f64>,
    length: f64,
}

impl Scaled {
    pub(super) fn of(x: &[f64]) -> Self {
        // As in the forward pass, a vector of zeros has a length.
        let length = dot(x, x).sqrt().max(1e-12);
        Self { direction: x.iter().map(|value| value / length).collect(), length }
    }

    /// `(d − (d·u)·u)/n`
    pub(super) fn gradient(&self, d: &[f64]) -> Vec<f64> {
        let along = dot(d, &self.direction);
        d.iter().zip(&self.direction).map(|(d, u)| (d - along * u) / self.length).collect()
    }

    /// The tangent of [`Scaled::gradient`] where `x` moves by `ẋ` and `d` by `ḋ`.
    fn gradient_tangent(&self, moved: &[f64], d: &[f64], d_tangent: &[f64]) -> Vec<f64> {
        let turned = self.gradient(moved);
        let stretched = dot(&self.direction, moved);
        let (along, along_moved) = (dot(d, &self.direction), dot(d, &turned));
        let base = self.gradient(d);
        let own = self.gradient(d_tangent);
        let parts = self.direction.iter().zip(&turned).zip(&base).zip(&own);
        parts
            .map(|(((u, u_moved), base), own)| {
                own - (along_moved * u + along * u_moved) / self.length - base * stretched / self.length
            })
            .collect()
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

pub(super) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Writes the first numbers; the others stay as they are.
fn write(values: &[f64], out: &mut [f32]) {
    out.iter_mut().zip(values).for_each(|(out, &value)| *out = value as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let mut batch = Batch::new();
        batch.push(&[1, 2, 3], &[0; 3]);
        batch.push(&[4, 5], &[0; 2]);
        batch
    }

    /// A function of the hidden states: the vectors weighted by fixed numbers, squared now and then.
    fn gradients_of(own: &SentenceVector<'_>, hidden: &[f32], d: &[f32]) -> Vec<f32> {
        let mut d_hidden = vec![f32::NAN; hidden.len()];
        own.backward(hidden, d, &mut d_hidden);
        d_hidden
    }

    #[test]
    fn derivatives_agree_with_finite_differences() {
        let batch = batch();
        let number = |seed: usize| ((seed * 37 % 101) as f32 / 101.0 - 0.5) * 2.0;
        for pooling in [TokenPooling::Mean, TokenPooling::Max, TokenPooling::Last, TokenPooling::WeightedMean] {
            for (normalize, kept) in [(true, 4), (true, 3), (false, 4), (false, 2)] {
                let own = SentenceVector { batch: &batch, pooling, normalize, width: 4, kept };
                let hidden: Vec<f32> = (0..20).map(number).collect();
                let moved: Vec<f32> = (50..70).map(number).collect();
                let d: Vec<f32> = (90..90 + 2 * kept).map(number).collect();
                let d_moved: Vec<f32> = (30..30 + 2 * kept).map(number).collect();
                let step = 1e-3_f32;
                let at = |factor: f32| -> Vec<f32> {
                    hidden.iter().zip(&moved).map(|(h, m)| h + factor * step * m).collect()
                };
                let vectors = |hidden: &[f32]| {
                    let mut out = vec![f32::NAN; 2 * kept];
                    own.forward(hidden, &mut out);
                    out
                };
                // Forward.
                let mut tangent = vec![f32::NAN; 2 * kept];
                own.forward_tangent(Dual { value: &hidden, tangent: &moved }, &mut tangent);
                let (after, before) = (vectors(&at(1.0)), vectors(&at(-1.0)));
                for ((t, a), b) in tangent.iter().zip(&after).zip(&before) {
                    assert!((t - (a - b) / (2.0 * step)).abs() < 2e-3, "{pooling:?} {normalize}");
                }
                // Backward: the transpose of it.
                let d_hidden = gradients_of(&own, &hidden, &d);
                let one: f32 = d_hidden.iter().zip(&moved).map(|(d, m)| d * m).sum();
                let other: f32 = d.iter().zip(&tangent).map(|(d, t)| d * t).sum();
                assert!((one - other).abs() < 1e-5, "{pooling:?} {normalize}: {one} {other}");
                // Its tangent, with the gradient moving too.
                let moved_d =
                    |factor: f32| -> Vec<f32> { d.iter().zip(&d_moved).map(|(d, m)| d + factor * step * m).collect() };
                let mut found = vec![f32::NAN; 20];
                let dual = Dual { value: &hidden, tangent: &moved };
                own.backward_tangent(dual, Dual { value: &d, tangent: &d_moved }, &mut found);
                let after = gradients_of(&own, &at(1.0), &moved_d(1.0));
                let before = gradients_of(&own, &at(-1.0), &moved_d(-1.0));
                for ((t, a), b) in found.iter().zip(&after).zip(&before) {
                    let expected = (a - b) / (2.0 * step);
                    assert!((t - expected).abs() < 5e-3, "{pooling:?} {normalize} {kept}: {t} {expected}");
                }
            }
        }
    }
}
