//! Backward tangents: how the gradients of a layer change, from the loss down to the layer that moves.

use qbert_kernels::{Start, Turn};

use super::buffers::BackwardTangents;
use super::{HessianPass, Moved, Point, dual};
use crate::bert::backward::{linear_gradients, norm_gradients};
use crate::bert::forward::linear_at;
use crate::ops::attention::{self, BackwardTangent};
use crate::ops::residual_norm::OwnDirection;
use crate::ops::{linear, residual_norm};

impl HessianPass {
    /// A layer above the one that moves: from the tangent of its output's gradient to that of its input's, in place.
    pub(super) fn passing_backward_after(&mut self, point: Point<'_>, layer: usize) {
        let Point { bert, compute, weights, .. } = point;
        let spans = &bert.spans.layers[layer];
        let Self { activations, gradients, tangents, backward, .. } = self;
        let (kept, d, moving) = (&activations.layers[layer], &gradients[layer], &tangents[layer]);
        let BackwardTangents { hidden, sum, middle, inner, pre_activation, context, .. } = backward;

        let gamma = &weights[spans.output_norm.gamma.clone()];
        let norm = kept.output.moving(&moving.output_sum);
        residual_norm::backward_tangent(compute, gamma, norm, dual(&d.output, hidden), middle);
        linear::backward_input(compute, linear_at(weights, &spans.output), middle, Start::ZERO, inner);

        let u = dual(&kept.pre_activation, &moving.pre_activation);
        bert.activation_backward_tangent(compute, u, dual(&d.inner, inner), pre_activation);
        // `middle` holds the residual's part already.
        let intermediate = linear_at(weights, &spans.intermediate);
        linear::backward_input(compute, intermediate, pre_activation, Start::ACCUMULATE, middle);

        if let Some(span) = &spans.attention_norm {
            let (gamma, norm) = (&weights[span.gamma.clone()], kept.attention.moving(&moving.attention_sum));
            residual_norm::backward_tangent(compute, gamma, norm, dual(&d.middle, middle), sum);
        }
        linear::backward_input(compute, linear_at(weights, &spans.attention_output), sum, Start::ZERO, context);

        self.attention_backward(point, layer);
        let BackwardTangents { hidden, sum, qkv, .. } = &mut self.backward;
        hidden.copy_from_slice(sum);
        linear::backward_input(compute, linear_at(weights, &spans.attention_inputs), qkv, Start::ACCUMULATE, hidden);
    }

    /// From the tangent of the context's gradient to that of query, key and value.
    pub(super) fn attention_backward(&mut self, point: Point<'_>, layer: usize) {
        let (kept, moving) = (&self.activations.layers[layer], &self.tangents[layer]);
        let BackwardTangents { context, qkv, scratch, .. } = &mut self.backward;
        let buffers = BackwardTangent {
            qkv: dual(&kept.qkv, &moving.qkv),
            d_context: dual(&self.gradients[layer].context, context),
            probabilities: dual(&kept.probabilities, &moving.probabilities),
            bias: self.activations.bias.as_ref(),
            scratch,
            d_qkv_tangent: qkv,
        };
        attention::backward_tangent(point.compute, point.bert.heads(layer), point.batch, buffers);
        point.bert.rotate_tangent(point.compute, &self.activations, layer, Turn::Back, &mut self.backward.qkv);
    }

    /// The layer that moves: also takes the directions of its own parameters. The tangents of their gradients are the
    /// product; the gradient of the layer's input is needed only where layers below have the same weights.
    pub(super) fn own_backward_after(&mut self, point: Point<'_>, moved: &mut Moved<'_>) {
        self.own_feed_forward_backward(point, moved);
        self.own_attention_output_backward(point, moved);
        self.attention_backward(point, moved.layer);
        let Point { bert, compute, weights, .. } = point;
        let gradients = linear_gradients(moved.product, &moved.spans.attention_inputs);
        let input = &self.activations.hidden[moved.layer];
        let BackwardTangents { hidden, sum, qkv, .. } = &mut self.backward;
        if moved.before == 0 {
            // The input does not move, so the second term of the weight's product rule is zero.
            return linear::backward_parameters(compute, input, qkv, gradients);
        }
        let d_qkv = dual(&self.gradients[moved.layer].qkv, qkv);
        let input = dual(input, &self.own[moved.before].input);
        linear::backward_parameters_tangent(compute, input, d_qkv, gradients);
        hidden.copy_from_slice(sum);
        let inputs = linear_at(weights, &bert.spans.layers[moved.layer].attention_inputs);
        let turned = Some(linear_at(moved.direction, &moved.spans.attention_inputs));
        linear::backward_input_tangent(compute, inputs, turned, d_qkv, Start::ACCUMULATE, hidden);
    }

