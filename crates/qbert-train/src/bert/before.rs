//! Layers whose sublayers begin with a norm: `m = x + attention(norm(x))`, `y = m + feed_forward(norm(m))`.
//!
//! What a layer keeps has the names of layers that end in norms: `attention` is the norm in front of the attention with `x` as
//! its sum, `read` its output; `output` is the norm in front of the feed-forward network with `m` as its sum, `middle` its
//! output. The first layer's attention reads `x` itself.

use qbert_kernels::{Start, Turn};

use super::backward::{Given, linear_gradients, norm_gradients};
use super::forward::linear_at;
use super::integers::LayerIntegers;
use super::{Activations, BackwardBuffers, Bert, Integers, LayerActivations, Pass, Place};
use crate::ops::{attention, dropout, linear, quantize, residual_norm};
use crate::team::{self, Rows};

impl Bert {
    pub(super) fn norm_before_forward(
        &self,
        pass: Pass<'_>,
        layer: usize,
        integers: Option<Integers<'_>>,
        activations: &mut Activations,
    ) {
        let Pass { compute, weights, batch, mode } = pass;
        let spans = &self.spans.layers[layer];
        let (from, to) = (activations.hidden_index(layer), activations.hidden_index(layer + 1));
        let kept = activations.layer_index(layer);
        let Activations {
            hidden,
            layers,
            pre_activation,
            scratch,
            keep,
            curvature,
            quantized: buffers,
            bias,
            rotary,
            position_rows,
            ..
        } = activations;
        let rotary = self.rotary_of(rotary, layer);
        let rotate = |qkv: &mut [f32]| self.rotate(compute, rotary, Turn::Forward, position_rows, qkv);
        let mut output = std::mem::take(&mut hidden[to]);
        let input = &hidden[from];
        let own = &mut layers[kept];
        let LayerActivations { qkv, probabilities, context, attention, read, middle, inner, slope, .. } = own;
        let saved_middle = &mut own.output;
        let pre_activation = if *curvature { &mut own.pre_activation } else { pre_activation };
        let mut integers = integers.map(|Integers { activations: source, weights }| {
            let notes = own.quantized.get_or_insert_default();
            let stored = self.config.weights_of(layer);
            LayerIntegers { source, weights, buffers, notes, compute, layer, stored, tokens: batch.tokens() }
        });

        let read = match &spans.attention_norm {
            None => &input[..],
            Some(span) => {
                attention.sum.copy_from_slice(input);
                residual_norm::forward(compute, self.norm_at(weights, span), None, None, attention, read);
                &read[..]
            }
        };
        let inputs = linear_at(weights, &spans.attention_inputs);
        let quantized = match &mut integers {
            Some(integers) => Some(integers.attention_inputs(read, inputs, rotate, qkv)),
            None => {
                linear::forward(compute, inputs, read, qkv);
                rotate(qkv);
                None
            }
        };
        let dropout = self.dropout(batch, mode, Place::Probabilities(layer));
        let treatment = attention::Treatment { dropout, quantized, teacher: None, bias: bias.as_ref() };
        let core = attention::ForwardBuffers { probabilities, scratch, context };
        attention::forward_with(compute, self.heads(layer), batch, treatment, qkv, core);

        let projection = linear_at(weights, &spans.attention_output);
        match &mut integers {
            Some(integers) => integers.attention_output(qkv, context, projection, &mut saved_middle.sum),
            None => linear::forward(compute, projection, context, &mut saved_middle.sum),
        }
        let (norm, dropout) =
            (self.norm_at(weights, &spans.output_norm), self.dropout(batch, mode, Place::AttentionOutput(layer)));
        residual_norm::forward(compute, norm, dropout, Some(input), saved_middle, middle);

        let intermediate = linear_at(weights, &spans.intermediate);
        match &mut integers {
            Some(integers) => integers.intermediate(middle, intermediate, pre_activation),
            None => linear::forward(compute, intermediate, middle, pre_activation),
        }
        self.activate(compute, pre_activation, inner, keep.then_some(&mut slope[..]));
        if let Some(dropout) = self.dropout(batch, mode, Place::Inner(layer)) {
            dropout.apply(compute, inner);
        }
        let last = linear_at(weights, &spans.output);
        match &mut integers {
            Some(integers) => integers.output(inner, slope, self.config.family.feed_forward, last, &mut output),
            None => linear::forward(compute, last, inner, &mut output),
        }
        if let Some(dropout) = self.dropout(batch, mode, Place::Output(layer)) {
            dropout.apply(compute, &mut output);
        }
        compute.add_scaled(1.0, &saved_middle.sum, &mut output);
        hidden[to] = output;
    }

