//! Pooler and head, in f32.

use qbert_model::family::PoolerActivation;

use super::Encoder;
use super::floats::multiply;
use crate::state::{Shape, State, room};

impl Encoder {
    /// Pooler (first token → linear → activation) and head, from the last hidden state.
    pub(super) fn finish(&self, state: &mut State) {
        let State { hidden, first_tokens, pooled, logits, shape, offsets, .. } = state;
        let Shape { rows, width, .. } = *shape;
        let sequences = offsets.len() - 1;
        if let Some(pooler) = &self.weights.pooler {
            let first = room(first_tokens, sequences * width);
            for (sequence, first) in first.chunks_exact_mut(width).enumerate() {
                // Where only first tokens were computed, there is one row per sequence.
                let row = if rows == sequences { sequence } else { offsets[sequence] };
                first.copy_from_slice(&hidden[row * width..(row + 1) * width]);
            }
            let pooled = room(pooled, sequences * width);
            multiply(&self.compute, &pooler.weight, &pooler.bias, first, pooled);
            match self.model.layout().head_class().pooler.map(|pooler| pooler.activation) {
                Some(PoolerActivation::Tanh) => self.compute.kernels().tanh_in_place(pooled),
                // The first tokens are not needed any more, so their memory takes the values in front of it.
                Some(PoolerActivation::Of(activation)) => {
                    first.copy_from_slice(pooled);
                    self.compute.activate(activation, first, pooled);
                }
                None => {}
            }
            shape.pooled_rows = sequences;
        }
        let Some(head) = &self.weights.head else { return };
        let per_token = self.model.layout().head_class().reads_every_token();
        let (score_rows, source) = if per_token { (rows, &hidden[..]) } else { (sequences, &pooled[..]) };
        let outputs = head.bias.len();
        let scores = room(logits, score_rows * outputs);
        multiply(&self.compute, &head.weight, &head.bias, &source[..score_rows * width], scores);
        *shape = Shape { score_rows, outputs, per_token, ..*shape };
    }
}
