//! The pooler: each sequence's first token through a linear layer and tanh.

use qbert_kernels::{Compute, Start};

use super::Dual;
use super::linear::{self, Linear, LinearGradients};
use crate::batch::Batch;

/// A pooler with its weights and a batch; both directions and their tangents are methods of it.
#[derive(Debug, Clone, Copy)]
pub struct Pooler<'a> {
    /// Kernels and threads.
    pub compute: &'a Compute,
    /// Weight `[H, H]` and bias `[H]`.
    pub linear: Linear<'a>,
    /// The sequences.
    pub batch: &'a Batch,
}

/// What the backward pass is given again.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// First tokens `[B, H]`.
    pub first: &'a [f32],
    /// The pooler's output `[B, H]`.
    pub pooled: &'a [f32],
}

impl Pooler<'_> {
    /// `first[b] = hidden[start of b]`, `pooled = tanh(first·Wᵀ + b)`; `first` and `pooled` are `[B, H]`.
    pub fn forward(&self, hidden: &[f32], first: &mut [f32], pooled: &mut [f32]) {
        self.take_first_tokens(hidden, first);
        linear::forward(self.compute, self.linear, first, pooled);
        self.compute.kernels().tanh_in_place(pooled);
    }

    /// From the gradient of `pooled` in `d_pooled` (overwritten) to that of `hidden`, which is zero except at first
    /// tokens. `d_before_tanh` is scratch memory `[B, H]`.
    pub fn backward(
        &self,
        saved: Saved<'_>,
        d_pooled: &mut [f32],
        d_before_tanh: &mut [f32],
        gradients: LinearGradients<'_>,
        d_hidden: &mut [f32],
    ) {
        self.compute.kernels().tanh_backward(saved.pooled, d_pooled, d_before_tanh);
        linear::backward_parameters(self.compute, saved.first, d_before_tanh, gradients);
        linear::backward_input(self.compute, self.linear, d_before_tanh, Start::ZERO, d_pooled);
        self.put_first_tokens(d_pooled, d_hidden);
    }

    /// [`Pooler::backward`] without the gradients of the pooler's own weights. `d_pooled` is kept, `scratch` is
    /// `[2, B, H]`.
    pub fn backward_input(&self, pooled: &[f32], d_pooled: &[f32], scratch: &mut [f32], d_hidden: &mut [f32]) {
        let (d_before_tanh, d_first) = scratch.split_at_mut(pooled.len());
        self.compute.kernels().tanh_backward(pooled, d_pooled, d_before_tanh);
        linear::backward_input(self.compute, self.linear, d_before_tanh, Start::ZERO, d_first);
        self.put_first_tokens(d_first, d_hidden);
    }

    /// The tangent of `pooled` for fixed weights: `(1 − pooled²) ∘ (first tokens of the tangent)·Wᵀ`; `scratch` is
    /// `[2, B, H]`.
    pub fn forward_tangent(
        &self,
        hidden_tangent: &[f32],
        pooled: &[f32],
        scratch: &mut [f32],
        pooled_tangent: &mut [f32],
    ) {
        let (first, before_tanh) = scratch.split_at_mut(pooled.len());
        self.take_first_tokens(hidden_tangent, first);
        linear::forward_tangent(self.compute, self.linear, first, Start::ZERO, before_tanh);
        self.compute.kernels().tanh_backward(pooled, before_tanh, pooled_tangent);
    }

    /// The tangent of [`Pooler::backward_input`]: with `d` the gradient of `pooled` and `y = pooled`, the gradient
    /// before tanh is `(1 − y²)·d`, and its tangent `(1 − y²)·ḋ − 2·y·ẏ·d`.
    pub fn backward_tangent(
        &self,
        pooled: Dual<'_>,
        d_pooled: Dual<'_>,
        scratch: &mut [f32],
        d_hidden_tangent: &mut [f32],
    ) {
        let (d_before_tanh, d_first) = scratch.split_at_mut(pooled.value.len());
        self.compute.kernels().tanh_backward(pooled.value, d_pooled.tangent, d_before_tanh);
        let bend = pooled.value.iter().zip(pooled.tangent).zip(d_pooled.value);
        for (out, ((y, y_tangent), d)) in d_before_tanh.iter_mut().zip(bend) {
            *out -= 2.0 * y * y_tangent * d;
        }
        linear::backward_input(self.compute, self.linear, d_before_tanh, Start::ZERO, d_first);
        self.put_first_tokens(d_first, d_hidden_tangent);
    }

    fn take_first_tokens(&self, hidden: &[f32], first: &mut [f32]) {
        let width = self.linear.bias.len();
        for (row, range) in first.chunks_exact_mut(width).zip(self.batch.ranges()) {
            row.copy_from_slice(&hidden[range.start * width..(range.start + 1) * width]);
        }
    }

    /// Writes the first tokens' rows; all others become zero.
    fn put_first_tokens(&self, first: &[f32], hidden: &mut [f32]) {
        let width = self.linear.bias.len();
        hidden.fill(0.0);
        for (row, range) in first.chunks_exact(width).zip(self.batch.ranges()) {
            hidden[range.start * width..(range.start + 1) * width].copy_from_slice(row);
        }
    }
}
