//! The pooler: hidden states through a linear layer, an activation and, in some families, a norm. It reads each sequence's
//! first token, the mean of its tokens, or every token: `R` rows.

use qbert_kernels::{Compute, LayerNorm, LayerNormGradients, Start};
use qbert_model::family::{PoolerActivation, SequencePooling};

use super::linear::{self, Linear, LinearGradients};
use super::{Dropout, Dual, activation, residual_norm};
use crate::batch::Batch;
use crate::bert::Activations;
use crate::team::{self, Rows};

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
    /// What it reads.
    pub reads: SequencePooling,
    /// The norm after the activation.
    pub norm: Option<LayerNorm<'a>>,
    /// Dropout of what the linear layer reads; tangents have none.
    pub dropout: Option<Dropout>,
}

/// What the activation of a forward pass leaves behind. The slope of tanh follows from its value, so it leaves nothing.
#[derive(Debug, Clone, Default)]
pub struct PoolerBuffers {
    /// What the activation reads `[R, H]`.
    pub before: Vec<f32>,
    /// Its slope there `[R, H]`.
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
    /// What the linear layer read `[R, H]`, after dropout.
    pub first: &'a [f32],
    /// The activation's output `[R, H]`.
    pub activated: &'a [f32],
    /// What the activation left behind.
    pub activation: &'a PoolerBuffers,
    /// What the norm left behind; empty without one.
    pub norm: &'a residual_norm::Saved,
}

impl<'a> Saved<'a> {
    /// What a forward pass left behind.
    pub fn of(activations: &'a Activations) -> Self {
        let Activations { first_tokens, pooled, pooler_activation, pooler_norm, .. } = activations;
        let activated = if pooler_norm.sum.is_empty() { pooled } else { &pooler_norm.sum };
        Self { first: first_tokens, activated, activation: pooler_activation, norm: pooler_norm }
    }
}

/// The parts of the memory that tangents compute in, `[R, H]` each.
struct Scratch<'a> {
    /// First what is read, later the gradient before the activation.
    first: &'a mut [f32],
    /// The tangent before the activation, which stays from one pass to the other.
    before: &'a mut [f32],
    /// The tangent behind the activation, in front of the norm; stays as well.
    activated: &'a mut [f32],
    /// Gradient behind the activation, and its tangent.
    d_activated: &'a mut [f32],
    d_activated_tangent: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    /// `memory` is [`Pooler::SCRATCH`] times as long as what the pooler writes.
    fn new(memory: &'a mut [f32]) -> Self {
        let part = memory.len() / Pooler::SCRATCH;
        let (first, rest) = memory.split_at_mut(part);
        let (before, rest) = rest.split_at_mut(part);
        let (activated, rest) = rest.split_at_mut(part);
        let (d_activated, d_activated_tangent) = rest.split_at_mut(part);
        Self { first, before, activated, d_activated, d_activated_tangent }
    }
}

