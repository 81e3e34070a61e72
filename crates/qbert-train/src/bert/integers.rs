//! The products of an encoder layer whose activations are quantized: the forward pass as integer inference computes it.
//!
//! ```text
//! hidden ─codes─ W_q,W_k,W_v ─► f32 ─steps─► attention ─► f32 ─codes─ W_o ─► f32     middle ─codes─ W_1 ─► f32 …
//! ```
//!
//! Every matrix with quantized weights goes through the runtime's own kernel (`qbert_kernels::int`), so its results have
//! the runtime's bits by construction, for every width and size. Unlike inference, training needs the f32 result
//! before it is quantized: ranges are learned from it, and the clamp's mask comes from it. What is kept for the backward
//! pass are values, `Δ·(code − z)`, as everywhere.

use qbert_kernels::int::{LinearInput, Quantizer};
use qbert_kernels::{Compute, MatMut, MatRef};
use qbert_model::family::FeedForward;
use qbert_quant::{ActivationParams, Matrix};

use super::activations::QuantizedInputs;
use super::quantized::{ActivationQuantizer, ActivationTensor as Tensor, Quantized, WeightCodes};
use crate::ops::linear::{self, Linear};
use crate::ops::quantize;

/// The products of one layer with quantized activations.
pub(super) struct LayerIntegers<'a> {
    pub(super) source: &'a mut dyn ActivationQuantizer,
    pub(super) weights: &'a WeightCodes,
    pub(super) buffers: &'a mut QuantizedInputs,
    /// Recorded for the backward pass.
    pub(super) notes: &'a mut Quantized,
    pub(super) compute: &'a Compute,
    pub(super) layer: usize,
    /// The layer whose weights it computes with.
    pub(super) stored: usize,
    pub(super) tokens: usize,
}

/// A tensor that matrices read.
#[derive(Clone, Copy)]
struct Operand<'a> {
    /// The tensor itself or its quantized values; both give the same codes.
    values: &'a [f32],
    params: ActivationParams,
    /// Whether the values are quantized.
    quantized: bool,
}

impl LayerIntegers<'_> {
    fn params(&mut self, tensor: Tensor, values: &[f32]) -> ActivationParams {
        let values = MatRef::new(values, self.tokens, values.len() / self.tokens);
        self.source.params(self.compute, self.layer, tensor, values)
    }

    /// How tensors that lie side by side in the columns of `values` are quantized.
    fn params_of_parts<const N: usize>(&mut self, tensors: [Tensor; N], values: &[f32]) -> [ActivationParams; N] {
        let width = values.len() / self.tokens;
        let (whole, part) = (MatRef::new(values, self.tokens, width), width / N);
        let mut index = 0;
        tensors.map(|tensor| {
            let columns = whole.block(0..self.tokens, index * part..(index + 1) * part);
            index += 1;
            self.source.params(self.compute, self.layer, tensor, columns)
        })
    }

    /// `y = x·Wᵀ + b` of matrices that lie one below the other in `linear`: those with codes in integers, the others in
    /// f32 on the values of the input's codes.
    fn multiply<const N: usize>(
        &mut self,
        matrices: [Matrix; N],
        operand: Operand<'_>,
        linear: Linear<'_>,
        y: &mut [f32],
    ) {
        let Self { weights, buffers, compute, stored, tokens, .. } = self;
        let Operand { values, params, quantized } = operand;
        let QuantizedInputs { values: copy, narrow, wide } = &mut **buffers;
        let codes = if values.len() == narrow.cols() * *tokens { narrow } else { wide };
        let own = matrices.map(|matrix| weights.get(*stored, matrix));
        let quantizer = Quantizer::new(params.step(), params.zero_point());
        if own.iter().any(Option::is_some) {
            compute.quantize(values, codes, quantizer);
        }
        let values = if !quantized && own.iter().any(Option::is_none) {
            quantize::forward(compute, params, values, copy);
            &copy[..]
        } else {
            values
        };
        let part = linear.outputs / N;
        let mut y = MatMut::new(y, *tokens, N * part);
        for (index, own) in own.into_iter().enumerate() {
            let outputs = index * part..(index + 1) * part;
            let target = y.block(0..*tokens, outputs.clone());
            match own {
                Some(own) => linear::forward_codes(compute, own, LinearInput { codes, quantizer }, target),
                None => linear::forward_block(compute, linear.rows(outputs), values, target),
            }
        }
    }

    /// From the attention's input to query, key and value, turned by `rotate` where positions do that, in steps.
    pub(super) fn attention_inputs(
        &mut self,
        input: &[f32],
        linear: Linear<'_>,
        rotate: impl FnOnce(&mut [f32]),
        qkv: &mut [f32],
    ) -> [ActivationParams; 3] {
        let params = self.params(Tensor::Input, input);
        self.notes.input = params;
        let operand = Operand { values: input, params, quantized: false };
        self.multiply([Matrix::Query, Matrix::Key, Matrix::Value], operand, linear, qkv);
        rotate(qkv);
        let params = self.params_of_parts([Tensor::Query, Tensor::Key, Tensor::Value], qkv);
        self.notes.attention = params;
        let width = qkv.len() / self.tokens;
        quantize::steps_in_place(self.compute, params, width, qkv, &mut self.notes.qkv_passed);
        params
    }

    /// From attention's result, quantized here in place, through its projection. Query, key and value become values.
    pub(super) fn attention_output(&mut self, qkv: &mut [f32], context: &mut [f32], linear: Linear<'_>, y: &mut [f32]) {
        let compute = self.compute;
        quantize::steps_to_values(compute, self.notes.attention, qkv.len() / self.tokens, qkv);
        let params = self.params(Tensor::Context, context);
        let width = context.len() / self.tokens;
        quantize::forward_in_place(compute, [params], width, context, &mut self.notes.context_passed);
        self.multiply([Matrix::AttentionOutput], Operand { values: context, params, quantized: true }, linear, y);
    }

    /// The first feed-forward matrix.
    pub(super) fn intermediate(&mut self, middle: &[f32], linear: Linear<'_>, y: &mut [f32]) {
        let params = self.params(Tensor::Middle, middle);
        self.notes.middle = params;
        self.multiply([Matrix::Intermediate], Operand { values: middle, params, quantized: false }, linear, y);
    }

    /// The second feed-forward matrix, after the activation's output is quantized in place.
    pub(super) fn output(
        &mut self,
        inner: &mut [f32],
        slope: &mut [f32],
        kind: FeedForward,
        linear: Linear<'_>,
        y: &mut [f32],
    ) {
        let params = self.params(Tensor::Inner, inner);
        match kind {
            FeedForward::Plain => quantize::forward_with_slope(self.compute, params, inner, slope),
            FeedForward::Gated => {
                let width = inner.len() / self.tokens;
                quantize::forward_with_slopes(self.compute, params, width, inner, slope);
            }
        }
        self.multiply([Matrix::Output], Operand { values: inner, params, quantized: true }, linear, y);
    }
}
