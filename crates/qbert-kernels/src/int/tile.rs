//! One tile of integer sums: what goes in, what comes out.
//!
//! A tile is `rows × 32` sums `start + Σ A'·W`, accumulated in i32 that wraps, so that the result does not depend on
//! the order of the additions: every multiplier gives the same integers.
//!
//! `A'` are activation codes minus 128 (`i8`), `W` weight codes (`u8`). With signed activations and unsigned weights,
//! rather than the other way round, all eight-bit weight codes fit, a shift of the zero point corrects for the 128, and
//! AVX2's 16-bit pair sums have twice the room.

use super::layout::{CELL, CELL_INPUTS, TILE_NEURONS};

/// Neurons of a panel, two tiles side by side: the width of a tile of sums.
pub(super) const PANEL: usize = 2 * TILE_NEURONS;

/// Rows of activation codes that go into one tile.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) count: usize,
    /// `4·steps` codes each, `stride` bytes apart.
    pub(super) codes: &'a [i8],
    pub(super) stride: usize,
    pub(super) steps: usize,
}

/// One tile of sums.
pub(super) struct Tile<'a> {
    pub(super) rows: usize,
    /// Rows of `4·steps` codes, `a_row` bytes apart, or these rows in the multiplier's order.
    pub(super) a: &'a [i8],
    pub(super) a_row: usize,
    /// `steps` cells of the first sixteen neurons, and `half_step` bytes later those of the second (0 where there are
    /// only sixteen: they then stand for both). In the multiplier's order.
    pub(super) cells: &'a [u8],
    pub(super) half_step: usize,
    pub(super) steps: usize,
    /// Every byte of the cells is below `2^bits`, or the sums are wrong.
    pub(super) bits: u8,
    pub(super) start: &'a [i32; PANEL],
    /// Rows of 32 sums, `sums_row` integers apart.
    pub(super) sums: &'a mut [i32],
    pub(super) sums_row: usize,
}

/// A [`Tile`] by address, as [`super::multiplier::Multiply::multiply`] takes it.
///
/// Promises: `rows` rows of `4·steps` readable codes at `a`, or as many bytes as a full tile of rows takes in the
/// multiplier's own order; `steps` readable cells at `cells` and at
/// `cells + half_step`; 32 readable integers at `start`; `rows` rows of 32 writable integers at `sums`, which overlap
/// nothing else.
#[derive(Clone, Copy)]
pub(super) struct TileAddresses {
    pub(super) rows: usize,
    pub(super) a: *const i8,
    /// Bytes between rows of `a`.
    pub(super) a_row: usize,
    pub(super) cells: *const u8,
    /// Bytes from the cells of the first sixteen neurons to those of the second.
    pub(super) half_step: usize,
    pub(super) steps: usize,
    pub(super) bits: u8,
    pub(super) start: *const i32,
    pub(super) sums: *mut i32,
    /// Integers between rows of `sums`.
    pub(super) sums_row: usize,
}

impl Tile<'_> {
    /// The addresses, after a check that every slice is long enough. `arranged` is how many bytes a tile of rows takes in
    /// the multiplier's own order, if it has one.
    #[inline(always)]
    pub(super) fn checked(self, most_rows: usize, arranged: Option<usize>) -> TileAddresses {
        let Self { rows, a, a_row, cells, half_step, steps, bits, start, sums, sums_row } = self;
        assert!((1..=most_rows).contains(&rows), "tile of {rows} rows, at most {most_rows}");
        let codes = arranged.unwrap_or((rows - 1) * a_row + steps * CELL_INPUTS);
        assert!(codes <= a.len(), "too few codes for {rows} rows");
        assert!(half_step + steps * CELL <= cells.len(), "too few cells for {steps} steps");
        assert!((rows - 1) * sums_row + PANEL <= sums.len() && (rows == 1 || sums_row >= PANEL), "too few sums");
        TileAddresses {
            rows,
            a: a.as_ptr(),
            a_row,
            cells: cells.as_ptr(),
            half_step,
            steps,
            bits,
            start: start.as_ptr(),
            sums: sums.as_mut_ptr(),
            sums_row,
        }
    }
}
