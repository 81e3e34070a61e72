//! Self-attention on codes, for every sequence and head, without padding between sequences.
//!
//! ```text
//! score_ij  = Σ_d (Q_id - zq)·(K_jd - zk)                               exact
//! p_ij      = softmax_j(score_ij · Δq·Δk/√D)                            f32
//! P_ij      = round_half_even(255 · p_ij)
//! context   = Δv/255 · Σ_j P_ij·(V_jd - zv)                             exact sum, then quantized
//! ```
//!
//! Both products run on the micro-kernel of the linear layers: keys and values of a head are first laid out as cells,
//! keys as "neurons" of `D` inputs, dimensions of the values as "neurons" of one input per key. Then a dozen queries at
//! a time go all the way from scores to context within the first-level cache. Terms that are the same for a whole row
//! of scores do not change its softmax and are left out.

use super::codes::{Codes, Quantizer, QuantizerLanes};
use super::layout::{CELL, CELL_INPUTS, TILE_NEURONS};
use super::linear::share;
use super::softmax::SoftmaxRows;
use super::tile::{MAX_ROWS, Multiplier, PANEL, Tile};
use crate::compute::Compute;
use crate::simd::{Kernel, Simd};
use crate::threads::Shared;
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
    }
}

impl Compute {
    /// Attention of all sequences and heads over all threads; `context` already has as many rows as there are tokens.
    ///
    /// # Panics
    /// When shapes do not fit together.
    pub fn attention(&self, input: &AttentionInput<'_>, context: &mut Codes, quantizer: Quantizer) {
        input.check(context);
        if context.rows() == 0 || context.cols() == 0 {
            return;
        }
        let stride = context.stride();
        let target = Shared(context.as_mut_ptr());
        let per_task = heads_per_task(input.heads, input.head_size());
        let groups = input.heads.div_ceil(per_task);
        self.threads().for_each(input.sequences() * groups, |task| {
            let (sequence, group) = (task / groups, task % groups);
            let tokens = input.starts[sequence]..input.starts[sequence + 1];
            if tokens.is_empty() {
                return;
            }
            let room = Room::new(input.head_size(), tokens.len());
            let mut scratch = self.scratch(room.bytes().div_ceil(size_of::<f32>()));
            let base = scratch.as_mut_ptr().cast::<u8>();
            for head in group * per_task..input.heads.min((group + 1) * per_task) {
                let output = Output { base: target.get(), stride, quantizer };
                let head = Head { compute: self, input, head, tokens: tokens.clone(), room: &room, base, output };
                // SAFETY: the scratch has the room; this task alone writes these tokens and heads of the context.
                unsafe { head.run() };
            }
        });
    }
}

/// So many heads that a task writes whole cache lines of the context, where their width allows it.
fn heads_per_task(heads: usize, head_size: usize) -> usize {
    const LINE: usize = 64;
    let mut count = 1;
    while count < heads && !(count * head_size).is_multiple_of(LINE) && count * head_size < 4 * LINE {
        count += 1;
    }
    count
}

/// Where each buffer of a head lies in the scratch memory, in bytes.
struct Room {
    head_size: usize,
    tokens: usize,
    /// Steps of four inputs through a head's dimensions, and through the keys.
    dimension_steps: usize,
    key_steps: usize,
    /// Panels of 32 keys, and of 32 dimensions.
    key_panels: usize,
    dimension_panels: usize,
}

impl Room {
    fn new(head_size: usize, tokens: usize) -> Self {
        Self {
            head_size,
            tokens,
            dimension_steps: head_size.div_ceil(CELL_INPUTS),
            key_steps: tokens.div_ceil(CELL_INPUTS),
            key_panels: tokens.div_ceil(PANEL),
            dimension_panels: head_size.div_ceil(PANEL),
        }
    }

    fn key_cells(&self) -> usize {
        2 * self.key_panels * self.dimension_steps * CELL
    }

    fn value_cells(&self) -> usize {
        2 * self.dimension_panels * self.key_steps * CELL
    }

    fn scores_row(&self) -> usize {
        self.key_panels * PANEL
    }

