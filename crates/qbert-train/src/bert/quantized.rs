//! Quantization as the model sees it: the activation tensors, how they are quantized, and the codes of the weights that
//! they are multiplied with.
//!
//! Every matrix product of an encoder layer reads 8-bit operands (paper, Tab. 1: activations have 8 bits in every
//! quantized model), attention's two included. Residuals, LayerNorm, softmax, GELU, pooler and head compute in f32, and
//! a residual is the value itself, not its quantized copy.
//!
//! A matrix whose weights and input are both quantized is multiplied in integers, by the runtime's own kernel; one whose
//! weights stay in f32 reads the values of its input's codes. So the forward pass gives the same bits as the runtime.
//! The backward pass only uses values; the weights it is given are the values of the codes.
//!
//! A forward pass with quantized activations records what the backward pass needs ([`Quantized`]), so one backward pass
//! serves both kinds.

use qbert_kernels::int::WideWeights;
use qbert_kernels::{Compute, MatRef};
use qbert_quant::{ActivationParams, Matrix};

/// The quantized activation tensors of an encoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActivationTensor {
    /// What enters `W_q`, `W_k` and `W_v`.
    Input,
    /// Queries, with their bias, turned where positions are rotary.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Attention probabilities; always [`ActivationParams::PROBABILITIES`].
    Probabilities,
    /// Attention's result, entering `W_o`.
    Context,
    /// The first LayerNorm's output, entering the first feed-forward matrix.
    Middle,
    /// The activation's output, entering the second feed-forward matrix.
    Inner,
}

impl ActivationTensor {
    /// All eight, in the order the data goes.
    pub const ALL: [Self; 8] = [
        Self::Input,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::Probabilities,
        Self::Context,
        Self::Middle,
        Self::Inner,
    ];

    /// The name in files; with its layer `layer.3.inner`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::Probabilities => "probabilities",
            Self::Context => "context",
            Self::Middle => "middle",
            Self::Inner => "inner",
        }
    }

    /// Whether its range comes from the data.
    pub fn is_learned(self) -> bool {
        self != Self::Probabilities
    }
}

/// Decides how activations are quantized.
pub trait ActivationQuantizer {
    /// How to quantize this tensor, whose values in this pass are `values`: one row per token.
    ///
    /// Called once per layer and learned tensor in the order of the data, never for probabilities.
    fn params(
        &mut self,
        compute: &Compute,
        layer: usize,
        tensor: ActivationTensor,
        values: MatRef<'_>,
    ) -> ActivationParams;
}

/// The codes of the encoder's quantized matrices.
#[derive(Debug, Default)]
pub struct WeightCodes {
    layers: Vec<[Option<WideWeights>; MATRICES]>,
}

const MATRICES: usize = Matrix::ALL.len();

impl WeightCodes {
    /// The codes of a matrix; `None` where its weights stay in f32.
    pub fn get(&self, layer: usize, matrix: Matrix) -> Option<&WideWeights> {
        self.layers.get(layer)?[matrix as usize].as_ref()
    }

    /// The slot for the codes of a matrix, for the caller to fill.
    pub(crate) fn slot(&mut self, layer: usize, matrix: Matrix) -> &mut Option<WideWeights> {
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, Default::default);
        }
        &mut self.layers[layer][matrix as usize]
    }
}

/// What a forward pass with quantized activations needs besides the weights' values.
pub struct Integers<'a> {
    /// Decides how activations are quantized.
    pub activations: &'a mut dyn ActivationQuantizer,
    /// The codes of the weights; the pass's weights are their values.
    pub weights: &'a WeightCodes,
}

/// What the backward pass of a quantized layer needs besides the activations.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// How the layer's input was quantized.
    pub input: ActivationParams,
    /// How query, key and value were quantized.
    pub attention: [ActivationParams; 3],
    /// How the first LayerNorm's output was quantized.
    pub middle: ActivationParams,
    /// Which queries, keys and values the clamp did not change `[T, 3H]`; empty in evaluation.
    pub qkv_passed: Vec<u8>,
    /// The same of the context `[T, H]`.
    pub context_passed: Vec<u8>,
}

impl Default for Quantized {
    fn default() -> Self {
        let zero = ActivationParams::ZERO;
        Self { input: zero, attention: [zero; 3], middle: zero, qkv_passed: Vec::new(), context_passed: Vec::new() }
    }
}
