//! The sizes of a head and the scratch memory that computing it takes.

use crate::int::layout::{CELL, CELL_INPUTS};
use crate::int::multiplier::Multiplier;
use crate::int::tile::PANEL;
use crate::scratch::{Parts, part_bytes};

/// Width of all codes in attention.
pub(super) const BITS: u8 = 8;

/// The sizes of one head of one sequence.
pub(super) struct Shape {
    pub(super) head_size: usize,
    pub(super) tokens: usize,
    /// Queries of a tile.
    pub(super) rows: usize,
    /// Steps of four inputs through a head's dimensions, and through the keys, as many as the multiplier takes.
    pub(super) dimension_steps: usize,
    pub(super) key_steps: usize,
    /// Panels of 32 keys, and of 32 dimensions.
    pub(super) key_panels: usize,
    pub(super) dimension_panels: usize,
    /// Bytes of a tile of rows in the multiplier's order, for either product.
    arranged: usize,
}

impl Shape {
    pub(super) fn new(head_size: usize, tokens: usize, multiplier: Multiplier) -> Self {
        let steps = |inputs: usize| multiplier.padded_steps(inputs.div_ceil(CELL_INPUTS));
        let (dimension_steps, key_steps) = (steps(head_size), steps(tokens));
        Self {
            head_size,
            tokens,
            rows: multiplier.rows(BITS),
            dimension_steps,
            key_steps,
            arranged: multiplier.arranged_bytes(dimension_steps.max(key_steps)),
            key_panels: tokens.div_ceil(PANEL),
            dimension_panels: head_size.div_ceil(PANEL),
        }
    }

    /// Bytes of a tile of sixteen keys.
    pub(super) fn key_tile(&self) -> usize {
        self.dimension_steps * CELL
    }

    /// Bytes of a tile of sixteen dimensions.
    pub(super) fn value_tile(&self) -> usize {
        self.key_steps * CELL
    }

    pub(super) fn scores_row(&self) -> usize {
        self.key_panels * PANEL
    }

    /// Bytes of a row of probability codes: also long enough for a row of ones in either product.
    pub(super) fn codes_row(&self) -> usize {
        let steps = self.key_steps.max(self.dimension_steps);
        (self.key_panels * PANEL).max(steps * CELL_INPUTS).next_multiple_of(CELL)
    }

    fn lengths(&self) -> Lengths {
        Lengths {
            key_cells: 2 * self.key_panels * self.key_tile(),
            value_cells: 2 * self.dimension_panels * self.value_tile(),
            score_starts: self.key_panels * PANEL,
            context_starts: self.dimension_panels * PANEL,
            scores: self.rows * self.scores_row(),
            context_sums: self.rows * PANEL,
            codes: self.rows * self.codes_row(),
            arranged: self.arranged,
            code_sums: self.rows,
        }
    }

    /// Bytes of all [`Buffers`].
    pub(super) fn bytes(&self) -> usize {
        let lengths = self.lengths();
        let cells = part_bytes::<u8>(lengths.key_cells) + part_bytes::<u8>(lengths.value_cells);
        let starts = part_bytes::<i32>(lengths.score_starts) + part_bytes::<i32>(lengths.context_starts);
        let sums = part_bytes::<i32>(lengths.scores) + part_bytes::<i32>(lengths.context_sums);
        let codes = part_bytes::<i8>(lengths.codes) + part_bytes::<i8>(lengths.arranged);
        cells + starts + sums + codes + part_bytes::<i32>(lengths.code_sums)
    }
}

/// Elements of each of the [`Buffers`].
struct Lengths {
    key_cells: usize,
    value_cells: usize,
    score_starts: usize,
    context_starts: usize,
    scores: usize,
    context_sums: usize,
    codes: usize,
    arranged: usize,
    code_sums: usize,
}

/// The scratch memory of a head.
pub(super) struct Buffers<'a> {
    /// Keys as cells, tile after tile of sixteen keys.
    pub(super) key_cells: &'a mut [u8],
    /// Values as cells, tile after tile of sixteen dimensions.
    pub(super) value_cells: &'a mut [u8],
    /// What the scores of each key start from.
    pub(super) score_starts: &'a mut [i32],
    /// What the context sums of each dimension start from.
    pub(super) context_starts: &'a mut [i32],
    /// A row of scores for each query of a tile.
    pub(super) scores: &'a mut [i32],
    /// One panel of context sums for each query of a tile.
    pub(super) context_sums: &'a mut [i32],
    /// A row of probability codes for each query of a tile.
    pub(super) codes: &'a mut [i8],
    /// The queries or probability codes of a tile in the multiplier's order; empty where it has none.
    pub(super) arranged: &'a mut [i8],
    /// The sum of each row of probability codes.
    pub(super) code_sums: &'a mut [i32],
}

impl<'a> Buffers<'a> {
    pub(super) fn new(shape: &Shape, mut parts: Parts<'a>) -> Self {
        let lengths = shape.lengths();
        Self {
            key_cells: parts.take(lengths.key_cells),
            value_cells: parts.take(lengths.value_cells),
            score_starts: parts.take(lengths.score_starts),
            context_starts: parts.take(lengths.context_starts),
            scores: parts.take(lengths.scores),
            context_sums: parts.take(lengths.context_sums),
            codes: parts.take(lengths.codes),
            arranged: parts.take(lengths.arranged),
            code_sums: parts.take(lengths.code_sums),
        }
    }
}