impl Pooler<'_> {
    /// How much scratch memory tangents need, in units of `[R, H]`.
    pub const SCRATCH: usize = 5;

    /// `pooled = norm(f(first·Wᵀ + b))`, where `first` is what the pooler reads of `hidden`; both are `[R, H]`.
    pub fn forward(
        &self,
        hidden: &[f32],
        first: &mut [f32],
        buffers: &mut PoolerBuffers,
        saved: &mut residual_norm::Saved,
        pooled: &mut [f32],
    ) {
        self.read(hidden, first);
        if let Some(dropout) = self.dropout {
            dropout.apply(self.compute, first);
        }
        let activated = if self.norm.is_some() { &mut saved.sum[..] } else { &mut *pooled };
        match self.activation {
            PoolerActivation::Tanh => {
                linear::forward(self.compute, self.linear, first, activated);
                self.compute.kernels().tanh_in_place(activated);
            }
            PoolerActivation::Of(own) => {
                let PoolerBuffers { before, slope } = buffers;
                linear::forward(self.compute, self.linear, first, before);
                activation::forward(self.compute, own, before, activated, Some(slope));
            }
        }
        if let Some(norm) = self.norm {
            residual_norm::forward(self.compute, norm, None, None, saved, pooled);
        }
    }

    /// What it has one row for.
    fn rows(&self) -> Rows {
        if self.reads == SequencePooling::EveryToken { Rows::Tokens } else { Rows::Sequences }
    }

    /// The gradient of `pooled` becomes that of the activation's output; `scratch` is `[R, H]`.
    pub fn norm_backward(
        &self,
        saved: Saved<'_>,
        gradients: LayerNormGradients<'_>,
        d_pooled: &mut [f32],
        scratch: &mut [f32],
    ) {
        if let Some(norm) = self.norm {
            let (own, given) = ((norm.gamma, saved.norm), (&*d_pooled, &mut *scratch));
            team::norm_backward(self.compute, self.batch, self.rows(), own, given, gradients);
            d_pooled.copy_from_slice(scratch);
        }
    }

    /// From the gradient of the activation's output in `d_pooled` (overwritten) to that of `hidden`. `d_before` is scratch
    /// memory `[R, H]`.
    pub fn backward(
        &self,
        saved: Saved<'_>,
        d_pooled: &mut [f32],
        d_before: &mut [f32],
        gradients: LinearGradients<'_>,
        d_hidden: &mut [f32],
    ) {
        self.times_slope(saved, d_pooled, d_before);
        team::add_linear(self.compute, self.batch, self.rows(), (saved.first, d_before), gradients);
        linear::backward_input(self.compute, self.linear, d_before, Start::ZERO, d_pooled);
        if let Some(dropout) = self.dropout {
            dropout.apply(self.compute, d_pooled);
        }
        self.write(d_pooled, d_hidden);
    }

    /// From the gradient of `pooled` to that of `hidden`, without the gradients of the pooler's own weights. `d_pooled` is
    /// kept.
    pub fn backward_input(&self, saved: Saved<'_>, d_pooled: &[f32], scratch: &mut [f32], d_hidden: &mut [f32]) {
        let Scratch { first: d_before, before: d_first, d_activated, .. } = Scratch::new(scratch);
        let d_activated = match self.norm {
            None => d_pooled,
            Some(norm) => {
                residual_norm::backward_input(self.compute, norm.gamma, saved.norm, d_pooled, d_activated);
                d_activated
            }
        };
        self.times_slope(saved, d_activated, d_before);
        linear::backward_input(self.compute, self.linear, d_before, Start::ZERO, d_first);
        self.write(d_first, d_hidden);
    }

    /// The tangent of `pooled` for fixed weights. What [`Pooler::backward_tangent`] needs of it stays in `scratch`.
    pub fn forward_tangent(
        &self,
        hidden_tangent: &[f32],
        saved: Saved<'_>,
        scratch: &mut [f32],
        pooled_tangent: &mut [f32],
    ) {
        let Scratch { first, before, activated, .. } = Scratch::new(scratch);
        self.read(hidden_tangent, first);
        linear::forward_tangent(self.compute, self.linear, first, Start::ZERO, before);
        self.times_slope(saved, before, activated);
        match self.norm {
            None => pooled_tangent.copy_from_slice(activated),
            Some(norm) => {
                residual_norm::forward_tangent(self.compute, norm.gamma, None, saved.norm, activated, pooled_tangent);
            }
        }
    }

    /// The tangent of [`Pooler::backward_input`]: with `d` the gradient of the activation's output, the gradient before the
    /// activation is `f′·d`, and its tangent `f′·ḋ + f″·u̇·d`. For tanh and `y` its output that is `(1 − y²)·ḋ − 2·y·ẏ·d`.
    /// `scratch` is as [`Pooler::forward_tangent`] left it.
    pub fn backward_tangent(
        &self,
        saved: Saved<'_>,
        d_pooled: Dual<'_>,
        scratch: &mut [f32],
        d_hidden_tangent: &mut [f32],
    ) {
        let Scratch { first: d_before, before, activated, d_activated, d_activated_tangent } = Scratch::new(scratch);
        let d = match self.norm {
            None => d_pooled,
            Some(norm) => {
                residual_norm::backward_input(self.compute, norm.gamma, saved.norm, d_pooled.value, d_activated);
                let moving = saved.norm.moving(activated);
                residual_norm::backward_tangent(self.compute, norm.gamma, moving, d_pooled, d_activated_tangent);
                Dual { value: d_activated, tangent: d_activated_tangent }
            }
        };
        match self.activation {
            PoolerActivation::Tanh => {
                self.times_slope(saved, d.tangent, d_before);
                let bend = saved.activated.iter().zip(&*activated).zip(d.value);
                for (out, ((y, y_tangent), d)) in d_before.iter_mut().zip(bend) {
                    *out -= 2.0 * y * y_tangent * d;
                }
            }
            PoolerActivation::Of(own) => {
                let u = Dual { value: &saved.activation.before, tangent: before };
                activation::backward_tangent(self.compute, own, u, d, d_before);
            }
        }
        linear::backward_input(self.compute, self.linear, d_before, Start::ZERO, before);
        self.write(before, d_hidden_tangent);
    }

    /// `out = f′ ∘ d`
    fn times_slope(&self, saved: Saved<'_>, d: &[f32], out: &mut [f32]) {
        match self.activation {
            PoolerActivation::Tanh => self.compute.kernels().tanh_backward(saved.activated, d, out),
            PoolerActivation::Of(_) => {
                out.copy_from_slice(d);
                activation::backward(self.compute, &saved.activation.slope, out);
            }
        }
    }

    /// What the linear layer reads of hidden states.
    fn read(&self, hidden: &[f32], first: &mut [f32]) {
        let width = self.linear.outputs;
        if self.reads == SequencePooling::EveryToken {
            return first.copy_from_slice(hidden);
        }
        let kernels = self.compute.kernels();
        for (row, range) in first.chunks_exact_mut(width).zip(self.batch.ranges()) {
            row.copy_from_slice(&hidden[range.start * width..(range.start + 1) * width]);
            if self.reads == SequencePooling::Mean {
                for other in hidden[(range.start + 1) * width..range.end * width].chunks_exact(width) {
                    kernels.add_scaled(1.0, other, row);
                }
                row.iter_mut().for_each(|sum| *sum /= range.len() as f32);
            }
        }
    }

    /// From the gradient of what is read to that of the hidden states; those that are not read get zeros.
    fn write(&self, first: &[f32], hidden: &mut [f32]) {
        let width = self.linear.outputs;
        if self.reads == SequencePooling::EveryToken {
            return hidden.copy_from_slice(first);
        }
        hidden.fill(0.0);
        for (row, range) in first.chunks_exact(width).zip(self.batch.ranges()) {
            match self.reads {
                SequencePooling::Mean => {
                    let share = 1.0 / range.len() as f32;
                    for out in hidden[range.start * width..range.end * width].chunks_exact_mut(width) {
                        self.compute.kernels().add_scaled(share, row, out);
                    }
                }
                SequencePooling::FirstToken | SequencePooling::EveryToken => {
                    hidden[range.start * width..(range.start + 1) * width].copy_from_slice(row);
                }
            }
        }
    }
}