    /// Bytes of a row of probability codes: also long enough for a row of ones in either product.
    fn codes_row(&self) -> usize {
        (self.key_panels * PANEL).max(self.dimension_steps * CELL_INPUTS).next_multiple_of(CELL)
    }

    /// Offsets of: key cells, value cells, starts of the scores, starts of the context, scores, sums of the context,
    /// codes, sums of codes, end.
    fn offsets(&self) -> [usize; 9] {
        let integer = size_of::<i32>();
        let lengths = [
            self.key_cells(),
            self.value_cells(),
            self.key_panels * PANEL * integer,
            self.dimension_panels * PANEL * integer,
            MAX_ROWS * self.scores_row() * integer,
            MAX_ROWS * PANEL * integer,
            MAX_ROWS * self.codes_row(),
            MAX_ROWS * integer,
        ];
        let mut offsets = [0; 9];
        for (index, length) in lengths.iter().enumerate() {
            offsets[index + 1] = offsets[index] + length.next_multiple_of(CELL);
        }
        offsets
    }

    fn bytes(&self) -> usize {
        self.offsets()[8]
    }
}

/// The context matrix by address.
#[derive(Clone, Copy)]
struct Output {
    base: *mut i8,
    stride: usize,
    quantizer: Quantizer,
}

/// One head of one sequence.
struct Head<'a> {
    compute: &'a Compute,
    input: &'a AttentionInput<'a>,
    head: usize,
    tokens: Range<usize>,
    room: &'a Room,
    base: *mut u8,
    output: Output,
}

