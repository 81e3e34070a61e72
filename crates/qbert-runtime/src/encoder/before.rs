//! Encoder layers whose sublayers begin with a norm: `hidden += attention(norm(hidden))`, and the feed-forward network alike.

use qbert_kernels::int::{Codes, LinearInput, NormOutput, Quantizer};

use super::Encoder;
use super::floats::{keep_rows, rotary_of};
use super::layer::CodesOutput;
use crate::state::{CodeBuffers, FloatBuffers, State, room};
use crate::weights::{Layer, Norm, Quantizers};

impl Encoder {
    /// Computes one layer from the hidden state, in place. The first layer's attention has no norm and reads the codes that
    /// the embedding wrote.
    pub(super) fn before_in_codes(&self, own: &Layer, by: &Quantizers, only_first: bool, state: &mut State) {
        let layer = &own.weights;
        let (rows, width) = (state.shape.rows, state.shape.width);
        let State { hidden, normed, codes, floats, offsets, shape, positions, rotary, .. } = state;
        if let Some(norm) = &layer.attention_norm {
            self.norm_copy(norm, &hidden[..rows * width], normed, Some((&mut codes.input, by.input)));
        }
        let rotary = rotary_of(rotary, own);
        self.attention_in_codes(own, by, rows, (rotary, positions), offsets, codes, floats);
        let CodeBuffers { context, middle, inner, .. } = codes;
        if only_first {
            let starts = &offsets[..offsets.len() - 1];
            context.keep_rows(starts);
            keep_rows(hidden, width, starts);
            shape.rows = starts.len();
        }
        let hidden = &mut hidden[..shape.rows * width];
        let read = LinearInput { codes: context, quantizer: by.context };
        self.add(&layer.attention_output, read, hidden, floats);
        self.norm_copy(&layer.output_norm, hidden, normed, Some((&mut *middle, by.middle)));
        inner.resize(shape.rows);
        let read = LinearInput { codes: middle, quantizer: by.middle };
        let target = CodesOutput { codes: &mut *inner, quantizer: by.inner };
        self.to_activation(&layer.intermediate, read, target, floats);
        self.add(&layer.output, LinearInput { codes: inner, quantizer: by.inner }, hidden, floats);
    }

    /// The same where activations stay in f32.
    pub(super) fn before_in_floats(&self, own: &Layer, only_first: bool, state: &mut State) {
        let (config, layer) = (self.model.config(), &own.weights);
        let (rows, width) = (state.shape.rows, state.shape.width);
        let State { hidden, normed, floats, offsets, shape, positions, rotary, .. } = state;
        let read = match &layer.attention_norm {
            None => &hidden[..rows * width],
            Some(norm) => self.norm_copy(norm, &hidden[..rows * width], normed, None),
        };
        self.attention_in_floats(own, read, (rotary_of(rotary, own), positions), offsets, floats);
        let FloatBuffers { result, context, read, .. } = floats;
        if only_first {
            let starts = &offsets[..offsets.len() - 1];
            keep_rows(hidden, width, starts);
            keep_rows(context, width, starts);
            shape.rows = starts.len();
        }
        let rows = shape.rows;
        let hidden = &mut hidden[..rows * width];
        let sum = room(result, rows * width);
        self.apply(&layer.attention_output, &context[..rows * width], sum);
        self.compute.add_scaled(1.0, sum, hidden);
        let middle = self.norm_copy(&layer.output_norm, hidden, normed, None);
        let before = room(result, rows * config.intermediate_outputs());
        self.apply(&layer.intermediate, middle, before);
        let inner = room(read, rows * config.intermediate_size);
        self.activate(before, inner);
        let sum = room(result, rows * width);
        self.apply(&layer.output, inner, sum);
        self.compute.add_scaled(1.0, sum, hidden);
    }

    /// A norm of the hidden state, which is kept; the result, and its codes where they are needed.
    fn norm_copy<'a>(
        &self,
        norm: &Norm,
        hidden: &[f32],
        normed: &'a mut Vec<f32>,
        codes: Option<(&mut Codes, Quantizer)>,
    ) -> &'a [f32] {
        let (normed, config) = (room(normed, hidden.len()), self.model.config());
        normed.copy_from_slice(hidden);
        let codes = codes.map(|(codes, quantizer)| {
            codes.resize(hidden.len() / config.hidden_size);
            (codes, quantizer)
        });
        let norm = norm.with(config.layer_norm_eps);
        self.compute.norm_to_codes(NormOutput { norm, hidden: &mut *normed, codes });
        normed
    }
}
