//! Tangents of layers whose sublayers begin with a norm, moving or not. What the buffers hold is said in
//! [`LayerGradients`](super::buffers::LayerGradients) for layers that end in norms; here `attention_sum` is of the layer's input
//! (and, among gradients, of what the attention reads), and `output_sum` of the residual stream between the sublayers.

use qbert_kernels::{Compute, Start, Turn};
use qbert_model::family::NormPlacement;

use super::buffers::{BackwardTangents, LayerTangents};
use super::forward::norm_direction;
use super::{HessianPass, Moved, Point, dual};
use crate::bert::backward::{linear_gradients, norm_gradients};
use crate::bert::forward::linear_at;
use crate::bert::{Activations, Bert, LayerSpans, LinearSpan};
use crate::ops::attention::{self, ForwardTangent};
use crate::ops::linear::{self, Linear};
use crate::ops::residual_norm::{self, OwnDirection};

impl Bert {
    /// Turns the tangents of queries and keys, or those of their gradients back.
    pub(in crate::bert) fn rotate_tangent(
        &self,
        compute: &Compute,
        activations: &Activations,
        layer: usize,
        turn: Turn,
        qkv: &mut [f32],
    ) {
        let rotary = self.rotary_of(&activations.rotary, layer);
        self.rotate(compute, rotary, turn, &activations.position_rows, qkv);
    }
}

/// `y = ẋ·Wᵀ`, and where the layer itself moves, `+ x·Ẇᵀ + ḃ`.
fn product(compute: &Compute, linear: Linear<'_>, turned: Option<Linear<'_>>, x: (&[f32], &[f32]), y: &mut [f32]) {
    let (value, tangent) = x;
    match turned {
        None => linear::forward_tangent(compute, linear, tangent, Start::ZERO, y),
        Some(turned) => {
            linear::forward(compute, turned, value, y);
            linear::forward_tangent(compute, linear, tangent, Start::ACCUMULATE, y);
        }
    }
}

impl HessianPass {
    /// The layer that moves: every parameter has a direction, and its input is fixed, unless layers below have the same
    /// weights.
    pub(super) fn own_forward(&mut self, point: Point<'_>, moved: &Moved<'_>) {
        match point.bert.config().family.norm_placement {
            NormPlacement::AfterResidual => self.own_forward_after(point, moved),
            NormPlacement::BeforeSublayer => {
                if moved.before == 0 {
                    self.hidden.fill(0.0);
                }
                self.before_forward(point, moved.layer, Some(moved));
            }
        }
    }

    /// A layer above: its input moves, its parameters are fixed.
    pub(super) fn passing_forward(&mut self, point: Point<'_>, layer: usize) {
        match point.bert.config().family.norm_placement {
            NormPlacement::AfterResidual => self.passing_forward_after(point, layer),
            NormPlacement::BeforeSublayer => self.before_forward(point, layer, None),
        }
    }

    /// The layer that moves: also takes the directions of its own parameters. The tangents of their gradients are the
    /// product.
    pub(super) fn own_backward(&mut self, point: Point<'_>, moved: &mut Moved<'_>) {
        match point.bert.config().family.norm_placement {
            NormPlacement::AfterResidual => self.own_backward_after(point, moved),
            NormPlacement::BeforeSublayer => self.before_backward(point, moved.layer, Some(moved)),
        }
    }

    /// A layer above the one that moves: from the tangent of its output's gradient to that of its input's, in place.
    pub(super) fn passing_backward(&mut self, point: Point<'_>, layer: usize) {
        match point.bert.config().family.norm_placement {
            NormPlacement::AfterResidual => self.passing_backward_after(point, layer),
            NormPlacement::BeforeSublayer => self.before_backward(point, layer, None),
        }
    }