impl Head<'_> {
    fn part<T>(&self, index: usize) -> *mut T {
        self.base.wrapping_add(self.room.offsets()[index]).cast()
    }

    /// The codes of this head at one token.
    fn codes_at(&self, codes: &Codes, token: usize) -> *const i8 {
        codes.as_ptr().wrapping_add((self.tokens.start + token) * codes.stride() + self.head * self.room.head_size)
    }

    /// # Safety
    /// `base` must have [`Room::bytes`] bytes, aligned to 64 and nobody else's; so must the context's part be.
    unsafe fn run(&self) {
        let multiplier = Multiplier::of(self.compute.kernels());
        let room = self.room;
        // SAFETY: all buffers are inside the scratch memory, codes inside their matrices.
        unsafe {
            self.lay_out_keys();
            self.lay_out_values();
            let ones = self.part::<i8>(6);
            std::ptr::write_bytes(ones, 1, room.codes_row());
            // Scores start from -zq·ΣK, context sums from 128·ΣV, because stored codes are lower by 128.
            let query_zero = self.input.query.1.shifted_zero();
            let keys = (self.part::<u8>(0).cast_const(), room.dimension_steps, room.key_panels);
            starts(multiplier, ones, keys, -query_zero, self.part(2));
            let values = (self.part::<u8>(1).cast_const(), room.key_steps, room.dimension_panels);
            starts(multiplier, ones, values, 128, self.part(3));
            let tiles = room.tokens.div_ceil(multiplier.rows(8));
            for rows in (0..tiles).map(|tile| share(room.tokens, tiles, tile)) {
                self.queries(multiplier, rows);
            }
        }
    }

    /// Keys as cells: lane `j` of a cell has four dimensions of key `j`, as unsigned codes; zeros beyond the end.
    ///
    /// # Safety
    /// As [`Head::run`].
    unsafe fn lay_out_keys(&self) {
        let (room, keys) = (self.room, self.input.key.0);
        let cells = self.part::<u8>(0);
        let whole = room.head_size / CELL_INPUTS;
        // SAFETY: every cell is inside the key cells; four codes are read inside a head, single ones in its tail.
        unsafe {
            if room.tokens < room.key_panels * PANEL || whole < room.dimension_steps {
                std::ptr::write_bytes(cells, 0, room.key_cells());
            }
            for token in 0..room.tokens {
                let from = self.codes_at(keys, token);
                let tile = cells.add(token / TILE_NEURONS * room.dimension_steps * CELL);
                let lane = tile.add(token % TILE_NEURONS * CELL_INPUTS);
                for step in 0..whole {
                    let four = from.add(step * CELL_INPUTS).cast::<u32>().read_unaligned();
                    lane.add(step * CELL).cast::<u32>().write(four ^ 0x8080_8080);
                }
                for rest in whole * CELL_INPUTS..room.head_size {
                    lane.add(whole * CELL + rest % CELL_INPUTS).write((*from.add(rest)).cast_unsigned() ^ 0x80);
                }
            }
        }
    }

    /// Values as cells: lane `d` of a cell has dimension `d` of four keys, as unsigned codes; zeros beyond the end.
    ///
    /// # Safety
    /// As [`Head::run`].
    unsafe fn lay_out_values(&self) {
        let (room, values) = (self.room, self.input.value.0);
        let cells = self.part::<u8>(1);
        let tiles = room.head_size.div_ceil(TILE_NEURONS);
        for tile in 0..2 * room.dimension_panels {
            for step in 0..room.key_steps {
                let mut rows = [[0x80_u8; TILE_NEURONS]; CELL_INPUTS];
                let first = tile * TILE_NEURONS;
                let width = if tile < tiles { TILE_NEURONS.min(room.head_size - first) } else { 0 };
                let tokens = step * CELL_INPUTS..room.tokens.min((step + 1) * CELL_INPUTS);
                for (row, token) in rows.iter_mut().zip(tokens) {
                    let from = self.codes_at(values, token).wrapping_add(first).cast::<u8>();
                    // SAFETY: `width` codes of the head are readable; a full width has a fixed length.
                    unsafe {
                        if width == TILE_NEURONS {
                            *row = from.cast::<[u8; TILE_NEURONS]>().read_unaligned();
                        } else {
                            std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), width);
                        }
                    }
                }
                // SAFETY: the cell is inside the value cells.
                let cell = unsafe { &mut *cells.add((tile * room.key_steps + step) * CELL).cast::<[u8; CELL]>() };
                for lane in 0..TILE_NEURONS {
                    for (key, row) in rows.iter().enumerate() {
                        cell[lane * CELL_INPUTS + key] = row[lane] ^ 0x80;
                    }
                }
            }
        }
    }

    /// Some queries from scores to context.
    ///
    /// # Safety
    /// As [`Head::run`]; cells and starts must be there.
    unsafe fn queries(&self, multiplier: Multiplier, rows: Range<usize>) {
        let (room, kernels) = (self.room, self.compute.kernels());
        let (queries, query) = self.input.query;
        // SAFETY: all buffers are inside the scratch memory and do not overlap, codes inside their matrices.
        unsafe {
            let tile = Tile {
                rows: rows.len(),
                a: self.codes_at(queries, rows.start),
                a_row: queries.stride(),
                cells: self.part(0),
                half_step: room.dimension_steps * CELL,
                steps: room.dimension_steps,
                bits: 8,
                start: self.part(2),
                sums: self.part(4),
                sums_row: room.scores_row(),
            };
            for panel in 0..room.key_panels {
                multiplier.multiply(&panel_of(tile, panel));
            }
            let scores = std::slice::from_raw_parts_mut(self.part::<i32>(4), rows.len() * room.scores_row());
            let codes = std::slice::from_raw_parts_mut(self.part::<i8>(6), rows.len() * room.codes_row());
            let sums = std::slice::from_raw_parts_mut(self.part::<i32>(7), rows.len());
            let scale = query.step * self.input.key.1.step / (room.head_size as f32).sqrt();
            let (scores_row, codes_row, count) = (room.scores_row(), room.codes_row(), room.tokens);
            kernels.run(SoftmaxRows { scores, scores_row, count, scale, codes, codes_row, sums });
            let tile = Tile {
                rows: rows.len(),
                a: self.part(6),
                a_row: codes_row,
                cells: self.part(1),
                half_step: room.key_steps * CELL,
                steps: room.key_steps,
                bits: 8,
                start: self.part(3),
                sums: self.part(5),
                sums_row: PANEL,
            };
            for panel in 0..room.dimension_panels {
                multiplier.multiply(&Tile { sums: tile.sums, ..panel_of(tile, panel) });
                let sums = std::slice::from_raw_parts(self.part::<i32>(7), rows.len());
                kernels.run(self.finish(rows.start, panel, sums));
            }
        }
    }

    fn finish<'b>(&self, row: usize, panel: usize, code_sums: &'b [i32]) -> FinishContext<'b> {
        let value = self.input.value.1;
        let column = self.head * self.room.head_size + panel * PANEL;
        FinishContext {
            sums: self.part::<i32>(5),
            code_sums,
            zero_point: i32::from(value.zero_point),
            scale: value.step / 255.0,
            target: self.output.base.wrapping_add((self.tokens.start + row) * self.output.stride + column),
            width: PANEL.min(self.room.head_size - panel * PANEL),
            output: self.output,
        }
    }
}

