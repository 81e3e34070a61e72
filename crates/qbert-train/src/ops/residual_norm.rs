//! `y = LayerNorm(dropout(z) + x)`: how every sublayer ends, or, with the sum alone, how it begins.
//!
//! The sum takes the place of `z` and is kept for the backward pass together with each row's mean and deviation.

use qbert_kernels::{
    Compute, LayerNorm, LayerNormGradients, LayerNormTangents, MatRef, Normalized, NormalizedMut, ROW_CHUNK,
};

use super::{Dropout, Dual};

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

    /// With the tangent of the sum.
    pub fn moving<'a>(&'a self, sum_tangent: &'a [f32]) -> Moving<'a> {
        Moving { saved: self, sum_tangent }
    }

    fn normalized(&self) -> Normalized<'_> {
        Normalized { sum: &self.sum, mean: &self.mean, rstd: &self.rstd }
    }
}

/// A norm under which the sum moves.
#[derive(Debug, Clone, Copy)]
pub struct Moving<'a> {
    saved: &'a Saved,
    sum_tangent: &'a [f32],
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
    with_beta(gradients, |gradients| {
        compute.layer_norm_backward(gamma, saved.normalized(), dy, d_sum, gradients);
    });
}

/// Calls `add` with room for β's gradient, also where there is no β.
pub(crate) fn with_beta(gradients: LayerNormGradients<'_>, add: impl FnOnce(LayerNormGradients<'_>)) {
    let LayerNormGradients { gamma, beta } = gradients;
    let mut unwanted = vec![0.0; if beta.is_empty() { gamma.len() } else { 0 }];
    let beta = if beta.is_empty() { &mut unwanted } else { beta };
    add(LayerNormGradients { gamma, beta });
}

/// The direction in which γ and β move; β is empty where there is none.
#[derive(Debug, Clone, Copy)]
pub struct Direction<'a> {
    /// γ̇
    pub gamma: &'a [f32],
    /// β̇
    pub beta: &'a [f32],
}

/// `ẏ = γ∘x̂̇`, and where γ and β move, `+ γ̇∘x̂ + β̇`.
pub fn forward_tangent(
    compute: &Compute,
    gamma: &[f32],
    direction: Option<Direction<'_>>,
    saved: &Saved,
    sum_tangent: &[f32],
    y_tangent: &mut [f32],
) {
    compute.layer_norm_forward_tangent(gamma, saved.normalized(), sum_tangent, y_tangent);
    let Some(Direction { gamma, beta }) = direction else { return };
    let width = gamma.len();
    compute.threads().for_each_chunk([y_tangent], [ROW_CHUNK * width], |chunk, [part]| {
        for (row, out) in part.chunks_exact_mut(width).enumerate() {
            let token = chunk * ROW_CHUNK + row;
            let (mean, rstd) = (saved.mean[token], saved.rstd[token]);
            let sum = &saved.sum[token * width..(token + 1) * width];
            if beta.is_empty() {
                for ((out, s), g) in out.iter_mut().zip(sum).zip(gamma) {
                    *out += (s - mean) * rstd * g;
                }
                continue;
            }
            for ((out, s), (g, b)) in out.iter_mut().zip(sum).zip(gamma.iter().zip(beta)) {
                *out += (s - mean) * rstd * g + b;
            }
        }
    });
}

/// The tangent of the gradient of the sum, for fixed γ: see [`own_backward_tangent`] for one that moves.
pub fn backward_tangent(compute: &Compute, gamma: &[f32], moving: Moving<'_>, dy: Dual<'_>, d_sum_tangent: &mut [f32]) {
    let Moving { saved, sum_tangent } = moving;
    let tangents = LayerNormTangents { sum_tangent, d_out: dy.value, d_out_tangent: dy.tangent };
    compute.layer_norm_backward_tangent(gamma, saved.normalized(), tangents, d_sum_tangent);
}

/// How a LayerNorm's own parameters move, and memory to compute with.
#[derive(Debug)]
pub struct OwnDirection<'a> {
    /// γ̇
    pub gamma: &'a [f32],
    /// Scratch memory `[T, H]`.
    pub scratch: &'a mut [f32],
}

/// What a LayerNorm whose own parameters move adds to [`backward_tangent`]: the gradient of the sum is `J·(γ∘dy)`, so
/// its tangent gains `J·(γ̇∘dy)`; the tangents of the gradients of γ and β, `Σ(dẏ∘x̂ + dy∘x̂̇)` and `Σ dẏ`, are added to
/// `gradients`. `J` is the derivative of `x̂` by the sum.
pub fn own_backward_tangent(
    compute: &Compute,
    own: OwnDirection<'_>,
    moving: Moving<'_>,
    dy: Dual<'_>,
    d_sum_tangent: &mut [f32],
    gradients: LayerNormGradients<'_>,
) {
    let OwnDirection { gamma: gamma_tangent, scratch } = own;
    let Moving { saved, sum_tangent } = moving;
    let (width, rows) = (gamma_tangent.len(), saved.mean.len());
    let LayerNormGradients { gamma, beta } = gradients;
    // The ordinary backward pass of dẏ sums dẏ∘x̂ and dẏ; its gradient of the sum is not needed.
    with_beta(LayerNormGradients { gamma: &mut *gamma, beta }, |sums| {
        compute.layer_norm_backward(gamma_tangent, saved.normalized(), dy.tangent, scratch, sums);
    });
    // With γ = 1 the forward tangent is x̂̇.
    compute.layer_norm_forward_tangent(&vec![1.0; width], saved.normalized(), sum_tangent, scratch);
    compute.multiply(dy.value, scratch);
    compute.add_column_sums(MatRef::new(scratch, rows, width), gamma);

    backward_input(compute, gamma_tangent, saved, dy.value, scratch);
    compute.add_scaled(1.0, scratch, d_sum_tangent);
}

/// [`backward`] without the gradients of γ and β.
pub fn backward_input(compute: &Compute, gamma: &[f32], saved: &Saved, dy: &[f32], d_sum: &mut [f32]) {
    let mut unwanted = vec![0.0; 2 * gamma.len()];
    let (first, second) = unwanted.split_at_mut(gamma.len());
    let gradients = LayerNormGradients { gamma: first, beta: second };
    compute.layer_norm_backward(gamma, saved.normalized(), dy, d_sum, gradients);
}
