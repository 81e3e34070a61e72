//! Attention of sequences that are cut into tiles: some queries and the keys that they see.
//!
//! A head of a sequence is one task, with blocks of its own for what it writes. Probabilities live as long as their tile, and
//! the backward pass computes them again. For quantized queries and keys it does so from whole numbers of steps, as the
//! forward pass did, so they have the same bits.

mod tangent;
#[cfg(test)]
mod tests;

use qbert_kernels::{BiasRows, Compute, Kernels, MatMut, MatRef, Start, WindowTile};
use qbert_quant::ActivationParams;

pub(super) use tangent::{backward_tangent, forward_tangent};

use super::{Heads, Treatment};
use crate::batch::Batch;
use crate::team::Team;

/// Probabilities of a tile in memory at once, for one head, if a row has no more: 4 MiB.
const MOST_PROBABILITIES: usize = 1 << 20;

impl Heads {
    /// The tiles of a sequence.
    fn tiles(self, length: usize) -> Vec<WindowTile> {
        match self.window.filter(|window| !window.covers(length)) {
            Some(window) => window.tiles(length).collect(),
            None => {
                let queries = (MOST_PROBABILITIES / length).clamp(1, length);
                let parts = (0..length).step_by(queries);
                parts.map(|first| WindowTile { queries: first..length.min(first + queries), keys: 0..length }).collect()
            }
        }
    }

    /// Elements of the largest tile.
    fn largest(tiles: &[WindowTile]) -> usize {
        tiles.iter().map(|tile| tile.queries.len() * tile.keys.len()).max().unwrap_or(0)
    }
}

/// Query and key of one head, and how their scores become probabilities.
#[derive(Clone, Copy)]
struct Scores<'a> {
    kernels: Kernels,
    heads: Heads,
    head: usize,
    query: MatRef<'a>,
    key: MatRef<'a>,
    scale: f32,
    treatment: Treatment<'a>,
}

impl Scores<'_> {
    /// The probabilities of a tile.
    fn probabilities(&self, tile: &WindowTile, out: &mut [f32]) {
        let Self { kernels, heads, head, query, key, scale, treatment } = *self;
        let (rows, keys, columns) = (tile.queries.len(), tile.keys.len(), 0..heads.width);
        let query = query.block(tile.queries.clone(), columns.clone());
        let key = key.block(tile.keys.clone(), columns);
        kernels.gemm_nt(query, key, Start::ZERO, MatMut::new(out, rows, keys));
        let window = heads.window.filter(|window| !window.covers(self.key.rows()));
        match (window, treatment.bias) {
            (Some(window), None) => kernels.softmax_windowed(out, tile, window, scale),
            (Some(_), Some(_)) => unreachable!("a relative bias within a window: no family has both"),
            (None, None) => kernels.softmax(out, keys, scale),
            (None, Some(bias)) => {
                kernels.softmax_biased(out, keys, scale, BiasRows { bias, head, first: tile.queries.start });
            }
        }
    }
}

/// The rows of some tokens, all columns.
fn rows<'a>(matrix: MatRef<'a>, tokens: &std::ops::Range<usize>) -> MatRef<'a> {
    matrix.block(tokens.clone(), 0..matrix.cols())
}

/// Writes blocks `[n, D]`, head after head, into the columns of the heads, the first of which begins at `column`.
fn scatter(heads: Heads, blocks: &[f32], column: usize, width: usize, target: &mut [f32]) {
    let length = target.len() / width;
    for (head, block) in blocks.chunks_exact(length * heads.width).enumerate() {
        for (row, part) in block.chunks_exact(heads.width).enumerate() {
            target[row * width + column + head * heads.width..][..heads.width].copy_from_slice(part);
        }
    }
}

/// The number of a tile's first probability for dropout's masks.
fn offset(counted: usize, head: usize, length: usize, tile: &WindowTile) -> usize {
    // Masks of enormous batches repeat, before they run out of numbers.
    (counted + (head * length + tile.queries.start) * length) % (1 << 33)
}

/// From a sequence's query, key and value `[n, 3H]` to its context `[n, H]`.
pub(super) fn forward(
    compute: &Compute,
    heads: Heads,
    treatment: Treatment<'_>,
    qkv: &[f32],
    counted: usize,
    context: &mut [f32],
) {
    let (hidden, kernels) = (heads.hidden(), compute.kernels());
    let (length, scale) = (context.len() / hidden, treatment.score_scale(heads));
    let tiles = heads.tiles(length);
    let mut blocks = vec![0.0; context.len()];
    compute.threads().for_each_chunk([&mut blocks], [length * heads.width], |head, [block]| {
        let [query, key, value] = heads.parts(qkv, head);
        let scores = Scores { kernels, heads, head, query, key, scale, treatment };
        let mut out = MatMut::new(block, length, heads.width);
        let mut room = vec![0.0; Heads::largest(&tiles)];
        for tile in &tiles {
            let p = &mut room[..tile.queries.len() * tile.keys.len()];
            scores.probabilities(tile, p);
            if treatment.quantized.is_some() {
                p.iter_mut().for_each(|p| *p = ActivationParams::PROBABILITIES.steps(*p));
            }
            if let Some(dropout) = treatment.dropout {
                dropout.apply_part(kernels, p, offset(counted, head, length, tile));
            }
            let p = MatRef::new(p, tile.queries.len(), tile.keys.len());
            let target = out.block(tile.queries.clone(), 0..heads.width);
            kernels.gemm_nn(p, rows(value, &tile.keys), Start::ZERO, target);
        }
    });
    scatter(heads, &blocks, 0, hidden, context);
    if let Some([_, _, value]) = treatment.quantized {
        kernels.scale(value.step() / 255.0, context);
    }
}

