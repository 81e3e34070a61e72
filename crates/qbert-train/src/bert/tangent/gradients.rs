//! The ordinary backward pass of a Hessian-vector product: it keeps the gradients of activations and skips those of
//! parameters, which no tangent needs.

use qbert_kernels::{Start, Turn};
use qbert_model::family::{FeedForward, NormPlacement};

use super::buffers::{BackwardTangents, LayerGradients};
use super::{HessianPass, Point};
use crate::bert::forward::linear_at;
use crate::bert::{Activations, LayerActivations};
use crate::ops::loss::Loss;
use crate::ops::{activation, attention, gated, linear, residual_norm};

impl HessianPass {
    /// From the logits of the forward pass down to the lowest layer.
    pub(super) fn backpropagate(&mut self, point: Point<'_>) -> Loss {
        let loss = self.head_gradients(point);
        let Self { activations, gradients, backward, lowest, .. } = self;
        for layer in (*lowest..point.bert.config().layers).rev() {
            let (below, own) = gradients.split_at_mut(layer);
            let own = &mut own[0];
            let input = if layer > *lowest { below.last_mut().map(|below| &mut below.output) } else { None };
            match point.bert.config.family.norm_placement {
                NormPlacement::AfterResidual => {
                    after_gradients(point, layer, activations, own, &mut backward.scratch);
                    if let Some(input) = input {
                        input.copy_from_slice(&own.attention_sum);
                        let inputs = linear_at(point.weights, &point.bert.spans.layers[layer].attention_inputs);
                        linear::backward_input(point.compute, inputs, &own.qkv, Start::ACCUMULATE, input);
                    }
                }
                NormPlacement::BeforeSublayer => {
                    before_gradients(point, layer, activations, own, backward);
                    if let Some(input) = input {
                        input.copy_from_slice(&backward.hidden);
                    }
                }
            }
        }
        loss
    }
}

/// From the gradient of a layer's output to that of query, key and value.
fn after_gradients(
    point: Point<'_>,
    layer: usize,
    activations: &Activations,
    d: &mut LayerGradients,
    scratch: &mut [f32],
) {
    let Point { bert, compute, weights, .. } = point;
    let (spans, kept) = (&bert.spans.layers[layer], &activations.layers[layer]);
    // y = LayerNorm(W₂·inner + b₂ + middle)
    let gamma = &weights[spans.output_norm.gamma.clone()];
    residual_norm::backward_input(compute, gamma, &kept.output, &d.output, &mut d.output_sum);
    let output = linear_at(weights, &spans.output);
    linear::backward_input(compute, output, &d.output_sum, Start::ZERO, &mut d.inner);

    // inner = activation(W₁·middle + b₁)
    activation_gradients(point, kept, d);
    d.middle.copy_from_slice(&d.output_sum);
    let intermediate = linear_at(weights, &spans.intermediate);
    linear::backward_input(compute, intermediate, &d.pre_activation, Start::ACCUMULATE, &mut d.middle);

    // middle = LayerNorm(W_o·context + b_o + input)
    if let Some(span) = &spans.attention_norm {
        let gamma = &weights[span.gamma.clone()];
        residual_norm::backward_input(compute, gamma, &kept.attention, &d.middle, &mut d.attention_sum);
    }
    let projection = linear_at(weights, &spans.attention_output);
    linear::backward_input(compute, projection, &d.attention_sum, Start::ZERO, &mut d.context);

    attention_gradients(point, layer, activations, d, scratch);
}

/// From the gradient of the activation's output to that of its input.
fn activation_gradients(point: Point<'_>, kept: &LayerActivations, d: &mut LayerGradients) {
    match point.bert.config.family.feed_forward {
        FeedForward::Plain => {
            d.pre_activation.copy_from_slice(&d.inner);
            activation::backward(point.compute, &kept.slope, &mut d.pre_activation);
        }
        FeedForward::Gated => {
            let width = point.bert.config.intermediate_size;
            gated::backward(point.compute, width, &kept.slope, &d.inner, &mut d.pre_activation);
        }
    }
}

/// `context = attention(W_qkv·input + b_qkv)`: from the gradient of the context to that of the product.
fn attention_gradients(
    point: Point<'_>,
    layer: usize,
    activations: &Activations,
    d: &mut LayerGradients,
    scratch: &mut [f32],
) {
    let Point { bert, compute, batch, .. } = point;
    let kept = &activations.layers[layer];
    let buffers = attention::BackwardBuffers {
        qkv: &kept.qkv,
        probabilities: &kept.probabilities,
        d_context: &d.context,
        scratch,
        d_qkv: &mut d.qkv,
        d_bias: None,
    };
    let treatment = attention::Treatment { bias: activations.bias.as_ref(), ..attention::Treatment::default() };
    attention::backward_with(compute, bert.heads(layer), batch, treatment, buffers);
    bert.rotate_tangent(compute, activations, layer, Turn::Back, &mut d.qkv);
}

/// The same of a layer whose sublayers begin with a norm; the gradient of its input goes to `backward.hidden`.
fn before_gradients(
    point: Point<'_>,
    layer: usize,
    activations: &Activations,
    d: &mut LayerGradients,
    backward: &mut BackwardTangents,
) {
    let Point { bert, compute, weights, .. } = point;
    let (spans, kept) = (&bert.spans.layers[layer], &activations.layers[layer]);
    // y = m + W₂·inner + b₂
    linear::backward_input(compute, linear_at(weights, &spans.output), &d.output, Start::ZERO, &mut d.inner);
    activation_gradients(point, kept, d);
    let intermediate = linear_at(weights, &spans.intermediate);
    linear::backward_input(compute, intermediate, &d.pre_activation, Start::ZERO, &mut d.middle);
    let gamma = &weights[spans.output_norm.gamma.clone()];
    residual_norm::backward_input(compute, gamma, &kept.output, &d.middle, &mut d.output_sum);
    compute.add_scaled(1.0, &d.output, &mut d.output_sum);
    // m = x + W_o·context + b_o
    let projection = linear_at(weights, &spans.attention_output);
    linear::backward_input(compute, projection, &d.output_sum, Start::ZERO, &mut d.context);
    attention_gradients(point, layer, activations, d, &mut backward.scratch);
    let inputs = linear_at(weights, &spans.attention_inputs);
    linear::backward_input(compute, inputs, &d.qkv, Start::ZERO, &mut d.attention_sum);
    match &spans.attention_norm {
        None => backward.hidden.copy_from_slice(&d.attention_sum),
        Some(span) => {
            let gamma = &weights[span.gamma.clone()];
            residual_norm::backward_input(compute, gamma, &kept.attention, &d.attention_sum, &mut backward.hidden);
        }
    }
    compute.add_scaled(1.0, &d.output_sum, &mut backward.hidden);
}
