//! Self-attention on codes, for every sequence and head, without padding between sequences.
//!
//! ```text
//! score_ij  = Σ_d (Q_id - zq)·(K_jd - zk)                               exact
//! p_ij      = softmax_j(score_ij · Δq·Δk/√D + bias_ij)                  f32
//! P_ij      = round_half_even(255 · p_ij)
//! context   = Δv/255 · Σ_j P_ij·(V_jd - zv)                             exact sum, then quantized
//! ```
//!
//! Both products use the multiplier of the linear layers: keys and values of a head are first laid out as cells, keys as
//! "neurons" of `D` inputs, dimensions of the values as "neurons" of one input per key. Then a tile of queries at a time
//! is taken from scores to context within the first-level cache. Terms that are the same for a whole row of scores do
//! not change its softmax and are left out.
//!
//! Within a [`Window`] a head goes from tile to tile of the sequence, each with the keys that its queries see, so that time
//! grows with the length and memory does not.

mod buffers;

use super::codes::{Codes, Quantizer, QuantizerLanes};
use super::layout::{CELL, CELL_INPUTS, TILE_NEURONS};
use super::linear::share;
use super::multiplier::Multiplier;
use super::softmax::{SoftmaxRows, WindowRows};
use super::tile::{PANEL, Rows, Tile};
use crate::compute::Compute;
use crate::shared_matrix::SharedMatrix;
use crate::simd::{Kernel, Simd};
use crate::softmax::{BiasRows, DistanceBias};
use crate::window::{Window, WindowTile};
use buffers::{BITS, Buffers, Shape};
use std::ops::Range;

