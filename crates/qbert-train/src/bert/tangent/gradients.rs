//! The ordinary backward pass of a Hessian-vector product: it keeps the gradients of activations and skips those of
//! parameters, which no tangent needs.

use qbert_kernels::Start;

use super::buffers::LayerGradients;
use super::{HessianPass, Point};
use crate::bert::LayerActivations;
use crate::bert::forward::linear_at;
use crate::ops::loss::Loss;
use crate::ops::{activation, attention, linear, residual_norm};

impl HessianPass {
    /// From the logits of the forward pass down to the lowest layer.
    pub(super) fn backpropagate(&mut self, point: Point<'_>) -> Loss {
        let loss = self.head_gradients(point);
        let Self { activations, gradients, backward, lowest, .. } = self;
        for layer in (*lowest..point.bert.config().layers).rev() {
            let (below, own) = gradients.split_at_mut(layer);
            let own = &mut own[0];
            layer_gradients(point, layer, &activations.layers[layer], own, &mut backward.scratch);
            if layer > *lowest {
                let input = &mut below[layer - 1].output;
                input.copy_from_slice(&own.attention_sum);
                let inputs = linear_at(point.weights, &point.bert.spans.layers[layer].attention_inputs);
                linear::backward_input(point.compute, inputs, &own.qkv, Start::ACCUMULATE, input);
            }
        }
        loss
    }
}

/// From the gradient of a layer's output to that of query, key and value.
fn layer_gradients(
    point: Point<'_>,
    layer: usize,
    kept: &LayerActivations,
    d: &mut LayerGradients,
    scratch: &mut [f32],
) {
    let Point { bert, compute, weights, batch } = point;
    let spans = &bert.spans.layers[layer];
    // y = LayerNorm(W₂·inner + b₂ + middle)
    let gamma = &weights[spans.output_norm.gamma.clone()];
    residual_norm::backward_input(compute, gamma, &kept.output, &d.output, &mut d.output_sum);
    let output = linear_at(weights, &spans.output);
    linear::backward_input(compute, output, &d.output_sum, Start::ZERO, &mut d.inner);

    // inner = activation(W₁·middle + b₁)
    d.pre_activation.copy_from_slice(&d.inner);
    activation::backward(compute, &kept.slope, &mut d.pre_activation);
    d.middle.copy_from_slice(&d.output_sum);
    let intermediate = linear_at(weights, &spans.intermediate);
    linear::backward_input(compute, intermediate, &d.pre_activation, Start::ACCUMULATE, &mut d.middle);

    // middle = LayerNorm(W_o·context + b_o + input)
    let gamma = &weights[spans.attention_norm.gamma.clone()];
    residual_norm::backward_input(compute, gamma, &kept.attention, &d.middle, &mut d.attention_sum);
    let projection = linear_at(weights, &spans.attention_output);
    linear::backward_input(compute, projection, &d.attention_sum, Start::ZERO, &mut d.context);

    // context = attention(W_qkv·input + b_qkv)
    let buffers = attention::BackwardBuffers {
        qkv: &kept.qkv,
        probabilities: &kept.probabilities,
        d_context: &d.context,
        scratch,
        d_qkv: &mut d.qkv,
        d_bias: None,
    };
    attention::backward(compute, bert.heads(), batch, None, buffers);
}
