//! NEON with dot products: `sdot` multiplies sixteen pairs of signed bytes and adds them to four sums.
//!
//! The form that takes four activations from a lane fits the stored cells: a cell is four vectors of four neurons. A full
//! tile is six rows with sixteen neurons, 24 sums. Rows come in pairs (`row_pairs.rs`), so that three vectors hold six
//! rows at eight inputs, and one load brings them.
//!
//! Eight-bit codes are moved down by 128 when a panel is widened. The correction, `128·ΣA'` of each row, is computed once
//! when rows are arranged and stored after them.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Multiply;
use super::neon::{correction, make_signed, widen};
use super::row_pairs::{self, PAIR};
use crate::int::layout::{CELL, TILE_NEURONS};
use crate::int::tile::{Rows, TileAddresses};
use crate::simd::neon::Neon;
use crate::simd::{InstructionSet, Simd};

/// Proof that the CPU has NEON with dot products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NeonDotprod(Neon);

/// Rows of a full tile.
const ROWS: usize = 6;
/// Double steps of the inner loop, a block of the stored layout.
const UNROLLED: usize = 4;
/// Bytes of a row's correction.
const CORRECTION: usize = size_of::<i32>();

impl Multiply for NeonDotprod {
    // The order is that of the file, but eight-bit codes are moved.
    const OWN_ORDER: bool = true;
    const OWN_ROWS: bool = true;

    fn detect() -> Option<Self> {
        Neon::detect().filter(|_| std::arch::is_aarch64_feature_detected!("dotprod")).map(Self)
    }

    fn instruction_set(self) -> InstructionSet {
        self.0.into()
    }

    fn rows(self, _bits: u8) -> usize {
        ROWS
    }

    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        widen(self.0, bits, packed, cells);
    }

    fn rearrange(self, bits: u8, cells: &mut [u8]) {
        make_signed(bits, cells);
    }

    fn arranged_bytes(self, steps: usize) -> usize {
        row_pairs::bytes(ROWS, steps) + ROWS * CORRECTION
    }

    fn arrange(self, rows: Rows<'_>, arranged: &mut [i8]) {
        let (pairs, corrections) = arranged.split_at_mut(row_pairs::bytes(rows.count, rows.steps));
        row_pairs::arrange(rows, pairs);
        for (row, target) in corrections.as_chunks_mut::<CORRECTION>().0.iter_mut().take(rows.count).enumerate() {
            *target = correction(row_pairs::row_of(rows, row)).to_ne_bytes().map(u8::cast_signed);
        }
    }

    #[inline]
    unsafe fn multiply(self, tile: &TileAddresses) {
        // SAFETY: passed on from the caller; `self` proves that the CPU has the features.
        unsafe { multiply(tile) }
    }
}

/// One tile of sums.
///
/// # Safety
/// As [`TileAddresses`] says; at most [`ROWS`] rows, on a CPU with dot products.
unsafe fn multiply(tile: &TileAddresses) {
    for half in 0..2 {
        // SAFETY: passed on from the caller.
        unsafe {
            match tile.rows {
                1 => sixteen_neurons::<1>(tile, half),
                2 => sixteen_neurons::<2>(tile, half),
                3 => sixteen_neurons::<3>(tile, half),
                4 => sixteen_neurons::<4>(tile, half),
                5 => sixteen_neurons::<5>(tile, half),
                6 => sixteen_neurons::<6>(tile, half),
                rows => unreachable!("tile of {rows} rows"),
            }
        }
    }
}

/// Sums of one row with the four vectors of a cell.
type RowSums = [int32x4_t; 4];

/// One half of a tile of `ROWS` rows.
#[target_feature(enable = "neon,dotprod")]
unsafe fn sixteen_neurons<const ROWS: usize>(tile: &TileAddresses, half: usize) {
    let mut sums: [RowSums; ROWS] = [[vdupq_n_s32(0); 4]; ROWS];
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        let (mut a, mut cells) = (tile.a, tile.cells.add(half * tile.half_step));
        let double_steps = tile.steps / 2;
        for _ in 0..double_steps / UNROLLED {
            for _ in 0..UNROLLED {
                add_double_step(&mut sums, &mut a, &mut cells);
            }
        }
        for _ in 0..double_steps % UNROLLED {
            add_double_step(&mut sums, &mut a, &mut cells);
        }
        if !tile.steps.is_multiple_of(2) {
            add_cell::<ROWS, false>(&mut sums, a, cells);
        }
        let corrections = tile.a.add(row_pairs::bytes(ROWS, tile.steps)).cast::<i32>();
        for (row, sums) in sums.iter().enumerate() {
            let correction = if tile.bits == 8 { corrections.add(row).read_unaligned() } else { 0 };
            for (vector, &sum) in sums.iter().enumerate() {
                let neuron = half * TILE_NEURONS + vector * 4;
                let start = vaddq_s32(vld1q_s32(tile.start.add(neuron)), vdupq_n_s32(correction));
                vst1q_s32(tile.sums.add(row * tile.sums_row + neuron), vaddq_s32(sum, start));
            }
        }
    }
}

