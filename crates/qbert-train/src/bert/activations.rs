//! The memory of a forward and backward pass: allocated once, reused for every batch.
//!
//! Training keeps what the backward pass needs of every layer; evaluation needs one layer's worth. Buffers only ever
//! grow, to the largest batch seen.

use qbert_kernels::int::Codes;
use qbert_kernels::{DistanceBias, Rotary, Window};
use qbert_model::family::SequencePooling;
use qbert_model::{Config, Head};

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
    /// The sum under the norm of the attention.
    pub attention: Saved,
    /// What the attention reads `[T, H]`, where a norm makes it; empty where it is the layer's input.
    pub read: Vec<f32>,
    /// What the feed-forward network reads: a norm's output `[T, H]`.
    pub middle: Vec<f32>,
    /// The activation's output `[T, I]`.
    pub inner: Vec<f32>,
    /// The activation's slope `[T, I]`, or both slopes of a gated one `[T, 2I]`; empty in evaluation.
    pub slope: Vec<f32>,
    /// The activation's input `[T, I]`; empty unless [`Activations::curvature`] is set.
    pub pre_activation: Vec<f32>,
    /// The sum under the norm of the feed-forward network.
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
    /// The angles of rotary positions, by their base.
    pub rotary: Vec<Rotary>,
    /// The norm after the last layer; empty without one.
    pub final_norm: Saved,
    /// Its output `[T, H]`.
    pub encoded: Vec<f32>,
    /// One per layer, or a single one in evaluation.
    pub layers: Vec<LayerActivations>,
    /// The activation's input `[T, I]` in the current layer; unused where every layer keeps its own.
    pub pre_activation: Vec<f32>,
    /// What quantized matrices read; empty where nothing is quantized.
    pub(super) quantized: QuantizedInputs,
    /// Attention's scratch memory.
    pub scratch: Vec<f32>,
    /// What the pooler reads: `[B, H]`, or `[T, H]` if that is every token.
    pub first_tokens: Vec<f32>,
    /// The pooler's output, of the same shape.
    pub pooled: Vec<f32>,
    /// What the pooler's activation reads, and its slope; empty where the output tells both.
    pub pooler_activation: PoolerBuffers,
    /// The norm after the pooler's activation; empty without one.
    pub pooler_norm: Saved,
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

    /// The hidden states that heads read: the last layer's, through the norm after it where there is one.
    pub fn last_hidden(&self, config: &Config) -> &[f32] {
        if config.has_final_norm() { &self.encoded } else { &self.hidden[self.hidden_index(config.layers)] }
    }

    /// Resizes the buffers for a batch.
    pub fn resize(&mut self, config: &Config, head: Head, outputs: usize, pooler: bool, batch: &Batch) {
        let (tokens, hidden, wide) = (batch.tokens(), config.hidden_size, config.intermediate_size);
        let outer = config.intermediate_outputs();
        let kept = if self.keep { config.layers } else { 1 };
        self.hidden.resize_with(if self.keep { config.layers + 1 } else { 2 }, Vec::new);
        self.hidden.iter_mut().for_each(|buffer| buffer.resize(tokens * hidden, 0.0));
        self.embedding.resize(tokens, config.embedding_size);
        self.embedded.resize(if config.has_projection() { tokens * config.embedding_size } else { 0 }, 0.0);
        self.layers.resize_with(kept, LayerActivations::default);
        // Evaluation has one layer's worth for all layers: as much as the greediest takes.
        let probabilities: Vec<usize> =
            (0..config.layers).map(|layer| heads_of(config, layer).probabilities(batch)).collect();
        let scratch = (0..config.layers).map(|layer| heads_of(config, layer).scratch(batch)).max().unwrap_or(0);
        let most = probabilities.iter().copied().max().unwrap_or(0);
        let keep = self.keep;
        let has_read = |layer: usize| config.has_final_norm() && (!keep || config.has_attention_norm(layer));
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.qkv.resize(tokens * 3 * hidden, 0.0);
            layer.probabilities.resize(if keep { probabilities[index] } else { most }, 0.0);
            layer.read.resize(if has_read(index) { tokens * hidden } else { 0 }, 0.0);
            layer.context.resize(tokens * hidden, 0.0);
            layer.attention.resize(tokens, hidden);
            layer.middle.resize(tokens * hidden, 0.0);
            layer.inner.resize(tokens * wide, 0.0);
            layer.slope.resize(if self.keep { tokens * outer } else { 0 }, 0.0);
            layer.pre_activation.resize(if self.curvature { tokens * outer } else { 0 }, 0.0);
            layer.output.resize(tokens, hidden);
        }
        self.pre_activation.resize(if self.curvature { 0 } else { tokens * outer }, 0.0);
        self.scratch.resize(scratch, 0.0);
        if config.has_final_norm() {
            self.final_norm.resize(tokens, hidden);
            self.encoded.resize(tokens * hidden, 0.0);
        }
        let settings = config.pooler(head);
        let class = config.family.class(head);
        let rows = if class.reads_every_token() { tokens } else { batch.sequences() };
        let every_token = settings.is_some_and(|settings| settings.reads == SequencePooling::EveryToken);
        let pooled_rows = if every_token { tokens } else { batch.sequences() };
        let pooled = if pooler { pooled_rows * hidden } else { 0 };
        self.first_tokens.resize(pooled, 0.0);
        self.pooled.resize(pooled, 0.0);
        self.pooler_activation.resize(settings.map(|settings| settings.activation), pooled);
        if pooler && class.pooler.is_some_and(|pooler| pooler.norm.is_some()) {
            self.pooler_norm.resize(pooled_rows, hidden);
        }
        self.head_input.resize(if class.output.is_none() { 0 } else { rows * hidden }, 0.0);
        // Without a head, what is put out is a vector per sequence.
        let rows = if class.output.is_none() { batch.sequences() } else { rows };
        self.logits.resize(rows * outputs, 0.0);
    }
}

/// The heads of a computed layer.
pub(super) fn heads_of(config: &Config, layer: usize) -> Heads {
    let window = config.attention_of(layer).reach.map(|reach| Window { reach });
    Heads { count: config.heads, width: config.head_size(), window }
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
    /// Gradient of a gated activation's input `[T, 2I]`; empty for a plain one.
    pub d_gated: Vec<f32>,
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
        let scratch = (0..config.layers).map(|layer| heads_of(config, layer).scratch(batch)).max().unwrap_or(0);
        let gated = config.intermediate_outputs() != wide;
        for buffer in [&mut self.d_hidden, &mut self.d_sum, &mut self.d_dropped, &mut self.d_middle] {
            buffer.resize(tokens * hidden, 0.0);
        }
        self.d_inner.resize(tokens * wide, 0.0);
        self.d_qkv.resize(tokens * 3 * hidden, 0.0);
        self.d_gated.resize(if gated { 2 * tokens * wide } else { 0 }, 0.0);
        self.scratch.resize(2 * scratch, 0.0);
        self.d_logits.resize(activations.logits.len(), 0.0);
        self.d_head_input.resize(activations.head_input.len(), 0.0);
        self.d_pooled.resize(activations.pooled.len(), 0.0);
        self.d_embedded.iter_mut().for_each(|buffer| buffer.resize(activations.embedded.len(), 0.0));
    }
}
