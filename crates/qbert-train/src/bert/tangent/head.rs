//! Pooler and head: their gradients, and the tangents from the encoder's output up to the loss and back.

use qbert_kernels::Start;

use super::buffers::Head;
use super::{HessianPass, Point, dual};
use crate::bert::forward::linear_at;
use crate::bert::{Activations, Mode};
use crate::ops::linear;
use crate::ops::loss::{Loss, cross_entropy, cross_entropy_tangent};
use crate::ops::pooler::{Pooler, Saved};

/// The pooler, where the head reads it.
fn pooler_of(point: Point<'_>) -> Option<Pooler<'_>> {
    let pooler = point.bert.pooler(point.compute, point.weights, point.batch, Mode::Evaluate);
    pooler.filter(|_| point.bert.layout.head_class().reads_pooler())
}

/// What the pooler's forward pass left behind.
fn saved(activations: &Activations) -> Saved<'_> {
    Saved { first: &activations.first_tokens, pooled: &activations.pooled, activation: &activations.pooler_activation }
}

impl HessianPass {
    /// From the logits to the loss and back to the gradient of the encoder's output.
    pub(super) fn head_gradients(&mut self, point: Point<'_>) -> Loss {
        let Point { bert, compute, weights, batch } = point;
        let Head { logits, d_input, scratch, .. } = &mut self.head;
        logits.copy_from_slice(&self.activations.logits);
        let loss = cross_entropy(logits, batch, bert.outputs, self.scale);
        let d_output = &mut self.gradients[bert.config.layers - 1].output;
        let Some(head) = &bert.spans.head else {
            match bert.sentence_vector(batch) {
                Some(vectors) => vectors.backward(&self.activations.hidden[bert.config.layers], logits, d_output),
                None => d_output.fill(0.0),
            }
            return loss;
        };
        linear::backward_input(compute, linear_at(weights, head), logits, Start::ZERO, d_input);
        match pooler_of(point) {
            Some(pooler) => pooler.backward_input(saved(&self.activations), d_input, scratch, d_output),
            None => d_output.copy_from_slice(d_input),
        }
        loss
    }

    /// From the tangent of the encoder's output to the tangent of its gradient.
    pub(super) fn head_tangents(&mut self, point: Point<'_>) {
        let Point { bert, compute, weights, batch } = point;
        let Some(span) = &bert.spans.head else {
            return self.vector_tangents(point);
        };
        let Head { logits, d_input, pooled_tangent, d_input_tangent, scratch } = &mut self.head;
        let (activations, encoded) = (&self.activations, &self.hidden);
        let head = linear_at(weights, span);
        let pooler = pooler_of(point);
        let input_tangent = match pooler {
            Some(pooler) => {
                pooler.forward_tangent(encoded, saved(activations), scratch, pooled_tangent);
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
                pooler.backward_tangent(saved(activations), pooled_tangent, d_pooled, scratch, d_output);
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
        let encoded = dual(&activations.hidden[bert.config.layers], &self.hidden);
        let logits = &mut self.head.logits;
        vectors.forward_tangent(encoded, logits);
        cross_entropy_tangent(&activations.logits, logits, batch, bert.outputs, self.scale);
        // The gradient of the vectors is zero, because they are compared with themselves.
        let zero = vec![0.0; logits.len()];
        vectors.backward_tangent(encoded, dual(&zero, logits), d_output);
    }
}
