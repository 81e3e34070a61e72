//! An encoder layer whose activations stay in f32: the operations of training without their derivatives.

use qbert_kernels::int::NormOutput;
use qbert_kernels::{BiasRows, Compute, LayerNorm, MatMut, MatRef, Rotary, Start, Turn, Window, WindowTile};
use qbert_model::family::FeedForward;

use super::Encoder;
use crate::state::{FloatBuffers, State, room};
use crate::weights::{Layer, Linear};

/// Attention probabilities that are in memory at once, over all heads, if a row of each is no more: 16 MiB, all of 512
/// tokens in BERT-large.
const MOST_PROBABILITIES: usize = 1 << 22;

impl Encoder {
    /// Computes one layer from the hidden state, in place.
    pub(super) fn layer_in_floats(&self, own: &Layer, only_first: bool, state: &mut State) {
        let (config, layer) = (self.model.config(), &own.weights);
        let (rows, width) = (state.shape.rows, state.shape.width);
        let State { hidden, floats, offsets, shape, positions, rotary, .. } = state;
        let rotary = rotary_of(rotary, own);
        self.attention_in_floats(own, &hidden[..rows * width], (rotary, positions), offsets, floats);
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
        if let Some(norm) = &layer.attention_norm {
            self.add_norm(norm.with(config.layer_norm_eps), sum, hidden);
        }
        let before = room(result, rows * config.intermediate_outputs());
        self.apply(&layer.intermediate, hidden, before);
        let inner = room(read, rows * config.intermediate_size);
        self.activate(before, inner);
        let sum = room(result, rows * width);
        self.apply(&layer.output, inner, sum);
        self.add_norm(layer.output_norm.with(config.layer_norm_eps), sum, hidden);
    }

    /// Query, key and value from what the attention reads, and the context in `floats`.
    pub(super) fn attention_in_floats(
        &self,
        layer: &Layer,
        read: &[f32],
        (rotary, positions): (Option<&Rotary>, &[u32]),
        offsets: &[usize],
        floats: &mut FloatBuffers,
    ) {
        let width = self.model.config().hidden_size;
        let FloatBuffers { query, key, value, context, .. } = &mut *floats;
        for (linear, target) in layer.weights.attention.iter().zip([&mut *query, &mut *key, &mut *value]) {
            self.apply(linear, read, room(target, read.len()));
        }
        if let Some(rotary) = rotary {
            for target in [query, key] {
                let rows = room(target, read.len());
                self.compute.rotate(rotary, Turn::Forward, positions, rows, (width, width));
            }
        }
        room(context, read.len());
        for pair in offsets.windows(2) {
            self.attend(pair[0]..pair[1], width, layer.window(), floats);
        }
    }

    pub(super) fn apply(&self, linear: &Linear, read: &[f32], out: &mut [f32]) {
        // Without quantized activations, every matrix was converted to f32 when the model was opened.
        if let Linear::Floats { values, bias, neurons } = linear {
            self.multiply(values, bias, *neurons, read, out);
        }
    }

    /// The activation between the feed-forward matrices, plain or gated.
    pub(super) fn activate(&self, before: &[f32], after: &mut [f32]) {
        let config = self.model.config();
        match config.family.feed_forward {
            FeedForward::Plain => self.compute.activate(config.activation, before, after),
            FeedForward::Gated => {
                let (width, kernels) = (config.intermediate_size, self.compute.kernels());
                self.compute.threads().for_each_chunk([after], [width], |row, [after]| {
                    let (a, gate) = before[2 * row * width..2 * (row + 1) * width].split_at(width);
                    kernels.activate(config.activation, a, after);
                    kernels.multiply(gate, after);
                });
            }
        }
    }

    fn add_norm(&self, norm: LayerNorm<'_>, sum: &[f32], hidden: &mut [f32]) {
        self.compute.add_scaled(1.0, sum, hidden);
        self.compute.norm_to_codes(NormOutput { norm, hidden, codes: None });
    }

