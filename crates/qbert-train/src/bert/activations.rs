//! The memory of a forward and backward pass: allocated once, reused for every batch.
//!
//! Training keeps what the backward pass needs of every layer; evaluation needs one layer's worth. Buffers only ever
//! grow, to the largest batch seen.

use qbert_kernels::DistanceBias;
use qbert_kernels::int::Codes;
use qbert_model::{Config, HeadClass};

use super::quantized::Quantized;
use crate::batch::Batch;
use crate::ops::attention::Heads;
use crate::ops::pooler::PoolerBuffers;
use crate::ops::residual_norm::Saved;

/// What one encoder layer computes and the backward pass needs again.
#[derive(Debug, Default)]
pub struct LayerActivations {
    /// Query, key and value `[T, 3H]`.
    pub qkv: Vec<f32>,
    /// Attention probabilities before dropout, per sequence `[N, n, n]`.
    pub probabilities: Vec<f32>,
    /// Attention's result before its projection `[T, H]`.
    pub context: Vec<f32>,
    /// The sum under the first LayerNorm.
    pub attention: Saved,
    /// The first LayerNorm's output `[T, H]`.
    pub middle: Vec<f32>,
    /// The activation's output `[T, I]`.
    pub inner: Vec<f32>,
    /// The activation's slope `[T, I]`; empty in evaluation.
    pub slope: Vec<f32>,
    /// The activation's input `[T, I]`; empty unless [`Activations::curvature`] is set.
    pub pre_activation: Vec<f32>,
    /// The sum under the second LayerNorm.
    pub output: Saved,
    /// How activations were quantized, where they were. Then `qkv`, `context` and `inner` are quantized values.
    pub quantized: Option<Quantized>,
}

/// All buffers of a forward pass.
#[derive(Debug, Default)]
pub struct Activations {
    /// Whether every layer's activations are kept.
    pub keep: bool,
    /// Whether the activation's inputs are kept too; its second derivative needs them.
    pub curvature: bool,
    /// The layers' inputs and the last layer's output, `[T, H]` each. Evaluation alternates between two buffers.
    pub hidden: Vec<Vec<f32>>,
    /// The sum under the embedding's LayerNorm.
    pub embedding: Saved,
    /// The position embedding's row of every token.
    pub position_rows: Vec<u32>,
    /// What the projection of the embeddings reads `[T, E]`; empty without one.
    pub embedded: Vec<f32>,
    /// What attention adds to its scores.
    pub bias: Option<DistanceBias>,
    /// One per layer, or a single one in evaluation.
    pub layers: Vec<LayerActivations>,
    /// The activation's input `[T, I]` in the current layer; unused where every layer keeps its own.
    pub pre_activation: Vec<f32>,
    /// What quantized matrices read; empty where nothing is quantized.
    pub(super) quantized: QuantizedInputs,
    /// Attention's scratch memory.
    pub scratch: Vec<f32>,
    /// First tokens `[B, H]`, for the pooler.
    pub first_tokens: Vec<f32>,
    /// The pooler's output `[B, H]`.
    pub pooled: Vec<f32>,
    /// What the pooler's activation reads, and its slope, `[B, H]`; empty where the output tells both.
    pub pooler_activation: PoolerBuffers,
    /// What the head reads, after dropout: `[B, H]` or `[T, H]`.
    pub head_input: Vec<f32>,
    /// The head's output: `[B, labels]` or `[T, labels]`.
    pub logits: Vec<f32>,
}

/// The input of the matrix that is being multiplied, quantized.
#[derive(Debug, Default)]
pub(super) struct QuantizedInputs {
    /// Values `[T, H]`, for a matrix in f32 whose unquantized input is needed again.
    pub(super) values: Vec<f32>,
    /// Codes `[T, H]`.
    pub(super) narrow: Codes,
    /// Codes `[T, I]`.
    pub(super) wide: Codes,
}

impl QuantizedInputs {
    fn resize(&mut self, tokens: usize, config: &Config) {
        self.values.resize(tokens * config.hidden_size, 0.0);
        let widths = [config.hidden_size, config.intermediate_size];
        for (codes, width) in [&mut self.narrow, &mut self.wide].into_iter().zip(widths) {
            if codes.cols() != width {
                *codes = Codes::new(width);
            }
            codes.resize(tokens);
        }
    }
}

impl Activations {
    /// Buffers for training.
    pub fn for_training() -> Self {
        Self { keep: true, ..Self::default() }
    }

    /// Buffers for Hessian-vector products.
    pub fn for_curvature() -> Self {
        Self { keep: true, curvature: true, ..Self::default() }
    }

    /// Buffers for evaluation.
    pub fn for_evaluation() -> Self {
        Self::default()
    }

    /// The buffer that holds the input of `layer`, or the encoder's output for `layer = layers`.
    pub fn hidden_index(&self, layer: usize) -> usize {
        if self.keep { layer } else { layer % 2 }
    }

    /// The buffer that holds the activations of `layer`.
    pub fn layer_index(&self, layer: usize) -> usize {
        if self.keep { layer } else { 0 }
    }