/// Codes of query, key and value, each `[tokens, heads · head_size]`, and which tokens form a sequence.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// Codes and quantizer of the queries.
    pub query: (&'a Codes, Quantizer),
    /// Of the keys.
    pub key: (&'a Codes, Quantizer),
    /// Of the values.
    pub value: (&'a Codes, Quantizer),
    /// Attention heads: head `h` has columns `h·D .. (h+1)·D`.
    pub heads: usize,
    /// The first token of every sequence, ascending from 0, and the number of tokens at the end.
    pub starts: &'a [usize],
    /// What is added to the scaled scores.
    pub bias: Option<&'a DistanceBias>,
    /// What a token sees; `None` for all of its sequence. Not together with a bias.
    pub window: Option<Window>,
}

impl AttentionInput<'_> {
    fn head_size(&self) -> usize {
        self.query.0.cols() / self.heads
    }

    fn sequences(&self) -> usize {
        self.starts.len() - 1
    }

    fn check(&self, context: &Codes) {
        let shape = (context.rows(), context.cols());
        for (name, codes) in [("query", self.query.0), ("key", self.key.0), ("value", self.value.0)] {
            let found = (codes.rows(), codes.cols());
            assert!(found == shape, "{name} of {found:?} for a context of {shape:?}");
        }
        assert!(self.heads > 0 && shape.1.is_multiple_of(self.heads), "{} heads in {} columns", self.heads, shape.1);
        let (first, last) = (self.starts.first().copied(), self.starts.last().copied());
        assert!(
            first == Some(0) && last == Some(shape.0),
            "sequences from {first:?} to {last:?} of {} tokens",
            shape.0
        );
        assert!(self.starts.is_sorted(), "sequences do not follow each other");
        assert!(self.bias.is_none() || self.window.is_none(), "a bias within a window");
        if let Some(bias) = self.bias {
            let longest = self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
            assert!(longest <= bias.longest(), "a sequence of {longest} tokens for a bias of {}", bias.longest());
        }
    }
}

impl Compute {
    /// Attention of all sequences and heads over all threads; `context` must already have one row per token.
    ///
    /// # Panics
    /// When shapes do not fit together.
    pub fn attention(&self, input: &AttentionInput<'_>, context: &mut Codes, quantizer: Quantizer) {
        input.check(context);
        if context.rows() == 0 || context.cols() == 0 {
            return;
        }
        let multiplier = self.kernels().multiplier();
        let output = Output { context: context.shared(), quantizer };
        let per_task = heads_per_task(input.heads, input.head_size());
        let groups = input.heads.div_ceil(per_task);
        self.threads().for_each(input.sequences() * groups, |task| {
            let (sequence, group) = (task / groups, task % groups);
            let tokens = input.starts[sequence]..input.starts[sequence + 1];
            if tokens.is_empty() {
                return;
            }
            let heads = group * per_task..input.heads.min((group + 1) * per_task);
            // Where every token sees all others, the window changes nothing.
            if let Some(window) = input.window.filter(|window| !window.covers(tokens.len())) {
                // SAFETY: this task alone writes these tokens and heads of the context.
                return unsafe { self.attend_within(input, window, tokens, heads, output) };
            }
            let shape = Shape::new(input.head_size(), tokens.len(), multiplier);
            let mut scratch = self.scratch(shape.bytes());
            let mut buffers = Buffers::new(&shape, scratch.parts());
            let _products = multiplier.begin();
            for head in heads {
                let (tokens, queries) = (tokens.clone(), 0..tokens.len());
                let head = Head { compute: self, input, head, tokens, queries, seen: None, shape: &shape, output };
                // SAFETY: this task alone writes these tokens and heads of the context.
                unsafe { head.run(&mut buffers) };
            }
        });
    }

    /// Some heads of a sequence, tile by tile.
    ///
    /// # Safety
    /// No other thread may use these tokens and heads of the context at the same time.
    unsafe fn attend_within(
        &self,
        input: &AttentionInput<'_>,
        window: Window,
        sequence: Range<usize>,
        heads: Range<usize>,
        output: Output<'_>,
    ) {
        let multiplier = self.kernels().multiplier();
        let shape_of = |tile: &WindowTile| Shape::new(input.head_size(), tile.keys.len(), multiplier);
        let tiles = window.tiles(sequence.len());
        let bytes = tiles.clone().map(|tile| shape_of(&tile).bytes()).max().unwrap_or(0);
        let mut scratch = self.scratch(bytes);
        let _products = multiplier.begin();
        for tile in tiles {
            let shape = shape_of(&tile);
            let mut buffers = Buffers::new(&shape, scratch.parts());
            let tokens = sequence.start + tile.keys.start..sequence.start + tile.keys.end;
            let queries = tile.queries.start - tile.keys.start..tile.queries.end - tile.keys.start;
            let seen = Some(WindowRows { window, keys: tile.keys.clone(), first: tile.queries.start });
            for head in heads.clone() {
                let (tokens, queries, seen) = (tokens.clone(), queries.clone(), seen.clone());
                let head = Head { compute: self, input, head, tokens, queries, seen, shape: &shape, output };
                // SAFETY: passed on from the caller.
                unsafe { head.run(&mut buffers) };
            }
        }
    }
}

/// Enough heads that a task writes whole cache lines of the context, where their width allows it.
fn heads_per_task(heads: usize, head_size: usize) -> usize {
    const LINE: usize = 64;
    let mut count = 1;
    while count < heads && !(count * head_size).is_multiple_of(LINE) && count * head_size < 4 * LINE {
        count += 1;
    }
    count
}

/// Where the context goes.
#[derive(Clone, Copy)]
struct Output<'a> {
    context: SharedMatrix<'a, i8>,
    quantizer: Quantizer,
}

/// One head of one sequence, or of a tile of it.
struct Head<'a> {
    compute: &'a Compute,
    input: &'a AttentionInput<'a>,
    head: usize,
    /// The keys, counted in the batch.
    tokens: Range<usize>,
    /// The queries, counted from the first key.
    queries: Range<usize>,
    /// Which keys each query sees; `None` for all.
    seen: Option<WindowRows>,
    shape: &'a Shape,
    output: Output<'a>,
}

