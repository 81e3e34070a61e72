//! `y = LayerNorm(dropout(z) + x)`: how every sublayer ends.
//!
//! The sum takes the place of `z` and is kept for the backward pass together with each row's mean and deviation.

use qbert_kernels::{Compute, LayerNorm, LayerNormGradients, Normalized, NormalizedMut};

use super::Dropout;

/// What the forward pass keeps: the sum `[T, H]` and two numbers per row.
#[derive(Debug, Clone, Default)]
pub struct Saved {
    /// In: `z`. Out: `dropout(z) + x`.
    pub sum: Vec<f32>,
    /// Mean of each row of the sum.
    pub mean: Vec<f32>,
    /// `1/√(variance + ε)` of each row.
    pub rstd: Vec<f32>,
}

impl Saved {
    /// Makes room for `tokens` rows of `hidden`.
    pub fn resize(&mut self, tokens: usize, hidden: usize) {
        self.sum.resize(tokens * hidden, 0.0);
        self.mean.resize(tokens, 0.0);
        self.rstd.resize(tokens, 0.0);
    }

    fn normalized(&self) -> Normalized<'_> {
        Normalized { sum: &self.sum, mean: &self.mean, rstd: &self.rstd }
    }
}

/// Turns `saved.sum` from `z` into `dropout(z) + x` and writes its LayerNorm to `y` `[T, H]`.
///
/// `x` is `None` where there is no residual: the embedding's LayerNorm.
pub fn forward(
    compute: &Compute,
    norm: LayerNorm<'_>,
    dropout: Option<Dropout>,
    x: Option<&[f32]>,
    saved: &mut Saved,
    y: &mut [f32],
) {
    if let Some(dropout) = dropout {
        dropout.apply(compute, &mut saved.sum);
    }
    let Saved { sum, mean, rstd } = saved;
    compute.layer_norm_forward(norm, x, NormalizedMut { sum, mean, rstd, out: y });
}

/// From the gradient of `y` to those of γ and β (added) and of the sum (written), which is the residual's gradient and,
/// through the same dropout mask, that of `z`.
pub fn backward(
    compute: &Compute,
    gamma: &[f32],
    saved: &Saved,
    dy: &[f32],
    d_sum: &mut [f32],
    gradients: LayerNormGradients<'_>,
) {
    compute.layer_norm_backward(gamma, saved.normalized(), dy, d_sum, gradients);
}
