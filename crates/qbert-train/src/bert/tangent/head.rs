//! Pooler and head: their gradients, and the tangents from the encoder's output up to the loss and back.

use qbert_kernels::Start;

use super::buffers::{BackwardTangents, Head};
use super::{HessianPass, Point, dual};
use crate::bert::forward::linear_at;
use crate::bert::{LinearSpan, Mode};
use crate::ops::loss::{Loss, cross_entropy, cross_entropy_tangent};
use crate::ops::pooler::{Pooler, Saved};
use crate::ops::{linear, residual_norm};

/// The pooler, where the head reads it.
fn pooler_of(point: Point<'_>) -> Option<Pooler<'_>> {
    let pooler = point.bert.pooler(point.compute, point.weights, point.batch, Mode::Evaluate);
    pooler.filter(|_| point.bert.layout.head_class().reads_pooler())
}

impl HessianPass {
    /// From the logits to the loss and back to the gradient of the encoder's output.
    pub(super) fn head_gradients(&mut self, point: Point<'_>) -> Loss {
        let Point { bert, compute, weights, batch } = point;
        let Head { logits, d_input, scratch, .. } = &mut self.head;
        logits.copy_from_slice(&self.activations.logits);
        let loss = cross_entropy(logits, batch, bert.outputs, self.scale);
        let d_output = &mut self.gradients[bert.config.layers - 1].output;
        match (&bert.spans.head, bert.sentence_vector(batch)) {
            (Some(head), _) => {
                linear::backward_input(compute, linear_at(weights, head), logits, Start::ZERO, d_input);
                match pooler_of(point) {
                    Some(pooler) => pooler.backward_input(Saved::of(&self.activations), d_input, scratch, d_output),
                    None => d_output.copy_from_slice(d_input),
                }
            }
            (None, Some(vectors)) => vectors.backward(self.activations.last_hidden(&bert.config), logits, d_output),
            (None, None) => d_output.fill(0.0),
        }
        if let Some(span) = &bert.spans.final_norm {
            let (gamma, d_encoded) = (&weights[span.gamma.clone()], &mut self.d_encoded);
            d_encoded.copy_from_slice(d_output);
            residual_norm::backward_input(compute, gamma, &self.activations.final_norm, d_encoded, d_output);
        }
        loss
    }

    /// From the tangent of the encoder's output to the tangent of its gradient.
    pub(super) fn head_tangents(&mut self, point: Point<'_>) {
        let Point { bert, compute, weights, .. } = point;
        match &bert.spans.final_norm {
            None => self.encoded.copy_from_slice(&self.hidden),
            Some(span) => {
                let (gamma, norm) = (&weights[span.gamma.clone()], &self.activations.final_norm);
                residual_norm::forward_tangent(compute, gamma, None, norm, &self.hidden, &mut self.encoded);
            }
        }
        match &bert.spans.head {
            Some(span) => self.score_tangents(point, span),
            None => self.vector_tangents(point),
        }
        if let Some(span) = &bert.spans.final_norm {
            let BackwardTangents { hidden, sum, .. } = &mut self.backward;
            let (gamma, norm) = (&weights[span.gamma.clone()], self.activations.final_norm.moving(&self.hidden));
            sum.copy_from_slice(hidden);
            residual_norm::backward_tangent(compute, gamma, norm, dual(&self.d_encoded, sum), hidden);
        }
    }

    /// From the tangent of what the head reads, or its pooler, to the tangent of its gradient.
    fn score_tangents(&mut self, point: Point<'_>, span: &LinearSpan) {
        let Point { bert, compute, weights, batch } = point;
        let Head { logits, d_input, pooled_tangent, d_input_tangent, scratch } = &mut self.head;
        let (activations, encoded) = (&self.activations, &self.encoded);
        let head = linear_at(weights, span);
        let pooler = pooler_of(point);
        let input_tangent = match pooler {
            Some(pooler) => {
                pooler.forward_tangent(encoded, Saved::of(activations), scratch, pooled_tangent);
                &*pooled_tangent
            }
            None => encoded,
        };
        linear::forward_tangent(compute, head, input_tangent, Start::ZERO, logits);
        cross_entropy_tangent(&activations.logits, logits, batch, bert.outputs, self.scale);
        linear::backward_input(compute, head, logits, Start::ZERO, d_input_tangent);
        let d_output = &mut self.backward.hidden;
        match pooler {
            Some(pooler) => {
                let d_pooled = dual(d_input, d_input_tangent);
                pooler.backward_tangent(Saved::of(activations), d_pooled, scratch, d_output);
            }
            None => d_output.copy_from_slice(d_input_tangent),
        }
    }

    /// The same without a head, where the outputs are the vectors of texts.
    fn vector_tangents(&mut self, point: Point<'_>) {
        let Point { bert, batch, .. } = point;
        let (activations, d_output) = (&self.activations, &mut self.backward.hidden);
        let Some(vectors) = bert.sentence_vector(batch) else {
            d_output.fill(0.0);
            return;
        };
        let encoded = dual(activations.last_hidden(&bert.config), &self.encoded);
        let logits = &mut self.head.logits;
        vectors.forward_tangent(encoded, logits);
        cross_entropy_tangent(&activations.logits, logits, batch, bert.outputs, self.scale);
        // The gradient of the vectors is zero, because they are compared with themselves.
        let zero = vec![0.0; logits.len()];
        vectors.backward_tangent(encoded, dual(&zero, logits), d_output);
    }
}