impl Head<'_> {
    fn multiplier(&self) -> Multiplier {
        self.compute.kernels().multiplier()
    }

    /// The codes of this head at one token.
    fn codes_at<'b>(&self, codes: &'b Codes, token: usize) -> &'b [i8] {
        let size = self.shape.head_size;
        &codes.stored_row(self.tokens.start + token)[self.head * size..][..size]
    }

    /// Rows as the multiplier reads them, in `room` if it has an order of its own.
    fn arrange<'b>(&self, rows: Rows<'b>, room: &'b mut [i8]) -> Rows<'b> {
        self.multiplier().arrange(rows, room);
        self.multiplier().arranged(rows, room)
    }

    /// Computes the context of this head.
    ///
    /// # Safety
    /// No other thread may use this head's columns of the sequence's rows of the context at the same time.
    unsafe fn run(&self, buffers: &mut Buffers<'_>) {
        let (shape, multiplier) = (self.shape, self.multiplier());
        self.lay_out_keys(buffers.key_cells);
        self.lay_out_values(buffers.value_cells);
        if !multiplier.reads_stored_cells() {
            buffers.key_cells.chunks_exact_mut(shape.key_tile()).for_each(|tile| multiplier.rearrange(BITS, tile));
            buffers.value_cells.chunks_exact_mut(shape.value_tile()).for_each(|tile| multiplier.rearrange(BITS, tile));
        }
        let ones = &mut buffers.codes[..shape.codes_row()];
        ones.fill(1);
        // Scores start from -zq·ΣK, context sums from 128·ΣV, because stored codes are lower by 128.
        let query_zero = self.input.query.1.shifted_zero();
        let keys = Cells { bytes: buffers.key_cells, steps: shape.dimension_steps };
        write_starts(multiplier, ones, keys, -query_zero, buffers.arranged, buffers.score_starts);
        let values = Cells { bytes: buffers.value_cells, steps: shape.key_steps };
        write_starts(multiplier, ones, values, 128, buffers.arranged, buffers.context_starts);
        let (count, first) = (self.queries.len(), self.queries.start);
        let tiles = count.div_ceil(shape.rows);
        for rows in (0..tiles).map(|tile| share(count, tiles, tile)).map(|rows| first + rows.start..first + rows.end) {
            self.write_scores(rows.clone(), buffers);
            self.write_probabilities(rows.clone(), buffers);
            // SAFETY: passed on from the caller.
            unsafe { self.write_context(rows, buffers) };
        }
    }

    /// Keys as cells: lane `j` of a cell has four dimensions of key `j`, as unsigned codes; zeros beyond the end.
    fn lay_out_keys(&self, cells: &mut [u8]) {
        let (shape, keys) = (self.shape, self.input.key.0);
        if shape.tokens < shape.key_panels * PANEL || shape.head_size < shape.dimension_steps * CELL_INPUTS {
            cells.fill(0);
        }
        for token in 0..shape.tokens {
            let tile = &mut cells[token / TILE_NEURONS * shape.key_tile()..][..shape.key_tile()];
            let (fours, rest) = self.codes_at(keys, token).as_chunks::<CELL_INPUTS>();
            let (tile, lane) = (tile.as_chunks_mut::<CELL>().0, token % TILE_NEURONS);
            for (cell, four) in tile.iter_mut().zip(fours) {
                let codes = u32::from_ne_bytes(four.map(i8::cast_unsigned)) ^ 0x8080_8080;
                cell[lane * CELL_INPUTS..][..CELL_INPUTS].copy_from_slice(&codes.to_ne_bytes());
            }
            for (place, code) in rest.iter().enumerate() {
                tile[fours.len()][lane * CELL_INPUTS + place] = code.cast_unsigned() ^ 0x80;
            }
        }
    }

    /// Values as cells: lane `d` of a cell has dimension `d` of four keys, as unsigned codes; zeros beyond the end.
    fn lay_out_values(&self, cells: &mut [u8]) {
        let (shape, values) = (self.shape, self.input.value.0);
        for (tile, cells) in cells.chunks_exact_mut(shape.value_tile()).enumerate() {
            let first = shape.head_size.min(tile * TILE_NEURONS);
            let dimensions = first..shape.head_size.min(first + TILE_NEURONS);
            for (step, cell) in cells.as_chunks_mut::<CELL>().0.iter_mut().enumerate() {
                let mut rows = [[-128_i8; TILE_NEURONS]; CELL_INPUTS];
                let tokens = step * CELL_INPUTS..shape.tokens.min((step + 1) * CELL_INPUTS);
                for (row, token) in rows.iter_mut().zip(tokens) {
                    let from = &self.codes_at(values, token)[dimensions.clone()];
                    // A full width has a fixed length, which is one instruction.
                    match <&[i8; TILE_NEURONS]>::try_from(from) {
                        Ok(from) => *row = *from,
                        Err(_) => row[..from.len()].copy_from_slice(from),
                    }
                }
                for lane in 0..TILE_NEURONS {
                    for (key, row) in rows.iter().enumerate() {
                        cell[lane * CELL_INPUTS + key] = row[lane].cast_unsigned() ^ 0x80;
                    }
                }
            }
        }
    }

    /// The scores of some queries with all keys.
    fn write_scores(&self, rows: Range<usize>, buffers: &mut Buffers<'_>) {
        let (shape, queries) = (self.shape, self.input.query.0);
        let first = (self.tokens.start + rows.start) * queries.stride() + self.head * shape.head_size;
        let a = self.arrange(
            Rows {
                count: rows.len(),
                codes: &queries.stored()[first..],
                stride: queries.stride(),
                steps: shape.dimension_steps,
            },
            buffers.arranged,
        );
        let starts = buffers.score_starts.as_chunks::<PANEL>().0;
        // Panels of keys that no query of the tile sees are not read either.
        let panels = self.seen.as_ref().map_or(0..starts.len(), |seen| {
            let (first, last) = (seen.of(rows.start - self.queries.start), seen.of(rows.end - 1 - self.queries.start));
            first.start / PANEL..last.end.div_ceil(PANEL)
        });
        for (panel, start) in starts.iter().enumerate().take(panels.end).skip(panels.start) {
            self.multiplier().multiply(Tile {
                rows: a.count,
                a: a.codes,
                a_row: a.stride,
                cells: &buffers.key_cells[panel * 2 * shape.key_tile()..],
                half_step: shape.key_tile(),
                steps: a.steps,
                bits: BITS,
                start,
                sums: &mut buffers.scores[panel * PANEL..],
                sums_row: shape.scores_row(),
            });
        }
    }

    /// From scores to probability codes.
    fn write_probabilities(&self, queries: Range<usize>, buffers: &mut Buffers<'_>) {
        let (shape, rows) = (self.shape, queries.len());
        let (scores_row, codes_row) = (shape.scores_row(), shape.codes_row());
        // Finite, so that the largest score of a row has the exponent 0 whatever the steps are; as in training.
        let scale = self.input.query.1.step * self.input.key.1.step / (shape.head_size as f32).sqrt();
        self.compute.kernels().run(SoftmaxRows {
            scores: &mut buffers.scores[..rows * scores_row],
            scores_row,
            count: shape.tokens,
            scale: scale.clamp(f32::MIN_POSITIVE, f32::MAX),
            codes: &mut buffers.codes[..rows * codes_row],
            codes_row,
            sums: &mut buffers.code_sums[..rows],
            bias: self.input.bias.map(|bias| BiasRows { bias, head: self.head, first: queries.start }),
            seen: self.seen.as_ref().map(|seen| (seen, queries.start - self.queries.start)),
        });
    }

    /// From probability codes to the context.
    ///
    /// # Safety
    /// As [`Head::run`], for these rows.
    unsafe fn write_context(&self, rows: Range<usize>, buffers: &mut Buffers<'_>) {
        let (shape, value) = (self.shape, self.input.value.1);
        let (count, stride, steps) = (rows.len(), shape.codes_row(), shape.key_steps);
        let a = self.arrange(Rows { count, codes: buffers.codes, stride, steps }, buffers.arranged);
        let starts = buffers.context_starts.as_chunks::<PANEL>().0;
        for (panel, start) in starts.iter().enumerate() {
            self.multiplier().multiply(Tile {
                rows: a.count,
                a: a.codes,
                a_row: a.stride,
                cells: &buffers.value_cells[panel * 2 * shape.value_tile()..],
                half_step: shape.value_tile(),
                steps: a.steps,
                bits: BITS,
                start,
                sums: buffers.context_sums,
                sums_row: PANEL,
            });
            let sums = ContextSums {
                sums: buffers.context_sums,
                code_sums: &buffers.code_sums[..rows.len()],
                zero_point: i32::from(value.zero_point),
                scale: value.step / 255.0,
            };
            let width = PANEL.min(shape.head_size - panel * PANEL);
            let column = self.head * shape.head_size + panel * PANEL;
            let row = self.tokens.start + rows.start;
            // SAFETY: passed on from the caller.
            self.compute.kernels().run(unsafe { FinishContext::new(sums, self.output, row, column..column + width) });
        }
    }
}

