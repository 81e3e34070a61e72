//! The pooler: each sequence's first token through a linear layer and tanh.

use qbert_kernels::{Compute, Start};

use super::Dual;
use super::linear::{self, Linear, LinearGradients};
use crate::batch::Batch;

/// `first[b] = hidden[start of b]`, `pooled = tanh(first·Wᵀ + b)`; `first` and `pooled` are `[B, H]`.
pub fn forward(
    compute: &Compute,
    linear: Linear<'_>,
    batch: &Batch,
    hidden: &[f32],
    first: &mut [f32],
    pooled: &mut [f32],
) {
    take_first_tokens(batch, linear.bias.len(), hidden, first);
    linear::forward(compute, linear, first, pooled);
    compute.kernels().tanh_in_place(pooled);
}

/// What the backward pass is given again.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// First tokens `[B, H]`.
    pub first: &'a [f32],
    /// The pooler's output `[B, H]`.
    pub pooled: &'a [f32],
}

/// From the gradient of `pooled` in `d_pooled` (used up) to that of `hidden`, which is zero but for the first tokens.
pub fn backward(
    compute: &Compute,
    linear: Linear<'_>,
    batch: &Batch,
    saved: Saved<'_>,
    (d_pooled, d_before_tanh): (&mut [f32], &mut [f32]),
    (gradients, d_hidden): (LinearGradients<'_>, &mut [f32]),
) {
    compute.kernels().tanh_backward(saved.pooled, d_pooled, d_before_tanh);
    linear::backward_parameters(compute, saved.first, d_before_tanh, gradients);
    linear::backward_input(compute, linear, d_before_tanh, Start::ZERO, d_pooled);
    put_first_tokens(batch, linear.bias.len(), d_pooled, d_hidden);
}

fn take_first_tokens(batch: &Batch, width: usize, hidden: &[f32], first: &mut [f32]) {
    for (row, range) in first.chunks_exact_mut(width).zip(batch.ranges()) {
        row.copy_from_slice(&hidden[range.start * width..(range.start + 1) * width]);
    }
}

/// The rest becomes zero.
fn put_first_tokens(batch: &Batch, width: usize, first: &[f32], hidden: &mut [f32]) {
    hidden.fill(0.0);
    for (row, range) in first.chunks_exact(width).zip(batch.ranges()) {
        hidden[range.start * width..(range.start + 1) * width].copy_from_slice(row);
    }
}

/// [`backward`] without the gradients of the pooler's own weights; `d_pooled` is kept, `scratch` is `[2, B, H]`.
pub fn backward_input(
    compute: &Compute,
    linear: Linear<'_>,
    batch: &Batch,
    (pooled, d_pooled): (&[f32], &[f32]),
    scratch: &mut [f32],
    d_hidden: &mut [f32],
) {
    let (d_before_tanh, d_first) = scratch.split_at_mut(pooled.len());
    compute.kernels().tanh_backward(pooled, d_pooled, d_before_tanh);
    linear::backward_input(compute, linear, d_before_tanh, Start::ZERO, d_first);
    put_first_tokens(batch, linear.bias.len(), d_first, d_hidden);
}

/// The tangent of `pooled` for fixed weights: `(1 − pooled²) ∘ (first tokens of the tangent)·Wᵀ`; `scratch` is
/// `[2, B, H]`.
pub fn forward_tangent(
    compute: &Compute,
    linear: Linear<'_>,
    batch: &Batch,
    hidden_tangent: &[f32],
    (pooled, scratch): (&[f32], &mut [f32]),
    pooled_tangent: &mut [f32],
) {
    let (first, before_tanh) = scratch.split_at_mut(pooled.len());
    take_first_tokens(batch, linear.bias.len(), hidden_tangent, first);
    linear::forward_tangent(compute, linear, first, Start::ZERO, before_tanh);
    compute.kernels().tanh_backward(pooled, before_tanh, pooled_tangent);
}

/// The tangent of [`backward_input`]: with `d` the gradient of `pooled` and `y = pooled`, the gradient before tanh is
/// `(1 − y²)·d`, and its tangent `(1 − y²)·ḋ − 2·y·ẏ·d`.
pub fn backward_tangent(
    compute: &Compute,
    linear: Linear<'_>,
    batch: &Batch,
    (pooled, d_pooled): (Dual<'_>, Dual<'_>),
    scratch: &mut [f32],
    d_hidden_tangent: &mut [f32],
) {
    let (d_before_tanh, d_first) = scratch.split_at_mut(pooled.value.len());
    compute.kernels().tanh_backward(pooled.value, d_pooled.tangent, d_before_tanh);
    let bend = pooled.value.iter().zip(pooled.tangent).zip(d_pooled.value);
    for (out, ((y, y_tangent), d)) in d_before_tanh.iter_mut().zip(bend) {
        *out -= 2.0 * y * y_tangent * d;
    }
    linear::backward_input(compute, linear, d_before_tanh, Start::ZERO, d_first);
    put_first_tokens(batch, linear.bias.len(), d_first, d_hidden_tangent);
}
