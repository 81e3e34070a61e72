//! The forward pass.

use qbert_kernels::{Compute, LayerNorm, MatRef};
use qbert_model::Head;
use qbert_quant::ActivationParams;

use super::quantized::{ActivationQuantizer, ActivationTensor as Tensor};
use super::{Activations, Bert, LayerActivations, LinearSpan, Mode, NormSpan, Pass, Place};
use crate::batch::Batch;
use crate::ops::linear::{self, Linear};
use crate::ops::{attention, embedding, gelu, pooler, quantize, residual_norm};

/// The weights of a linear layer in the flat array.
pub(super) fn linear_at<'a>(weights: &'a [f32], span: &LinearSpan) -> Linear<'a> {
    Linear { weight: &weights[span.weight.clone()], bias: &weights[span.bias.clone()] }
}

/// The quantizer of one layer's activations.
struct LayerQuantizer<'a> {
    source: &'a mut dyn ActivationQuantizer,
    compute: &'a Compute,
    layer: usize,
    tokens: usize,
}

impl LayerQuantizer<'_> {
    fn params(&mut self, tensor: Tensor, values: &[f32]) -> ActivationParams {
        let values = MatRef::new(values, self.tokens, values.len() / self.tokens);
        self.source.params(self.compute, self.layer, tensor, values)
    }

    /// The quantized copy of a tensor that is needed as it is, too.
    fn copy<'c>(
        &mut self,
        tensor: Tensor,
        values: &[f32],
        copy: &'c mut [f32],
        note: &mut ActivationParams,
    ) -> &'c [f32] {
        *note = self.params(tensor, values);
        quantize::forward(self.compute, *note, values, copy);
        copy
    }

    /// Quantizes tensors that lie side by side in the columns of `values`, noting what the clamp left alone.
    fn in_place<const N: usize>(&mut self, tensors: [Tensor; N], values: &mut [f32], passed: &mut [u8]) {
        let width = values.len() / self.tokens;
        let whole = MatRef::new(values, self.tokens, width);
        let (compute, layer, tokens, part) = (self.compute, self.layer, self.tokens, width / N);
        let mut index = 0;
        let params = tensors.map(|tensor| {
            let columns = whole.block(0..tokens, index * part..(index + 1) * part);
            index += 1;
            self.source.params(compute, layer, tensor, columns)
        });
        quantize::forward_in_place(compute, params, width, values, passed);
    }
}

