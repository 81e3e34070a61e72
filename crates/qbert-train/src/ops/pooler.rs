//! The pooler: each sequence's first token through a linear layer and an activation.

use qbert_kernels::{Compute, Start};
use qbert_model::family::PoolerActivation;

use super::linear::{self, Linear, LinearGradients};
use super::{Dropout, Dual, activation};
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
    /// What follows the linear layer.
    pub activation: PoolerActivation,
    /// Dropout of what the linear layer reads; tangents have none.
    pub dropout: Option<Dropout>,
}

/// What the activation of a forward pass leaves behind. The slope of tanh follows from its value, so it leaves nothing.
#[derive(Debug, Clone, Default)]
pub struct PoolerBuffers {
    /// What the activation reads `[B, H]`.
    pub before: Vec<f32>,
    /// Its slope there `[B, H]`.
    pub slope: Vec<f32>,
}

impl PoolerBuffers {
    /// Makes room for `length` values, where the activation needs any.
    pub fn resize(&mut self, activation: Option<PoolerActivation>, length: usize) {
        let length = match activation {
            Some(PoolerActivation::Of(_)) => length,
            Some(PoolerActivation::Tanh) | None => 0,
        };
        self.before.resize(length, 0.0);
        self.slope.resize(length, 0.0);
    }
}

/// What the backward pass is given again.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// First tokens `[B, H]`, after dropout.
    pub first: &'a [f32],
    /// The pooler's output `[B, H]`.
    pub pooled: &'a [f32],
    /// What the activation left behind.
    pub activation: &'a PoolerBuffers,
}

impl Pooler<'_> {
    /// `first[b] = hidden[start of b]`, `pooled = f(first·Wᵀ + b)`; `first` and `pooled` are `[B, H]`.
    pub fn forward(&self, hidden: &[f32], first: &mut [f32], buffers: &mut PoolerBuffers, pooled: &mut [f32]) {
        self.take_first_tokens(hidden, first);
        if let Some(dropout) = self.dropout {
            dropout.apply(self.compute, first);
        }
        match self.activation {
            PoolerActivation::Tanh => {
                linear::forward(self.compute, self.linear, first, pooled);
                self.compute.kernels().tanh_in_place(pooled);
            }
            PoolerActivation::Of(own) => {
                let PoolerBuffers { before, slope } = buffers;
                linear::forward(self.compute, self.linear, first, before);
                activation::forward(self.compute, own, before, pooled, Some(slope));
            }
        }
    }

    /// From the gradient of `pooled` in `d_pooled` (overwritten) to that of `hidden`, which is zero except at first
    /// tokens. `d_before` is scratch memory `[B, H]`.
    pub fn backward(
        &self,
        saved: Saved<'_>,
        d_pooled: &mut [f32],
        d_before: &mut [f32],
        gradients: LinearGradients<'_>,
        d_hidden: &mut [f32],
    ) {
        self.times_slope(saved, d_pooled, d_before);
        linear::backward_parameters(self.compute, saved.first, d_before, gradients);
        linear::backward_input(self.compute, self.linear, d_before, Start::ZERO, d_pooled);
        if let Some(dropout) = self.dropout {
            dropout.apply(self.compute, d_pooled);
        }
        self.put_first_tokens(d_pooled, d_hidden);
    }

    /// [`Pooler::backward`] without the gradients of the pooler's own weights. `d_pooled` is kept, `scratch` is
    /// `[2, B, H]`.
    pub fn backward_input(&self, saved: Saved<'_>, d_pooled: &[f32], scratch: &mut [f32], d_hidden: &mut [f32]) {
        let (d_before, d_first) = scratch.split_at_mut(saved.pooled.len());
        self.times_slope(saved, d_pooled, d_before);
        linear::backward_input(self.compute, self.linear, d_before, Start::ZERO, d_first);
        self.put_first_tokens(d_first, d_hidden);
    }

    /// The tangent of `pooled` for fixed weights: `f′ ∘ (first tokens of the tangent)·Wᵀ`; `scratch` is
    /// `[2, B, H]`. The tangent before the activation stays in its second half, for [`Pooler::backward_tangent`].
    pub fn forward_tangent(
        &self,
        hidden_tangent: &[f32],
        saved: Saved<'_>,
        scratch: &mut [f32],
        pooled_tangent: &mut [f32],
    ) {
        let (first, before) = scratch.split_at_mut(saved.pooled.len());
        self.take_first_tokens(hidden_tangent, first);
        linear::forward_tangent(self.compute, self.linear, first, Start::ZERO, before);
        self.times_slope(saved, before, pooled_tangent);
    }

    /// The tangent of [`Pooler::backward_input`]: with `d` the gradient of `pooled`, the gradient before the activation
    /// is `f′·d`, and its tangent `f′·ḋ + f″·u̇·d`. For tanh and `y = pooled` that is `(1 − y²)·ḋ − 2·y·ẏ·d`. `scratch` is
    /// as [`Pooler::forward_tangent`] left it.
    pub fn backward_tangent(
        &self,
        saved: Saved<'_>,
        pooled_tangent: &[f32],
        d_pooled: Dual<'_>,
        scratch: &mut [f32],
        d_hidden_tangent: &mut [f32],
    ) {
        let (d_before, second) = scratch.split_at_mut(saved.pooled.len());
        match self.activation {
            PoolerActivation::Tanh => {
                self.times_slope(saved, d_pooled.tangent, d_before);
                let bend = saved.pooled.iter().zip(pooled_tangent).zip(d_pooled.value);
                for (out, ((y, y_tangent), d)) in d_before.iter_mut().zip(bend) {
                    *out -= 2.0 * y * y_tangent * d;
                }
            }
            PoolerActivation::Of(own) => {
                let u = Dual { value: &saved.activation.before, tangent: second };
                activation::backward_tangent(self.compute, own, u, d_pooled, d_before);
            }
        }
        linear::backward_input(self.compute, self.linear, d_before, Start::ZERO, second);
        self.put_first_tokens(second, d_hidden_tangent);
    }

    /// `out = f′ ∘ d`
    fn times_slope(&self, saved: Saved<'_>, d: &[f32], out: &mut [f32]) {
        match self.activation {
            PoolerActivation::Tanh => self.compute.kernels().tanh_backward(saved.pooled, d, out),
            PoolerActivation::Of(_) => {
                out.copy_from_slice(d);
                activation::backward(self.compute, &saved.activation.slope, out);
            }
        }
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