/// Panels of two tiles of `steps` cells each.
struct Cells<'a> {
    bytes: &'a [u8],
    steps: usize,
}

/// Writes `factor · Σ codes` of every lane of all panels; `ones` are at least `4·steps` ones, and `room` is for them in the
/// multiplier's order.
fn write_starts(
    multiplier: Multiplier,
    ones: &[i8],
    cells: Cells<'_>,
    factor: i32,
    room: &mut [i8],
    target: &mut [i32],
) {
    let half_step = cells.steps * CELL;
    let ones = Rows { count: 1, codes: ones, stride: 0, steps: cells.steps };
    multiplier.arrange(ones, room);
    let ones = multiplier.arranged(ones, room);
    let panels = cells.bytes.chunks_exact(2 * half_step).zip(target.chunks_exact_mut(PANEL));
    for (panel, sums) in panels {
        multiplier.multiply(Tile {
            rows: ones.count,
            a: ones.codes,
            a_row: ones.stride,
            cells: panel,
            half_step,
            steps: ones.steps,
            bits: BITS,
            start: &[0; PANEL],
            sums,
            sums_row: PANEL,
        });
        for sum in sums {
            *sum = sum.wrapping_mul(factor);
        }
    }
}

/// One panel of context sums.
struct ContextSums<'a> {
    /// Rows of 32 sums `ΣP·V`.
    sums: &'a [i32],
    /// `ΣP` of each row.
    code_sums: &'a [i32],
    zero_point: i32,
    scale: f32,
}