/// What the backward pass of a sequence reads.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// Query, key and value `[n, 3H]`, as values.
    pub rows: &'a [f32],
    /// `[n, H]`
    pub d_context: MatRef<'a>,
    /// The teacher's query, key and value, and the weight of each row.
    pub teacher: Option<(&'a [f32], f32)>,
    /// The number of the first probability for dropout's masks.
    pub counted: usize,
}

/// Query and key of a head in whole numbers of steps, one after the other; empty where they are not quantized.
fn steps_of(heads: Heads, head: usize, qkv: &[f32], treatment: Treatment<'_>) -> Vec<f32> {
    let Some([query, key, _]) = treatment.quantized else { return Vec::new() };
    let parts = heads.parts(qkv, head);
    let steps = |(part, params): (MatRef<'_>, ActivationParams)| {
        let values = (0..part.rows()).flat_map(move |row| part.row(row).to_vec());
        values.map(move |value| (value / params.step()).round()).collect::<Vec<f32>>()
    };
    [(parts[0], query), (parts[1], key)].into_iter().flat_map(steps).collect()
}

/// From the gradient of a sequence's context to that of its query, key and value; sums over diagonals are added where there
/// is room for them.
pub(super) fn backward(
    compute: &Compute,
    heads: Heads,
    treatment: Treatment<'_>,
    given: Given<'_>,
    d_rows: &mut [f32],
    d_diagonals: &mut [f32],
) {
    let (hidden, length) = (heads.hidden(), given.d_context.rows());
    let tiles = heads.tiles(length);
    let part = length * heads.width;
    let mut blocks = vec![0.0; 3 * heads.count * part];
    let diagonals = if d_diagonals.is_empty() { 0 } else { 2 * length - 1 };
    // Without diagonals a task has none of them, but a chunk has at least one element.
    let mut none = vec![0.0; if diagonals == 0 { heads.count } else { 0 }];
    let sums = if diagonals == 0 { &mut none[..] } else { d_diagonals };
    let lengths = [3 * part, diagonals.max(1)];
    compute.threads().for_each_chunk([&mut blocks, sums], lengths, |head, [block, sums]| {
        let steps = steps_of(heads, head, given.rows, treatment);
        let sums = if diagonals == 0 { None } else { Some(sums) };
        HeadBackward { kernels: compute.kernels(), heads, head, treatment, given, tiles: &tiles }
            .run(&steps, block, sums);
    });
    for third in 0..3 {
        let of_third = blocks.chunks_exact(3 * part).flat_map(|block| &block[third * part..(third + 1) * part]);
        let of_third: Vec<f32> = of_third.copied().collect();
        scatter(heads, &of_third, third * hidden, 3 * hidden, d_rows);
    }
}

/// The backward pass of one head.
struct HeadBackward<'a> {
    kernels: Kernels,
    heads: Heads,
    head: usize,
    treatment: Treatment<'a>,
    given: Given<'a>,
    tiles: &'a [WindowTile],
}

