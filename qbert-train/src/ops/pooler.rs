//! The pooler: each sequence's first token through a linear layer and tanh.

use qbert_kernels::{Compute, Start};

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
    let width = linear.bias.len();
    for (row, range) in first.chunks_exact_mut(width).zip(batch.ranges()) {
        row.copy_from_slice(&hidden[range.start * width..(range.start + 1) * width]);
    }
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
    let width = linear.bias.len();
    compute.kernels().tanh_backward(saved.pooled, d_pooled, d_before_tanh);
    linear::backward_parameters(compute, saved.first, d_before_tanh, gradients);
    linear::backward_input(compute, linear, d_before_tanh, Start::ZERO, d_pooled);
    d_hidden.fill(0.0);
    for (row, range) in d_pooled.chunks_exact(width).zip(batch.ranges()) {
        d_hidden[range.start * width..(range.start + 1) * width].copy_from_slice(row);
    }
}
