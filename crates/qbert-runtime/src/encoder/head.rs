//! Pooler and head, in f32.

use qbert_kernels::int::NormOutput;
use qbert_model::family::{PoolerActivation, SequencePooling};

use super::Encoder;
use super::floats::multiply;
use crate::state::{Shape, State, room};

impl Encoder {
    /// Pooler (hidden states → linear → activation → norm) and head, from the last hidden state.
    pub(super) fn finish(&self, state: &mut State) {
        let State { hidden, first_tokens, pooled, logits, shape, offsets, .. } = state;
        let Shape { rows, width, .. } = *shape;
        let (sequences, config) = (offsets.len() - 1, self.model.config());
        let settings = config.pooler(self.model.layout().head());
        if let Some((pooler, settings)) = self.weights.pooler.as_ref().zip(settings) {
            let every_token = settings.reads == SequencePooling::EveryToken;
            let pooled_rows = if every_token { rows } else { sequences };
            let first = room(first_tokens, pooled_rows * width);
            self.read_for_pooler(settings.reads, &hidden[..rows * width], offsets, first);
            let pooled = room(pooled, pooled_rows * width);
            multiply(&self.compute, &pooler.weight, &pooler.bias, pooler.neurons, first, pooled);
            match settings.activation {
                PoolerActivation::Tanh => self.compute.kernels().tanh_in_place(pooled),
                // What was read is not needed any more, so its memory takes the values in front of the activation.
                PoolerActivation::Of(activation) => {
                    first.copy_from_slice(pooled);
                    self.compute.activate(activation, first, pooled);
                }
            }
            if let Some(norm) = &self.weights.pooler_norm {
                let norm = norm.with(config.layer_norm_eps);
                self.compute.norm_to_codes(NormOutput { norm, hidden: pooled, codes: None });
            }
            shape.pooled_rows = if every_token { 0 } else { sequences };
        }
        let Some(head) = &self.weights.head else { return };
        let class = self.model.layout().head_class();
        let per_token = class.reads_every_token();
        let score_rows = if per_token { rows } else { sequences };
        let source = if class.reads_pooler() { &pooled[..] } else { &hidden[..] };
        let outputs = head.neurons;
        let scores = room(logits, score_rows * outputs);
        multiply(&self.compute, &head.weight, &head.bias, outputs, &source[..score_rows * width], scores);
        *shape = Shape { score_rows, outputs, per_token, ..*shape };
    }

    /// What the pooler reads of the hidden states; the mean is summed up in the order of the tokens, as in training.
    fn read_for_pooler(&self, reads: SequencePooling, hidden: &[f32], offsets: &[usize], first: &mut [f32]) {
        if reads == SequencePooling::EveryToken {
            return first.copy_from_slice(hidden);
        }
        let (width, sequences) = (self.model.config().hidden_size, offsets.len() - 1);
        let (rows, kernels) = (hidden.len() / width, self.compute.kernels());
        for (sequence, first) in first.chunks_exact_mut(width).enumerate() {
            // Where only first tokens were computed, there is one row per sequence.
            let row = if rows == sequences { sequence } else { offsets[sequence] };
            first.copy_from_slice(&hidden[row * width..(row + 1) * width]);
            if reads == SequencePooling::Mean {
                let end = offsets[sequence + 1];
                for other in hidden[(row + 1) * width..end * width].chunks_exact(width) {
                    kernels.add_scaled(1.0, other, first);
                }
                let count = (end - row) as f32;
                first.iter_mut().for_each(|sum| *sum /= count);
            }
        }
    }
}