/// Adds the products of two cells, eight inputs, to all sums and moves on to the next two.
#[target_feature(enable = "neon,dotprod")]
#[inline]
unsafe fn add_double_step<const ROWS: usize>(sums: &mut [RowSums; ROWS], a: &mut *const i8, cells: &mut *const u8) {
    // SAFETY: passed on from the caller.
    unsafe {
        // The number of rows is constant: one of the branches is compiled in.
        if let Ok(sums) = <&mut [RowSums; 6]>::try_from(&mut sums[..]) {
            add_full_double_step(sums, a, cells);
        } else {
            add_cell::<ROWS, false>(sums, *a, *cells);
            add_cell::<ROWS, true>(sums, *a, cells.add(CELL));
            *a = a.add(row_pairs::pairs(ROWS) * PAIR);
            *cells = cells.add(2 * CELL);
        }
    }
}

/// Adds the products of one cell: the first of a double step, or the second.
#[target_feature(enable = "neon,dotprod")]
#[inline]
unsafe fn add_cell<const ROWS: usize, const SECOND: bool>(sums: &mut [RowSums; ROWS], a: *const i8, cell: *const u8) {
    // SAFETY: inside what the caller promises.
    let (pairs, weights): (_, [int8x16_t; 4]) = unsafe {
        let pair = |row: usize| vld1q_s8(a.add(row / 2 * PAIR));
        (std::array::from_fn::<_, ROWS, _>(pair), std::array::from_fn(|vector| vld1q_s8(cell.add(vector * 16).cast())))
    };
    for (row, sums) in sums.iter_mut().enumerate() {
        for (sum, &weights) in sums.iter_mut().zip(&weights) {
            // The lanes of a pair: two steps of its first row, then two of its second.
            *sum = match (row % 2, SECOND) {
                (0, false) => sdot::<0>(*sum, weights, pairs[row]),
                (0, true) => sdot::<1>(*sum, weights, pairs[row]),
                (_, false) => sdot::<2>(*sum, weights, pairs[row]),
                (_, true) => sdot::<3>(*sum, weights, pairs[row]),
            };
        }
    }
}

/// Adds the products of four neurons with the four activations of one lane.
// The intrinsic is not stable.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot<const LANE: usize>(mut sums: int32x4_t, weights: int8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: an instruction on registers only, which the CPU has.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {weights:v}.16b, {a:v}.4b[{lane}]",
            sums = inout(vreg) sums,
            weights = in(vreg) weights,
            a = in(vreg) a,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// [`add_double_step`] for a full tile: three loads and 48 products. Written out, because the compiler would load vectors
/// one or two at a time.
#[target_feature(enable = "neon,dotprod")]
#[inline]
unsafe fn add_full_double_step(sums: &mut [RowSums; 6], a: &mut *const i8, cells: &mut *const u8) {
    /// One row with the cell in v24 to v27.
    #[rustfmt::skip]
    macro_rules! row {
        ($row:literal, $a:literal) => {
            concat!(
                "sdot {s", $row, "0:v}.4s, v24.16b, ", $a, "\n",
                "sdot {s", $row, "1:v}.4s, v25.16b, ", $a, "\n",
                "sdot {s", $row, "2:v}.4s, v26.16b, ", $a, "\n",
                "sdot {s", $row, "3:v}.4s, v27.16b, ", $a,
            )
        };
    }
    // SAFETY: reads three pairs and two cells, which the caller promises; the CPU has the instructions.
    unsafe {
        asm!(
            "ld1 {{v28.16b-v30.16b}}, [{a}], #48",
            "ld1 {{v24.16b-v27.16b}}, [{cells}], #64",
            row!("0", "v28.4b[0]"),
            row!("1", "v28.4b[2]"),
            row!("2", "v29.4b[0]"),
            row!("3", "v29.4b[2]"),
            row!("4", "v30.4b[0]"),
            row!("5", "v30.4b[2]"),
            "ld1 {{v24.16b-v27.16b}}, [{cells}], #64",
            row!("0", "v28.4b[1]"),
            row!("1", "v28.4b[3]"),
            row!("2", "v29.4b[1]"),
            row!("3", "v29.4b[3]"),
            row!("4", "v30.4b[1]"),
            row!("5", "v30.4b[3]"),
            a = inout(reg) *a,
            cells = inout(reg) *cells,
            s00 = inout(vreg) sums[0][0], s01 = inout(vreg) sums[0][1],
            s02 = inout(vreg) sums[0][2], s03 = inout(vreg) sums[0][3],
            s10 = inout(vreg) sums[1][0], s11 = inout(vreg) sums[1][1],
            s12 = inout(vreg) sums[1][2], s13 = inout(vreg) sums[1][3],
            s20 = inout(vreg) sums[2][0], s21 = inout(vreg) sums[2][1],
            s22 = inout(vreg) sums[2][2], s23 = inout(vreg) sums[2][3],
            s30 = inout(vreg) sums[3][0], s31 = inout(vreg) sums[3][1],
            s32 = inout(vreg) sums[3][2], s33 = inout(vreg) sums[3][3],
            s40 = inout(vreg) sums[4][0], s41 = inout(vreg) sums[4][1],
            s42 = inout(vreg) sums[4][2], s43 = inout(vreg) sums[4][3],
            s50 = inout(vreg) sums[5][0], s51 = inout(vreg) sums[5][1],
            s52 = inout(vreg) sums[5][2], s53 = inout(vreg) sums[5][3],
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            out("v28") _, out("v29") _, out("v30") _,
            options(readonly, nostack, preserves_flags),
        );
    }
}