    /// `softmax(Q·Kᵀ/√D)·V` of one sequence: a task per head, each into its own block, then side by side. Queries are taken
    /// some at a time, so that memory grows with the length and not with its square; a row does not depend on others.
    /// Within a window, a task goes from tile to tile.
    fn attend(&self, tokens: std::ops::Range<usize>, width: usize, window: Option<Window>, floats: &mut FloatBuffers) {
        let FloatBuffers { query, key, value, context, probabilities, head_contexts, .. } = floats;
        let (heads, length) = (self.model.config().heads, tokens.len());
        let (size, kernels) = (width / heads, self.compute.kernels());
        let scale = 1.0 / (size as f32).sqrt();
        let rows = tokens.start * width..tokens.end * width;
        let [query, key, value] = [query, key, value].map(|all| MatRef::new(&all[rows.clone()], length, width));
        let window = window.filter(|window| !window.covers(length));
        let queries = (MOST_PROBABILITIES / heads / length).clamp(1, length);
        let tiles = || {
            let whole = (0..length).step_by(queries).filter(|_| window.is_none());
            let whole = whole.map(|first| WindowTile { queries: first..length.min(first + queries), keys: 0..length });
            window.into_iter().flat_map(|window| window.tiles(length)).chain(whole)
        };
        let part = tiles().map(|tile| tile.queries.len() * tile.keys.len()).max().unwrap_or(0);
        let block = length * size;
        let buffers = [room(probabilities, heads * part), room(head_contexts, heads * block)];
        self.compute.threads().for_each_chunk(buffers, [part, block], |head, [probabilities, out]| {
            let columns = head * size..(head + 1) * size;
            let [query, key, value] = [query, key, value].map(|all| all.block(0..length, columns.clone()));
            for tile in tiles() {
                let (first, rows, keys) = (tile.queries.start, tile.queries.len(), tile.keys.len());
                let query = query.block(tile.queries.clone(), 0..size);
                let [key, value] = [key, value].map(|all| all.block(tile.keys.clone(), 0..size));
                let probabilities = &mut probabilities[..rows * keys];
                kernels.gemm_nt(query, key, Start::ZERO, MatMut::new(probabilities, rows, keys));
                match (window, &self.weights.bias) {
                    (Some(window), _) => kernels.softmax_windowed(probabilities, &tile, window, scale),
                    (None, None) => kernels.softmax(probabilities, keys, scale),
                    (None, Some(bias)) => {
                        kernels.softmax_biased(probabilities, keys, scale, BiasRows { bias, head, first });
                    }
                }
                let out = &mut out[first * size..(first + rows) * size];
                let probabilities = MatRef::new(probabilities, rows, keys);
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

/// The angles of a layer; `None` where positions are not rotary.
pub(super) fn rotary_of<'a>(rotary: &'a [Rotary], layer: &Layer) -> Option<&'a Rotary> {
    let theta = layer.sees.theta?;
    rotary.iter().find(|rotary| rotary.theta() == theta)
}

/// `out = read · Wᵀ + b`, without `b` where it is empty; the number of rows follows from `out`.
pub(super) fn multiply(compute: &Compute, weight: &[f32], bias: &[f32], neurons: usize, read: &[f32], out: &mut [f32]) {
    let (rows, inputs) = (out.len() / neurons, weight.len() / neurons);
    let (read, weight) = (MatRef::new(read, rows, inputs), MatRef::new(weight, neurons, inputs));
    let start = if bias.is_empty() { Start::ZERO } else { Start::Bias(bias) };
    compute.gemm_nt(read, weight, start, MatMut::new(out, rows, neurons));
}

/// Moves these rows, given in ascending order, to the front.
pub(super) fn keep_rows(matrix: &mut [f32], width: usize, rows: &[usize]) {
    for (row, &from) in rows.iter().enumerate() {
        matrix.copy_within(from * width..(from + 1) * width, row * width);
    }
}