impl HeadBackward<'_> {
    fn scores<'a>(&'a self, query: MatRef<'a>, key: MatRef<'a>, scale: f32) -> Scores<'a> {
        let Self { kernels, heads, head, treatment, .. } = *self;
        Scores { kernels, heads, head, query, key, scale, treatment }
    }

    /// Writes the gradients of query, key and value, `[n, D]` each, one after the other. The letters are those of the whole
    /// backward pass.
    fn run(&self, steps: &[f32], block: &mut [f32], mut sums: Option<&mut [f32]>) {
        let Self { kernels, heads, head, treatment, given, .. } = *self;
        let (width, length) = (heads.width, given.d_context.rows());
        let [query, key, value] = heads.parts(given.rows, head);
        let scores = if steps.is_empty() {
            self.scores(query, key, heads.scale())
        } else {
            let (queries, keys) = steps.split_at(length * width);
            let [queries, keys] = [queries, keys].map(|part| MatRef::new(part, length, width));
            self.scores(queries, keys, treatment.score_scale(heads))
        };
        let teacher = given.teacher.map(|(rows, weight)| {
            let [query, key, _] = heads.parts(rows, head);
            (self.scores(query, key, heads.scale()), weight)
        });
        let d_context = given.d_context.block(0..length, head * width..(head + 1) * width);
        let (d_query, rest) = block.split_at_mut(length * width);
        let (d_key, d_value) = rest.split_at_mut(length * width);
        let [mut d_query, mut d_key, mut d_value] =
            [d_query, d_key, d_value].map(|part| MatMut::new(part, length, width));
        let mut room = vec![0.0; 3 * Heads::largest(self.tiles)];
        for tile in self.tiles {
            let (count, keys) = (tile.queries.len(), tile.keys.len());
            let (p, rest) = room.split_at_mut(count * keys);
            let (kept, rest) = rest.split_at_mut(count * keys);
            let d_scores = &mut rest[..count * keys];
            scores.probabilities(tile, p);
            let offset = offset(given.counted, head, length, tile);
            let quantize = |values: &mut [f32]| ActivationParams::PROBABILITIES.fake_quantize(values);
            let treated = treatment.apply(kernels, p, &mut *kept, offset, quantize);
            let d_c = rows(d_context, &tile.queries);
            let target = d_value.block(tile.keys.clone(), 0..width);
            kernels.gemm_tn(MatRef::new(treated, count, keys), d_c, Start::ACCUMULATE, target);
            kernels.gemm_nt(d_c, rows(value, &tile.keys), Start::ZERO, MatMut::new(d_scores, count, keys));
            if let Some(dropout) = treatment.dropout {
                dropout.apply_part(kernels, d_scores, offset);
            }
            kernels.softmax_backward(p, d_scores, keys, 1.0);
            if let Some((teacher, weight)) = teacher {
                teacher.probabilities(tile, kept);
                for (d, (s, t)) in d_scores.iter_mut().zip(p.iter().zip(&*kept)) {
                    *d += weight * (s - t);
                }
            }
            if let Some(sums) = &mut sums {
                for (query, row) in tile.queries.clone().zip(d_scores.chunks_exact(keys)) {
                    let first = length - 1 + tile.keys.start - query;
                    kernels.add_scaled(1.0, row, &mut sums[first..][..keys]);
                }
            }
            kernels.scale(heads.scale(), d_scores);
            let d_scores = MatRef::new(d_scores, count, keys);
            let target = d_query.block(tile.queries.clone(), 0..width);
            kernels.gemm_nn(d_scores, rows(key, &tile.keys), Start::ZERO, target);
            let target = d_key.block(tile.keys.clone(), 0..width);
            kernels.gemm_tn(d_scores, rows(query, &tile.queries), Start::ACCUMULATE, target);
        }
    }
}

/// One model's attention to a batch.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Query, key and value, as values.
    pub qkv: &'a [f32],
    /// The probabilities that were kept.
    pub probabilities: &'a [f32],
    /// How query, key and value were quantized, where they were, and the relative bias.
    pub treatment: Treatment<'a>,
}

/// For each head the sum of `measure` over the rows of probabilities of two models, kept or not. `measure` gets whole
/// rows of both.
pub fn divergences(
    compute: &Compute,
    heads: Heads,
    batch: &Batch,
    [first, second]: [Side<'_>; 2],
    measure: impl Fn(&[f32], &[f32]) -> f64 + Sync,
) -> Vec<f64> {
    let (kernels, hidden) = (compute.kernels(), heads.hidden());
    let mut of_sequences = Vec::new();
    for (range, place) in batch.ranges().zip(heads.places(batch)) {
        let own = |head: usize| place.start + head * place.square..place.start + (head + 1) * place.square;
        let tiles = heads.tiles(range.len());
        let of_heads = compute.threads().map(heads.count, |head| {
            if place.square > 0 {
                return measure(&first.probabilities[own(head)], &second.probabilities[own(head)]);
            }
            let sides = [first, second].map(|side| (super::rows_of(side.qkv, &range, 3 * hidden), side.treatment));
            let steps = sides.map(|(rows, treatment)| steps_of(heads, head, rows, treatment));
            let mut rooms = [vec![0.0; Heads::largest(&tiles)], vec![0.0; Heads::largest(&tiles)]];
            let mut sum = 0.0;
            for tile in &tiles {
                let length = tile.queries.len() * tile.keys.len();
                for ((room, (qkv, treatment)), steps) in rooms.iter_mut().zip(sides).zip(&steps) {
                    let [mut query, mut key, _] = heads.parts(qkv, head);
                    if !steps.is_empty() {
                        let halves = steps.split_at(range.len() * heads.width);
                        [query, key] = [halves.0, halves.1].map(|part| MatRef::new(part, range.len(), heads.width));
                    }
                    let scale = treatment.score_scale(heads);
                    let scores = Scores { kernels, heads, head, query, key, scale, treatment };
                    scores.probabilities(tile, &mut room[..length]);
                }
                sum += measure(&rooms[0][..length], &rooms[1][..length]);
            }
            sum
        });
        of_sequences.extend(of_heads);
    }
    let all = match Team::of(compute, batch) {
        None => of_sequences,
        Some(team) => team.numbers(&of_sequences).concat(),
    };
    let mut sums = vec![0.0; heads.count];
    for of_heads in all.chunks_exact(heads.count) {
        sums.iter_mut().zip(of_heads).for_each(|(sum, own)| *sum += own);
    }
    sums
}