impl Bert {
    fn norm_at<'a>(&self, weights: &'a [f32], span: &NormSpan) -> LayerNorm<'a> {
        let (gamma, beta) = (&weights[span.gamma.clone()], &weights[span.beta.clone()]);
        LayerNorm { gamma, beta, epsilon: self.config.layer_norm_eps }
    }

    /// Computes hidden states and logits of a batch into `activations`.
    ///
    /// # Panics
    /// If the batch does not fit the model: [`Bert::check`] it first.
    pub fn forward(
        &self,
        compute: &Compute,
        weights: &[f32],
        batch: &Batch,
        mode: Mode,
        activations: &mut Activations,
    ) {
        self.forward_with(Pass { compute, weights, batch, mode }, None, activations);
    }

    /// The same with quantized activations where there is a quantizer. [`Bert::backward`] after it knows that they were.
    ///
    /// # Panics
    /// As [`Bert::forward`].
    pub fn forward_with(
        &self,
        pass: Pass<'_>,
        mut quantizer: Option<&mut dyn ActivationQuantizer>,
        activations: &mut Activations,
    ) {
        let Pass { compute, weights, batch, mode } = pass;
        let pooler = self.spans.pooler.is_some();
        activations.resize(&self.config, self.layout.head(), self.outputs, pooler, batch);
        activations.resize_quantized(quantizer.is_some(), batch.tokens(), self.config.hidden_size);
        self.embed(compute, weights, batch, mode, activations);
        for layer in 0..self.config.layers {
            // Not `as_deref_mut`: a trait object's lifetime does not shrink inside an Option by itself.
            let quantizer: Option<&mut dyn ActivationQuantizer> = match &mut quantizer {
                Some(quantizer) => Some(&mut **quantizer),
                None => None,
            };
            self.layer_forward(pass, layer, quantizer, activations);
        }
        self.head_forward(compute, weights, batch, mode, activations);
    }

    /// `hidden[0] = dropout(LayerNorm(word + position + type))`.
    fn embed(&self, compute: &Compute, weights: &[f32], batch: &Batch, mode: Mode, activations: &mut Activations) {
        let [word, position, token_type] = self.spans.embeddings.clone().map(|span| &weights[span]);
        let tables = embedding::Tables { word, position, token_type };
        let saved = &mut activations.embedding;
        embedding::forward(compute, tables, batch, self.config.hidden_size, &mut saved.sum);
        let norm = self.norm_at(weights, &self.spans.embedding_norm);
        let out = &mut activations.hidden[0];
        residual_norm::forward(compute, norm, None, None, saved, out);
        if let Some(dropout) = self.dropout(mode, Place::Embedding) {
            dropout.apply(compute, out);
        }
    }

    fn layer_forward(
        &self,
        pass: Pass<'_>,
        layer: usize,
        quantizer: Option<&mut dyn ActivationQuantizer>,
        activations: &mut Activations,
    ) {
        let Pass { compute, weights, batch, mode } = pass;
        let mut quantizer = quantizer.map(|source| LayerQuantizer { source, compute, layer, tokens: batch.tokens() });
        let spans = &self.spans.layers[layer];
        let (from, to) = (activations.hidden_index(layer), activations.hidden_index(layer + 1));
        let kept = activations.layer_index(layer);
        let Activations { hidden, layers, pre_activation, scratch, keep, curvature, quantized: copy, .. } = activations;
        // The input is read and the output written: two different buffers of one list.
        let mut output = std::mem::take(&mut hidden[to]);
        let input = &hidden[from];
        let layer_activations = &mut layers[kept];
        let LayerActivations { qkv, probabilities, context, attention, middle, inner, slope, .. } = layer_activations;
        let mut notes = layer_activations.quantized.as_mut();
        let saved_output = &mut layer_activations.output;
        let pre_activation = if *curvature { &mut layer_activations.pre_activation } else { pre_activation };

        let read = match (&mut quantizer, &mut notes) {
            (Some(quantizer), Some(notes)) => quantizer.copy(Tensor::Input, input, copy, &mut notes.input),
            _ => input,
        };
        linear::forward(compute, linear_at(weights, &spans.attention_inputs), read, qkv);
        if let (Some(quantizer), Some(notes)) = (&mut quantizer, &mut notes) {
            quantizer.in_place([Tensor::Query, Tensor::Key, Tensor::Value], qkv, &mut notes.qkv_passed);
        }
        let dropout = self.dropout(mode, Place::Probabilities(layer));
        let treatment = attention::Treatment { dropout, quantized: quantizer.is_some(), teacher: None };
        let buffers = attention::ForwardBuffers { probabilities, scratch, context };
        attention::forward_with(compute, self.heads(), batch, treatment, qkv, buffers);
        if let (Some(quantizer), Some(notes)) = (&mut quantizer, &mut notes) {
            quantizer.in_place([Tensor::Context], context, &mut notes.context_passed);
        }
        linear::forward(compute, linear_at(weights, &spans.attention_output), context, &mut attention.sum);
        let norm = self.norm_at(weights, &spans.attention_norm);
        let dropout = self.dropout(mode, Place::AttentionOutput(layer));
        residual_norm::forward(compute, norm, dropout, Some(input), attention, middle);

        let read = match (&mut quantizer, &mut notes) {
            (Some(quantizer), Some(notes)) => quantizer.copy(Tensor::Middle, middle, copy, &mut notes.middle),
            _ => middle,
        };
        linear::forward(compute, linear_at(weights, &spans.intermediate), read, pre_activation);
        gelu::forward(compute, pre_activation, inner, keep.then_some(&mut slope[..]));
        if let Some(quantizer) = &mut quantizer {
            let params = quantizer.params(Tensor::Inner, inner);
            quantize::forward_with_slope(compute, params, inner, slope);
        }
        linear::forward(compute, linear_at(weights, &spans.output), inner, &mut saved_output.sum);
        let norm = self.norm_at(weights, &spans.output_norm);
        let dropout = self.dropout(mode, Place::Output(layer));
        residual_norm::forward(compute, norm, dropout, Some(middle), saved_output, &mut output);
        hidden[to] = output;
    }

    /// Pooler (first token → linear → tanh), dropout, head.
    fn head_forward(
        &self,
        compute: &Compute,
        weights: &[f32],
        batch: &Batch,
        mode: Mode,
        activations: &mut Activations,
    ) {
        let last = activations.hidden_index(self.config.layers);
        let Activations { hidden, first_tokens, pooled, head_input, logits, .. } = activations;
        let encoded = &hidden[last];
        if let Some(span) = &self.spans.pooler {
            pooler::forward(compute, linear_at(weights, span), batch, encoded, first_tokens, pooled);
        }
        let Some(head) = &self.spans.head else { return };
        let source = if self.layout.head() == Head::SequenceClassification { &pooled[..] } else { &encoded[..] };
        head_input.copy_from_slice(source);
        if let Some(dropout) = self.dropout(mode, Place::Head) {
            dropout.apply(compute, head_input);
        }
        linear::forward(compute, linear_at(weights, head), head_input, logits);
    }
}