    /// From the gradient of a layer's output in `d_hidden` to that of its input, in the same place. The residual's gradient
    /// stays there; each sublayer adds its own.
    pub(super) fn norm_before_backward(
        &self,
        given: Given<'_>,
        layer: usize,
        buffers: &mut BackwardBuffers,
        gradients: &mut [f32],
    ) {
        self.gated_sublayer_backward(given, layer, buffers, gradients);
        self.attention_sublayer_backward(given, layer, buffers, gradients);
    }

    fn gated_sublayer_backward(
        &self,
        given: Given<'_>,
        layer: usize,
        buffers: &mut BackwardBuffers,
        gradients: &mut [f32],
    ) {
        let Given { pass: Pass { compute, weights, batch, mode }, activations, .. } = given;
        let (spans, kept) = (&self.spans.layers[layer], &activations.layers[layer]);
        let BackwardBuffers { d_hidden, d_sum, d_dropped, d_middle, d_inner, d_gated, .. } = buffers;
        let d_output = dropout::backward(compute, self.dropout(batch, mode, Place::Output(layer)), d_hidden, d_dropped);
        team::add_linear(
            compute,
            batch,
            Rows::Tokens,
            (&kept.inner, d_output),
            linear_gradients(gradients, &spans.output),
        );
        linear::backward_input(compute, linear_at(weights, &spans.output), d_output, Start::ZERO, d_inner);
        if let Some(dropout) = self.dropout(batch, mode, Place::Inner(layer)) {
            dropout.apply(compute, d_inner);
        }
        let d_u = self.activation_backward(compute, &kept.slope, d_inner, d_gated);

        let span = &spans.intermediate;
        let params = kept.quantized.as_ref().map(|notes| notes.middle);
        let read = match params {
            None => &kept.middle[..],
            Some(params) => {
                quantize::forward(compute, params, &kept.middle, d_sum);
                &d_sum[..]
            }
        };
        team::add_linear(compute, batch, Rows::Tokens, (read, d_u), linear_gradients(gradients, span));
        linear::backward_input(compute, linear_at(weights, span), d_u, Start::ZERO, d_middle);
        if let Some(params) = params {
            quantize::backward(compute, params, &kept.middle, d_middle);
        }
        let norm = norm_gradients(gradients, &spans.output_norm);
        let gamma = &weights[spans.output_norm.gamma.clone()];
        team::norm_backward(compute, batch, Rows::Tokens, (gamma, &kept.output), (d_middle, d_sum), norm);
        compute.add_scaled(1.0, d_sum, d_hidden);
    }

    fn attention_sublayer_backward(
        &self,
        given: Given<'_>,
        layer: usize,
        buffers: &mut BackwardBuffers,
        gradients: &mut [f32],
    ) {
        let Given { pass: Pass { compute, weights, batch, mode }, activations, .. } = given;
        let (spans, kept) = (&self.spans.layers[layer], &activations.layers[layer]);
        let BackwardBuffers { d_hidden, d_sum, d_dropped, d_middle, d_qkv, scratch, .. } = buffers;
        let mask = self.dropout(batch, mode, Place::AttentionOutput(layer));
        let d_projected = dropout::backward(compute, mask, d_hidden, d_dropped);
        let span = &spans.attention_output;
        team::add_linear(compute, batch, Rows::Tokens, (&kept.context, d_projected), linear_gradients(gradients, span));
        linear::backward_input(compute, linear_at(weights, span), d_projected, Start::ZERO, d_sum);
        self.attention_core_backward(given, layer, batch, d_sum, scratch, d_qkv, gradients);

        let read = if spans.attention_norm.is_some() { &kept.read } else { &activations.hidden[layer] };
        let span = &spans.attention_inputs;
        let params = kept.quantized.as_ref().map(|notes| notes.input);
        let values = match params {
            None => &read[..],
            Some(params) => {
                quantize::forward(compute, params, read, d_sum);
                &d_sum[..]
            }
        };
        team::add_linear(compute, batch, Rows::Tokens, (values, d_qkv), linear_gradients(gradients, span));
        linear::backward_input(compute, linear_at(weights, span), d_qkv, Start::ZERO, d_middle);
        if let Some(params) = params {
            quantize::backward(compute, params, read, d_middle);
        }
        match &spans.attention_norm {
            None => compute.add_scaled(1.0, d_middle, d_hidden),
            Some(span) => {
                let (norm, gamma) = (norm_gradients(gradients, span), &weights[span.gamma.clone()]);
                team::norm_backward(compute, batch, Rows::Tokens, (gamma, &kept.attention), (d_middle, d_sum), norm);
                compute.add_scaled(1.0, d_sum, d_hidden);
            }
        }
    }
}