    fn before_forward(&mut self, point: Point<'_>, layer: usize, moved: Option<&Moved<'_>>) {
        let Point { bert, compute, weights, batch } = point;
        let spans = &bert.spans.layers[layer];
        let (kept, hidden) = (&self.activations.layers[layer], &mut self.hidden);
        let LayerTangents { qkv, probabilities, attention_sum, pre_activation, output_sum } = &mut self.tangents[layer];
        let own = match moved {
            Some(moved) => &mut self.own[moved.before],
            None => &mut self.passing,
        };
        let turned =
            |span: fn(&LayerSpans) -> &LinearSpan| moved.map(|moved| linear_at(moved.direction, span(&moved.spans)));

        attention_sum.copy_from_slice(hidden);
        let read = match &spans.attention_norm {
            None => {
                own.input.copy_from_slice(hidden);
                &self.activations.hidden[layer]
            }
            Some(span) => {
                let gamma = &weights[span.gamma.clone()];
                let norm = moved.and_then(|moved| {
                    moved.spans.attention_norm.as_ref().map(|span| norm_direction(moved.direction, span))
                });
                residual_norm::forward_tangent(compute, gamma, norm, &kept.attention, attention_sum, &mut own.input);
                &kept.read
            }
        };
        let inputs = linear_at(weights, &spans.attention_inputs);
        product(compute, inputs, turned(|spans| &spans.attention_inputs), (read, &own.input), qkv);
        bert.rotate_tangent(compute, &self.activations, layer, Turn::Forward, qkv);
        let buffers = ForwardTangent {
            probabilities: &kept.probabilities,
            probabilities_tangent: probabilities,
            context_tangent: &mut own.context,
            bias: self.activations.bias.as_ref(),
        };
        attention::forward_tangent(compute, bert.heads(layer), batch, dual(&kept.qkv, qkv), buffers);

        let projection = linear_at(weights, &spans.attention_output);
        let turned_projection = turned(|spans| &spans.attention_output);
        product(compute, projection, turned_projection, (&kept.context, &own.context), output_sum);
        compute.add_scaled(1.0, hidden, output_sum);
        let gamma = &weights[spans.output_norm.gamma.clone()];
        let norm = moved.map(|moved| norm_direction(moved.direction, &moved.spans.output_norm));
        residual_norm::forward_tangent(compute, gamma, norm, &kept.output, output_sum, &mut own.middle);

        let intermediate = linear_at(weights, &spans.intermediate);
        let turned_intermediate = turned(|spans| &spans.intermediate);
        product(compute, intermediate, turned_intermediate, (&kept.middle, &own.middle), pre_activation);
        bert.activation_forward_tangent(compute, &kept.slope, pre_activation, &mut own.inner);
        let output = linear_at(weights, &spans.output);
        product(compute, output, turned(|spans| &spans.output), (&kept.inner, &own.inner), hidden);
        compute.add_scaled(1.0, output_sum, hidden);
    }

