//! The buffers of a Hessian-vector product besides the activations.

use super::{HessianPass, Point};
use crate::ops::pooler::Pooler;

/// One layer's gradients, kept from the ordinary backward pass.
#[derive(Debug, Default)]
pub(super) struct LayerGradients {
    /// Of the layer's output `[T, H]`.
    pub output: Vec<f32>,
    /// Of the sum under the second LayerNorm `[T, H]`.
    pub output_sum: Vec<f32>,
    /// Of the activation's output `[T, I]`.
    pub inner: Vec<f32>,
    /// Of the activation's input `[T, I]`, `[T, 2I]` for a gated one.
    pub pre_activation: Vec<f32>,
    /// Of the first LayerNorm's output `[T, H]`.
    pub middle: Vec<f32>,
    /// Of the sum under the first LayerNorm `[T, H]`.
    pub attention_sum: Vec<f32>,
    /// Of the context `[T, H]`.
    pub context: Vec<f32>,
    /// Of query, key and value `[T, 3H]`.
    pub qkv: Vec<f32>,
}

/// One layer's tangents that its backward tangent needs: for the moving layer and every layer above it.
#[derive(Debug, Default)]
pub(super) struct LayerTangents {
    pub qkv: Vec<f32>,
    pub probabilities: Vec<f32>,
    pub attention_sum: Vec<f32>,
    pub pre_activation: Vec<f32>,
    pub output_sum: Vec<f32>,
}

/// Tangents of the inputs of a layer's matrices: needed again only where the matrices move.
#[derive(Debug, Default)]
pub(super) struct OwnTangents {
    /// Of what the attention reads: the layer's input, empty where that is fixed, or the output of the norm in front.
    pub input: Vec<f32>,
    pub context: Vec<f32>,
    pub middle: Vec<f32>,
    pub inner: Vec<f32>,
}

/// Gradients and tangents of pooler and head.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// First the gradient of the logits, later their tangent, then the tangent of their gradient.
    pub logits: Vec<f32>,
    /// Gradient of what the head reads: of the pooler's output where there is one.
    pub d_input: Vec<f32>,
    /// Tangent of the pooler's output `[B, H]`.
    pub pooled_tangent: Vec<f32>,
    /// Tangent of `d_input`.
    pub d_input_tangent: Vec<f32>,
    /// The pooler's scratch memory.
    pub scratch: Vec<f32>,
}

/// Tangents of gradients, for one layer at a time.
#[derive(Debug, Default)]
pub(super) struct BackwardTangents {
    /// Of a layer's output, then of its input `[T, H]`.
    pub hidden: Vec<f32>,
    /// Of the sum under a LayerNorm `[T, H]`.
    pub sum: Vec<f32>,
    /// Of the middle of a layer `[T, H]`.
    pub middle: Vec<f32>,
    /// Of the activation's output `[T, I]`.
    pub inner: Vec<f32>,
    /// Of the activation's input `[T, I]`, `[T, 2I]` for a gated one.
    pub pre_activation: Vec<f32>,
    /// Of the context `[T, H]`.
    pub context: Vec<f32>,
    /// Of query, key and value `[T, 3H]`.
    pub qkv: Vec<f32>,
    /// Scratch memory of a moving LayerNorm `[T, H]`.
    pub norm_scratch: Vec<f32>,
    /// Attention's scratch memory.
    pub scratch: Vec<f32>,
}

/// Elements per kind of buffer for a batch.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    inner: usize,
    /// What the first feed-forward matrix gives.
    outer: usize,
    scratch: usize,
}

impl LayerGradients {
    fn resize(&mut self, sizes: Sizes) {
        let Self { output, output_sum, inner, pre_activation, middle, attention_sum, context, qkv } = self;
        all([output, output_sum, middle, attention_sum, context], sizes.hidden);
        all([inner], sizes.inner);
        all([pre_activation], sizes.outer);
        all([qkv], 3 * sizes.hidden);
    }
}

impl LayerTangents {
    fn resize(&mut self, sizes: Sizes, kept: usize) {
        let Self { qkv, probabilities, attention_sum, pre_activation, output_sum } = self;
        all([attention_sum, output_sum], sizes.hidden);
        all([pre_activation], sizes.outer);
        all([probabilities], kept);
        all([qkv], 3 * sizes.hidden);
    }
}

impl OwnTangents {
    fn resize(&mut self, sizes: Sizes) {
        all([&mut self.input, &mut self.context, &mut self.middle], sizes.hidden);
        all([&mut self.inner], sizes.inner);
    }
}

impl BackwardTangents {
    fn resize(&mut self, sizes: Sizes) {
        let Self { hidden, sum, middle, inner, pre_activation, context, qkv, norm_scratch, scratch } = self;
        all([hidden, sum, middle, context, norm_scratch], sizes.hidden);
        all([inner], sizes.inner);
        all([pre_activation], sizes.outer);
        all([qkv], 3 * sizes.hidden);
        all([scratch], sizes.scratch);
    }
}

fn all<const N: usize>(buffers: [&mut Vec<f32>; N], length: usize) {
    buffers.into_iter().for_each(|buffer| buffer.resize(length, 0.0));
}

impl Sizes {
    fn of(point: Point<'_>) -> Self {
        let (config, batch) = (point.bert.config(), point.batch);
        let scratch = (0..config.layers).map(|layer| point.bert.heads(layer).scratch(batch)).max().unwrap_or(0);
        Self {
            hidden: batch.tokens() * config.hidden_size,
            inner: batch.tokens() * config.intermediate_size,
            outer: batch.tokens() * config.intermediate_outputs(),
            scratch: 2 * scratch,
        }
    }
}

impl HessianPass {
    /// Resizes the tangents of `count` layers that move, of which all but the first have an input that moves.
    pub(super) fn resize_own(&mut self, point: Point<'_>, count: usize) {
        let sizes = Sizes::of(point);
        if self.own.len() < count {
            self.own.resize_with(count, OwnTangents::default);
        }
        for (index, own) in self.own.iter_mut().take(count).enumerate() {
            own.resize(sizes);
            let is_read = index > 0 || point.bert.config().has_final_norm();
            own.input.resize(if is_read { sizes.hidden } else { 0 }, 0.0);
        }
    }

    /// Resizes the buffers for a batch whose forward pass is done; layers below the lowest need none.
    pub(super) fn resize(&mut self, point: Point<'_>) {
        let (config, sizes) = (point.bert.config(), Sizes::of(point));
        self.gradients.resize_with(config.layers, LayerGradients::default);
        self.tangents.resize_with(config.layers, LayerTangents::default);
        self.gradients.iter_mut().skip(self.lowest).for_each(|layer| layer.resize(sizes));
        for (layer, tangents) in self.tangents.iter_mut().enumerate().skip(self.lowest) {
            tangents.resize(sizes, point.bert.heads(layer).probabilities(point.batch));
        }
        self.passing.resize(sizes);
        self.backward.resize(sizes);
        self.hidden.resize(sizes.hidden, 0.0);
        self.encoded.resize(sizes.hidden, 0.0);
        self.d_encoded.resize(if config.has_final_norm() { sizes.hidden } else { 0 }, 0.0);
        let (activations, head) = (&self.activations, &mut self.head);
        head.logits.resize(activations.logits.len(), 0.0);
        all([&mut head.d_input, &mut head.d_input_tangent], activations.head_input.len());
        head.pooled_tangent.resize(activations.pooled.len(), 0.0);
        head.scratch.resize(Pooler::SCRATCH * activations.pooled.len(), 0.0);
    }
}
