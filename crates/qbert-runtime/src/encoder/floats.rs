//! An encoder layer whose activations stay in f32: the operations of training without their derivatives.

use qbert_kernels::int::NormOutput;
use qbert_kernels::{BiasRows, Compute, LayerNorm, MatMut, MatRef, Start};

use super::Encoder;
use crate::state::{FloatBuffers, State, room};
use crate::weights::{LayerWeights, Linear};

/// Attention probabilities that are in memory at once, over all heads, if a row of each is no more: 16 MiB, all of 512
/// tokens in BERT-large.
const MOST_PROBABILITIES: usize = 1 << 22;

impl Encoder {
    /// Computes one layer from the hidden state, in place.
    pub(super) fn layer_in_floats(&self, layer: &LayerWeights, only_first: bool, state: &mut State) {
        let config = self.model.config();
        let (rows, width) = (state.shape.rows, state.shape.width);
        let State { hidden, floats, offsets, shape, .. } = state;
        let FloatBuffers { query, key, value, context, .. } = &mut *floats;
        for (linear, target) in layer.attention.iter().zip([&mut *query, &mut *key, &mut *value]) {
            self.apply(linear, &hidden[..rows * width], room(target, rows * width));
        }
        room(context, rows * width);
        for pair in offsets.windows(2) {
            self.attend(pair[0]..pair[1], width, floats);
        }
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
        self.add_norm(layer.attention_norm.with(config.layer_norm_eps), sum, hidden);
        let wide = rows * config.intermediate_size;
        let before = room(result, wide);
        self.apply(&layer.intermediate, hidden, before);
        let inner = room(read, wide);
        self.activate(before, inner);
        let sum = room(result, rows * width);
        self.apply(&layer.output, inner, sum);
        self.add_norm(layer.output_norm.with(config.layer_norm_eps), sum, hidden);
    }

    fn apply(&self, linear: &Linear, read: &[f32], out: &mut [f32]) {
        // Without quantized activations, every matrix was converted to f32 when the model was opened.
        if let Linear::Floats { values, bias } = linear {
            self.multiply(values, bias, read, out);
        }
    }

    fn add_norm(&self, norm: LayerNorm<'_>, sum: &[f32], hidden: &mut [f32]) {
        self.compute.add_scaled(1.0, sum, hidden);
        self.compute.norm_to_codes(NormOutput { norm, hidden, codes: None });
    }

    /// `softmax(Q·Kᵀ/√D)·V` of one sequence: a task per head, each into its own block, then side by side. Queries are taken
    /// some at a time, so that memory grows with the length and not with its square; a row does not depend on others.
    fn attend(&self, tokens: std::ops::Range<usize>, width: usize, floats: &mut FloatBuffers) {
        let FloatBuffers { query, key, value, context, probabilities, head_contexts, .. } = floats;
        let (heads, length) = (self.model.config().heads, tokens.len());
        let (size, kernels) = (width / heads, self.compute.kernels());
        let scale = 1.0 / (size as f32).sqrt();
        let rows = tokens.start * width..tokens.end * width;
        let [query, key, value] = [query, key, value].map(|all| MatRef::new(&all[rows.clone()], length, width));
        let queries = (MOST_PROBABILITIES / heads / length).clamp(1, length);
        let (part, block) = (queries * length, length * size);
        let buffers = [room(probabilities, heads * part), room(head_contexts, heads * block)];
        self.compute.threads().for_each_chunk(buffers, [part, block], |head, [probabilities, out]| {
            let columns = head * size..(head + 1) * size;
            let [query, key, value] = [query, key, value].map(|all| all.block(0..length, columns.clone()));
            for (index, out) in out.chunks_mut(queries * size).enumerate() {
                let (first, rows) = (index * queries, out.len() / size);
                let query = query.block(first..first + rows, 0..size);
                let probabilities = &mut probabilities[..rows * length];
                kernels.gemm_nt(query, key, Start::ZERO, MatMut::new(probabilities, rows, length));
                match &self.weights.bias {
                    None => kernels.softmax(probabilities, length, scale),
                    Some(bias) => {
                        kernels.softmax_biased(probabilities, length, scale, BiasRows { bias, head, first });
                    }
                }
                let probabilities = MatRef::new(probabilities, rows, length);
                kernels.gemm_nn(probabilities, value, Start::ZERO, MatMut::new(out, rows, size));
            }
        });
        let context = &mut context[rows];
        for (head, block) in head_contexts.chunks_exact(block).take(heads).enumerate() {
            for (row, part) in block.chunks_exact(size).enumerate() {
                context[row * width + head * size..][..size].copy_from_slice(part);
            }
        }
    }
}

/// `out = read · Wᵀ + b`; the number of rows follows from `out`.
pub(super) fn multiply(compute: &Compute, weight: &[f32], bias: &[f32], read: &[f32], out: &mut [f32]) {
    let (rows, neurons) = (out.len() / bias.len(), bias.len());
    let inputs = weight.len() / neurons;
    let (read, weight) = (MatRef::new(read, rows, inputs), MatRef::new(weight, neurons, inputs));
    compute.gemm_nt(read, weight, Start::Bias(bias), MatMut::new(out, rows, neurons));
}

/// Moves these rows, given in ascending order, to the front.
pub(super) fn keep_rows(matrix: &mut [f32], width: usize, rows: &[usize]) {
    for (row, &from) in rows.iter().enumerate() {
        matrix.copy_within(from * width..(from + 1) * width, row * width);
    }
}