    fn before_backward(&mut self, point: Point<'_>, layer: usize, mut moved: Option<&mut Moved<'_>>) {
        self.before_feed_forward_backward(point, layer, moved.as_deref_mut());
        let Point { bert, compute, weights, .. } = point;
        let spans = &bert.spans.layers[layer];
        // `hidden` has become the tangent of the gradient between the sublayers.
        let Self { activations, gradients, backward, .. } = self;
        let (kept, d) = (&activations.layers[layer], &gradients[layer]);
        let BackwardTangents { hidden, context, .. } = backward;
        let d_sum = dual(&d.output_sum, hidden);
        let turned = match &mut moved {
            None => None,
            Some(moved) => {
                let target = linear_gradients(moved.product, &moved.spans.attention_output);
                let read = dual(&kept.context, &self.own[moved.before].context);
                linear::backward_parameters_tangent(compute, read, d_sum, target);
                Some(linear_at(moved.direction, &moved.spans.attention_output))
            }
        };
        let projection = linear_at(weights, &spans.attention_output);
        linear::backward_input_tangent(compute, projection, turned, d_sum, Start::ZERO, context);

        self.attention_backward(point, layer);
        let Self { activations, gradients, tangents, backward, own, .. } = self;
        let (kept, d, moving) = (&activations.layers[layer], &gradients[layer], &tangents[layer]);
        let BackwardTangents { hidden, sum, middle, qkv, norm_scratch, .. } = backward;
        let d_qkv = dual(&d.qkv, qkv);
        let turned = match &mut moved {
            None => None,
            Some(moved) => {
                let target = linear_gradients(moved.product, &moved.spans.attention_inputs);
                let read = if spans.attention_norm.is_some() { &kept.read } else { &activations.hidden[layer] };
                let read = dual(read, &own[moved.before].input);
                linear::backward_parameters_tangent(compute, read, d_qkv, target);
                Some(linear_at(moved.direction, &moved.spans.attention_inputs))
            }
        };
        let inputs = linear_at(weights, &spans.attention_inputs);
        linear::backward_input_tangent(compute, inputs, turned, d_qkv, Start::ZERO, middle);
        let Some(span) = &spans.attention_norm else {
            return compute.add_scaled(1.0, middle, hidden);
        };
        let (gamma, norm) = (&weights[span.gamma.clone()], kept.attention.moving(&moving.attention_sum));
        let d_read = dual(&d.attention_sum, middle);
        residual_norm::backward_tangent(compute, gamma, norm, d_read, sum);
        if let Some(moved) = moved
            && let Some(span) = &moved.spans.attention_norm
        {
            let turned = OwnDirection { gamma: &moved.direction[span.gamma.clone()], scratch: norm_scratch };
            let target = norm_gradients(moved.product, span);
            residual_norm::own_backward_tangent(compute, turned, norm, d_read, sum, target);
        }
        compute.add_scaled(1.0, sum, hidden);
    }

    /// From the layer's output to the residual stream between its sublayers.
    fn before_feed_forward_backward(&mut self, point: Point<'_>, layer: usize, mut moved: Option<&mut Moved<'_>>) {
        let Point { bert, compute, weights, .. } = point;
        let spans = &bert.spans.layers[layer];
        let Self { activations, gradients, tangents, backward, own, .. } = self;
        let (kept, d, moving) = (&activations.layers[layer], &gradients[layer], &tangents[layer]);
        let BackwardTangents { hidden, sum, middle, inner, pre_activation, norm_scratch, .. } = backward;

        let d_output = dual(&d.output, hidden);
        let turned = match &mut moved {
            None => None,
            Some(moved) => {
                let target = linear_gradients(moved.product, &moved.spans.output);
                let read = dual(&kept.inner, &own[moved.before].inner);
                linear::backward_parameters_tangent(compute, read, d_output, target);
                Some(linear_at(moved.direction, &moved.spans.output))
            }
        };
        let output = linear_at(weights, &spans.output);
        linear::backward_input_tangent(compute, output, turned, d_output, Start::ZERO, inner);

        let u = dual(&kept.pre_activation, &moving.pre_activation);
        bert.activation_backward_tangent(compute, u, dual(&d.inner, inner), pre_activation);
        let d_u = dual(&d.pre_activation, pre_activation);
        let turned = match &mut moved {
            None => None,
            Some(moved) => {
                let target = linear_gradients(moved.product, &moved.spans.intermediate);
                let read = dual(&kept.middle, &own[moved.before].middle);
                linear::backward_parameters_tangent(compute, read, d_u, target);
                Some(linear_at(moved.direction, &moved.spans.intermediate))
            }
        };
        let intermediate = linear_at(weights, &spans.intermediate);
        linear::backward_input_tangent(compute, intermediate, turned, d_u, Start::ZERO, middle);

        let gamma = &weights[spans.output_norm.gamma.clone()];
        let (norm, d_middle) = (kept.output.moving(&moving.output_sum), dual(&d.middle, middle));
        residual_norm::backward_tangent(compute, gamma, norm, d_middle, sum);
        if let Some(moved) = moved {
            let span = &moved.spans.output_norm;
            let turned = OwnDirection { gamma: &moved.direction[span.gamma.clone()], scratch: norm_scratch };
            let target = norm_gradients(moved.product, span);
            residual_norm::own_backward_tangent(compute, turned, norm, d_middle, sum, target);
        }
        compute.add_scaled(1.0, sum, hidden);
    }
}