    /// From the layer's output to its middle.
    fn own_feed_forward_backward(&mut self, point: Point<'_>, moved: &mut Moved<'_>) {
        let Point { bert, compute, weights, .. } = point;
        let Moved { layer, before, spans: own, direction, product } = moved;
        let spans = &bert.spans.layers[*layer];
        let Self { activations, gradients, tangents, backward, own: read, .. } = self;
        let read = &read[*before];
        let (kept, d, moving) = (&activations.layers[*layer], &gradients[*layer], &tangents[*layer]);
        let BackwardTangents { hidden, middle, inner, pre_activation, norm_scratch, .. } = backward;

        let gamma = &weights[spans.output_norm.gamma.clone()];
        let (norm, d_output) = (kept.output.moving(&moving.output_sum), dual(&d.output, hidden));
        residual_norm::backward_tangent(compute, gamma, norm, d_output, middle);
        let turned = OwnDirection { gamma: &direction[own.output_norm.gamma.clone()], scratch: &mut *norm_scratch };
        let target = norm_gradients(product, &own.output_norm);
        residual_norm::own_backward_tangent(compute, turned, norm, d_output, middle, target);

        let d_sum = dual(&d.output_sum, middle);
        let target = linear_gradients(product, &own.output);
        linear::backward_parameters_tangent(compute, dual(&kept.inner, &read.inner), d_sum, target);
        let (output, turned) = (linear_at(weights, &spans.output), Some(linear_at(direction, &own.output)));
        linear::backward_input_tangent(compute, output, turned, d_sum, Start::ZERO, inner);

        let u = dual(&kept.pre_activation, &moving.pre_activation);
        bert.activation_backward_tangent(compute, u, dual(&d.inner, inner), pre_activation);
        let d_u = dual(&d.pre_activation, pre_activation);
        let target = linear_gradients(product, &own.intermediate);
        linear::backward_parameters_tangent(compute, dual(&kept.middle, &read.middle), d_u, target);
        let intermediate = linear_at(weights, &spans.intermediate);
        let turned = Some(linear_at(direction, &own.intermediate));
        linear::backward_input_tangent(compute, intermediate, turned, d_u, Start::ACCUMULATE, middle);
    }

    /// From the layer's middle to the context.
    fn own_attention_output_backward(&mut self, point: Point<'_>, moved: &mut Moved<'_>) {
        let Point { bert, compute, weights, .. } = point;
        let Moved { layer, before, spans: own, direction, product } = moved;
        let spans = &bert.spans.layers[*layer];
        let Self { activations, gradients, tangents, backward, own: read, .. } = self;
        let read = &read[*before];
        let (kept, d, moving) = (&activations.layers[*layer], &gradients[*layer], &tangents[*layer]);
        let BackwardTangents { sum, middle, context, norm_scratch, .. } = backward;

        if let (Some(span), Some(own)) = (&spans.attention_norm, &own.attention_norm) {
            let gamma = &weights[span.gamma.clone()];
            let (norm, d_middle) = (kept.attention.moving(&moving.attention_sum), dual(&d.middle, middle));
            residual_norm::backward_tangent(compute, gamma, norm, d_middle, sum);
            let turned = OwnDirection { gamma: &direction[own.gamma.clone()], scratch: &mut *norm_scratch };
            let target = norm_gradients(product, own);
            residual_norm::own_backward_tangent(compute, turned, norm, d_middle, sum, target);
        }

        let d_sum = dual(&d.attention_sum, sum);
        let target = linear_gradients(product, &own.attention_output);
        linear::backward_parameters_tangent(compute, dual(&kept.context, &read.context), d_sum, target);
        let projection = linear_at(weights, &spans.attention_output);
        let turned = Some(linear_at(direction, &own.attention_output));
        linear::backward_input_tangent(compute, projection, turned, d_sum, Start::ZERO, context);
    }
}