    /// Allocates what quantization needs, or frees it.
    pub(super) fn resize_quantized(&mut self, quantized: bool, tokens: usize, config: &Config) {
        if !quantized {
            self.quantized = QuantizedInputs::default();
            self.layers.iter_mut().for_each(|layer| layer.quantized = None);
            return;
        }
        self.quantized.resize(tokens, config);
        for layer in &mut self.layers {
            let kept = layer.quantized.get_or_insert_default();
            let noted = if self.keep { tokens * config.hidden_size } else { 0 };
            kept.qkv_passed.resize(3 * noted, 0);
            kept.context_passed.resize(noted, 0);
        }
    }

    /// Resizes the buffers for a batch.
    pub fn resize(&mut self, config: &Config, head: &HeadClass, outputs: usize, pooler: bool, batch: &Batch) {
        let (tokens, hidden, wide) = (batch.tokens(), config.hidden_size, config.intermediate_size);
        let heads = Heads { count: config.heads, width: config.head_size() };
        let kept = if self.keep { config.layers } else { 1 };
        self.hidden.resize_with(if self.keep { config.layers + 1 } else { 2 }, Vec::new);
        self.hidden.iter_mut().for_each(|buffer| buffer.resize(tokens * hidden, 0.0));
        self.embedding.resize(tokens, config.embedding_size);
        self.embedded.resize(if config.has_projection() { tokens * config.embedding_size } else { 0 }, 0.0);
        self.layers.resize_with(kept, LayerActivations::default);
        for layer in &mut self.layers {
            layer.qkv.resize(tokens * 3 * hidden, 0.0);
            layer.probabilities.resize(heads.probabilities(batch), 0.0);
            layer.context.resize(tokens * hidden, 0.0);
            layer.attention.resize(tokens, hidden);
            layer.middle.resize(tokens * hidden, 0.0);
            layer.inner.resize(tokens * wide, 0.0);
            layer.slope.resize(if self.keep { tokens * wide } else { 0 }, 0.0);
            layer.pre_activation.resize(if self.curvature { tokens * wide } else { 0 }, 0.0);
            layer.output.resize(tokens, hidden);
        }
        self.pre_activation.resize(if self.curvature { 0 } else { tokens * wide }, 0.0);
        self.scratch.resize(heads.scratch(batch), 0.0);
        let rows = if head.reads_pooler() { batch.sequences() } else { tokens };
        let pooled = if pooler { batch.sequences() * hidden } else { 0 };
        self.first_tokens.resize(pooled, 0.0);
        self.pooled.resize(pooled, 0.0);
        self.pooler_activation.resize(head.pooler.map(|pooler| pooler.activation), pooled);
        self.head_input.resize(if head.output.is_none() { 0 } else { rows * hidden }, 0.0);
        // Without a head, what is put out is a vector per sequence.
        let rows = if head.output.is_none() { batch.sequences() } else { rows };
        self.logits.resize(rows * outputs, 0.0);
    }
}

/// The buffers of a backward pass: gradients of one layer at a time.
#[derive(Debug, Default)]
pub struct BackwardBuffers {
    /// Gradient of a layer's output, then of its input `[T, H]`.
    pub d_hidden: Vec<f32>,
    /// Gradient of the sum under a LayerNorm, which is the residual's `[T, H]`.
    pub d_sum: Vec<f32>,
    /// The same through the dropout `[T, H]`.
    pub d_dropped: Vec<f32>,
    /// Gradient of the middle of a layer `[T, H]`.
    pub d_middle: Vec<f32>,
    /// Gradient of the activation's output, then of its input `[T, I]`.
    pub d_inner: Vec<f32>,
    /// Gradient of query, key and value `[T, 3H]`.
    pub d_qkv: Vec<f32>,
    /// Attention's scratch memory.
    pub scratch: Vec<f32>,
    /// Gradient of the logits.
    pub d_logits: Vec<f32>,
    /// Gradient of what the head reads.
    pub d_head_input: Vec<f32>,
    /// Gradient of the pooler's input, before its activation.
    pub d_pooled: Vec<f32>,
    /// Gradient of what the projection of the embeddings reads, and of the sum under its norm, `[T, E]` each; empty
    /// without a projection.
    pub d_embedded: [Vec<f32>; 2],
}

impl BackwardBuffers {
    /// Resizes the buffers for a batch whose forward pass filled `activations`.
    pub fn resize(&mut self, config: &Config, batch: &Batch, activations: &Activations) {
        let (tokens, hidden, wide) = (batch.tokens(), config.hidden_size, config.intermediate_size);
        let heads = Heads { count: config.heads, width: config.head_size() };
        for buffer in [&mut self.d_hidden, &mut self.d_sum, &mut self.d_dropped, &mut self.d_middle] {
            buffer.resize(tokens * hidden, 0.0);
        }
        self.d_inner.resize(tokens * wide, 0.0);
        self.d_qkv.resize(tokens * 3 * hidden, 0.0);
        self.scratch.resize(2 * heads.scratch(batch), 0.0);
        self.d_logits.resize(activations.logits.len(), 0.0);
        self.d_head_input.resize(activations.head_input.len(), 0.0);
        self.d_pooled.resize(activations.pooled.len(), 0.0);
        self.d_embedded.iter_mut().for_each(|buffer| buffer.resize(activations.embedded.len(), 0.0));
    }
}
