//! Forward tangents: through the layer that moves, and through the layers above it, which only pass a tangent on.

use qbert_kernels::{Start, Turn};

use super::buffers::{LayerTangents, OwnTangents};
use super::{HessianPass, Moved, Point, dual};
use crate::bert::NormSpan;
use crate::bert::forward::linear_at;
use crate::ops::attention::{self, ForwardTangent};
use crate::ops::residual_norm::Direction;
use crate::ops::{linear, residual_norm};

pub(super) fn norm_direction<'a>(direction: &'a [f32], span: &NormSpan) -> Direction<'a> {
    Direction { gamma: &direction[span.gamma.clone()], beta: &direction[span.beta.clone()] }
}

impl HessianPass {
    /// The layer that moves: every parameter has a direction, and its input is fixed, unless layers below have the same
    /// weights.
    pub(super) fn own_forward_after(&mut self, point: Point<'_>, moved: &Moved<'_>) {
        let Point { bert, compute, weights, batch } = point;
        let Moved { layer, before, spans: own, direction, .. } = moved;
        let moves = *before > 0;
        let spans = &bert.spans.layers[*layer];
        let (kept, input) = (&self.activations.layers[*layer], &self.activations.hidden[*layer]);
        let LayerTangents { qkv, probabilities, attention_sum, pre_activation, output_sum } =
            &mut self.tangents[*layer];
        let OwnTangents { input: input_tangent, context, middle, inner } = &mut self.own[*before];

        linear::forward(compute, linear_at(direction, &own.attention_inputs), input, qkv);
        if moves {
            input_tangent.copy_from_slice(&self.hidden);
            let inputs = linear_at(weights, &spans.attention_inputs);
            linear::forward_tangent(compute, inputs, input_tangent, Start::ACCUMULATE, qkv);
        }
        bert.rotate_tangent(compute, &self.activations, *layer, Turn::Forward, qkv);
        let buffers = ForwardTangent {
            probabilities: &kept.probabilities,
            probabilities_tangent: probabilities,
            context_tangent: context,
            bias: self.activations.bias.as_ref(),
        };
        attention::forward_tangent(compute, bert.heads(*layer), batch, dual(&kept.qkv, qkv), buffers);

        linear::forward(compute, linear_at(direction, &own.attention_output), &kept.context, attention_sum);
        let projection = linear_at(weights, &spans.attention_output);
        linear::forward_tangent(compute, projection, context, Start::ACCUMULATE, attention_sum);
        if moves {
            compute.add_scaled(1.0, input_tangent, attention_sum);
        }
        if let (Some(span), Some(own)) = (&spans.attention_norm, &own.attention_norm) {
            let (gamma, norm) = (&weights[span.gamma.clone()], Some(norm_direction(direction, own)));
            residual_norm::forward_tangent(compute, gamma, norm, &kept.attention, attention_sum, middle);
        }

        linear::forward(compute, linear_at(direction, &own.intermediate), &kept.middle, pre_activation);
        let intermediate = linear_at(weights, &spans.intermediate);
        linear::forward_tangent(compute, intermediate, middle, Start::ACCUMULATE, pre_activation);
        bert.activation_forward_tangent(compute, &kept.slope, pre_activation, inner);

        linear::forward(compute, linear_at(direction, &own.output), &kept.inner, output_sum);
        linear::forward_tangent(compute, linear_at(weights, &spans.output), inner, Start::ACCUMULATE, output_sum);
        compute.add_scaled(1.0, middle, output_sum);
        let gamma = &weights[spans.output_norm.gamma.clone()];
        let norm = Some(norm_direction(direction, &own.output_norm));
        residual_norm::forward_tangent(compute, gamma, norm, &kept.output, output_sum, &mut self.hidden);
    }

    /// A layer above: its input moves, its parameters are fixed.
    pub(super) fn passing_forward_after(&mut self, point: Point<'_>, layer: usize) {
        let Point { bert, compute, weights, batch } = point;
        let spans = &bert.spans.layers[layer];
        let (kept, hidden) = (&self.activations.layers[layer], &mut self.hidden);
        let LayerTangents { qkv, probabilities, attention_sum, pre_activation, output_sum } = &mut self.tangents[layer];
        let OwnTangents { context, middle, inner, .. } = &mut self.passing;

        linear::forward_tangent(compute, linear_at(weights, &spans.attention_inputs), hidden, Start::ZERO, qkv);
        bert.rotate_tangent(compute, &self.activations, layer, Turn::Forward, qkv);
        let buffers = ForwardTangent {
            probabilities: &kept.probabilities,
            probabilities_tangent: probabilities,
            context_tangent: context,
            bias: self.activations.bias.as_ref(),
        };
        attention::forward_tangent(compute, bert.heads(layer), batch, dual(&kept.qkv, qkv), buffers);

        // The residual's tangent first; the products are added to it.
        attention_sum.copy_from_slice(hidden);
        let projection = linear_at(weights, &spans.attention_output);
        linear::forward_tangent(compute, projection, context, Start::ACCUMULATE, attention_sum);
        if let Some(span) = &spans.attention_norm {
            let gamma = &weights[span.gamma.clone()];
            residual_norm::forward_tangent(compute, gamma, None, &kept.attention, attention_sum, middle);
        }

        let intermediate = linear_at(weights, &spans.intermediate);
        linear::forward_tangent(compute, intermediate, middle, Start::ZERO, pre_activation);
        bert.activation_forward_tangent(compute, &kept.slope, pre_activation, inner);

        output_sum.copy_from_slice(middle);
        linear::forward_tangent(compute, linear_at(weights, &spans.output), inner, Start::ACCUMULATE, output_sum);
        let gamma = &weights[spans.output_norm.gamma.clone()];
        residual_norm::forward_tangent(compute, gamma, None, &kept.output, output_sum, hidden);
    }
}