/// The tile of another panel.
///
/// # Safety
/// There must be such a panel.
unsafe fn panel_of(tile: Tile, panel: usize) -> Tile {
    // SAFETY: the caller's promise.
    unsafe {
        Tile {
            cells: tile.cells.add(panel * 2 * tile.half_step),
            start: tile.start.add(panel * PANEL),
            sums: tile.sums.add(panel * PANEL),
            ..tile
        }
    }
}

/// Writes `factor · Σ codes` of every lane of all panels.
///
/// # Safety
/// `ones` must have `4·steps` ones, `cells` `panels` panels of `steps` cells, `target` room for as many panels.
unsafe fn starts(
    multiplier: Multiplier,
    ones: *const i8,
    (cells, steps, panels): (*const u8, usize, usize),
    factor: i32,
    target: *mut i32,
) {
    let zeros = [0_i32; PANEL];
    for panel in 0..panels {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = target.add(panel * PANEL);
            multiplier.multiply(&Tile {
                rows: 1,
                a: ones,
                a_row: 0,
                cells: cells.add(panel * 2 * steps * CELL),
                half_step: steps * CELL,
                steps,
                bits: 8,
                start: zeros.as_ptr(),
                sums,
                sums_row: PANEL,
            });
            for sum in std::slice::from_raw_parts_mut(sums, PANEL) {
                *sum = sum.wrapping_mul(factor);
            }
        }
    }
}

/// `Δv/255 · (ΣP·V - zv·ΣP)` quantized, for one panel of dimensions.
struct FinishContext<'a> {
    /// Rows of 32 sums `ΣP·V`.
    sums: *const i32,
    /// `ΣP` of each row.
    code_sums: &'a [i32],
    zero_point: i32,
    scale: f32,
    /// The context's codes of the first row and dimension.
    target: *mut i8,
    /// Dimensions that exist, at most 32.
    width: usize,
    output: Output,
}

impl Kernel for FinishContext<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let lanes = QuantizerLanes::new(simd, &self.output.quantizer);
        let scale = simd.splat(self.scale);
        for (row, &code_sum) in self.code_sums.iter().enumerate() {
            let zeros = simd.splat_u32(code_sum.wrapping_mul(self.zero_point).cast_unsigned());
            let mut codes = [0_i8; PANEL];
            for offset in (0..PANEL).step_by(S::LANES) {
                // SAFETY: a row has 32 sums and `codes` 32 places.
                unsafe {
                    let sum = simd.sub_i32(simd.load_i32_ptr(self.sums.add(row * PANEL + offset)), zeros);
                    let value = simd.mul(simd.to_f32(sum), scale);
                    simd.store_i8_ptr(codes.as_mut_ptr().add(offset), lanes.codes(simd, value));
                }
            }
            let target = self.target.wrapping_add(row * self.output.stride);
            // SAFETY: the row has this head's dimensions; neighbours belong to others. The usual width has a fixed
            // length, which is one instruction.
            unsafe {
                if self.width == PANEL {
                    std::ptr::copy_nonoverlapping(codes.as_ptr(), target, PANEL);
                } else {
                    std::ptr::copy_nonoverlapping(codes.as_ptr(), target, self.width);
                }
            }
        }
    }
}