/// `Δv/255 · (ΣP·V - zv·ΣP)` quantized, for one panel of dimensions.
struct FinishContext<'a> {
    sums: ContextSums<'a>,
    output: Output<'a>,
    /// Row of the context where the sums begin.
    row: usize,
    /// Columns of the context, at most 32.
    columns: Range<usize>,
}

impl<'a> FinishContext<'a> {
    /// # Safety
    /// No other thread may use these columns, in as many rows as there are sums, until the kernel has run.
    ///
    /// # Panics
    /// When there are not 32 sums for every code sum, or the context does not have the block.
    unsafe fn new(sums: ContextSums<'a>, output: Output<'a>, row: usize, columns: Range<usize>) -> Self {
        let rows = sums.code_sums.len();
        assert!(sums.sums.len() >= rows * PANEL && columns.len() <= PANEL, "{} sums for {rows} rows", sums.sums.len());
        output.context.block(row..row + rows, columns.clone());
        Self { sums, output, row, columns }
    }
}

impl Kernel for FinishContext<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { sums: ContextSums { sums, code_sums, zero_point, scale }, output, row, columns } = self;
        let lanes = QuantizerLanes::new(simd, &output.quantizer);
        let (scale, width) = (simd.splat(scale), columns.len());
        for (index, (&code_sum, sums)) in code_sums.iter().zip(sums.as_chunks::<PANEL>().0).enumerate() {
            let zeros = simd.splat_u32(code_sum.wrapping_mul(zero_point).cast_unsigned());
            let mut codes = [0_i8; PANEL];
            for offset in (0..PANEL).step_by(S::LANES) {
                // SAFETY: a row has 32 sums and `codes` 32 places.
                unsafe {
                    let sum = simd.sub_i32(simd.load_i32_ptr(sums.as_ptr().add(offset)), zeros);
                    let value = simd.mul(simd.to_f32(sum), scale);
                    simd.store_i8_ptr(codes.as_mut_ptr().add(offset), lanes.codes(simd, value));
                }
            }
            let target = output.context.address(row + index, columns.start);
            // SAFETY: `new` checked that the context has these columns, and its caller promised that they are ours;
            // neighbours belong to others. The usual width has a fixed length, which is one instruction.
            unsafe {
                if width == PANEL {
                    std::ptr::copy_nonoverlapping(codes.as_ptr(), target, PANEL);
                } else {
                    std::ptr::copy_nonoverlapping(codes.as_ptr(), target, width);
                }
            }
        }
    }
}
