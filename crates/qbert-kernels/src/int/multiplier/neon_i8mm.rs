//! NEON with matrix products: `usmmla` multiplies two rows of eight unsigned bytes with two of signed ones, 32 products and
//! four sums.
//!
//! Weights are unsigned and activations signed, so every width works as it is. A vector holds eight inputs of two neurons:
//! two neighbouring cells are zipped when a panel is widened. Rows come in pairs (`row_pairs.rs`). A full tile is three
//! pairs of rows with eight pairs of neurons, 24 vectors of sums.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Multiply;
use super::neon::widen;
use super::row_pairs::{self, PAIR};
use crate::int::layout::{CELL, TILE_NEURONS};
use crate::int::tile::{Rows, TileAddresses};
use crate::simd::neon::Neon;
use crate::simd::{InstructionSet, Simd};

/// Proof that the CPU has NEON with matrix products of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NeonI8mm(Neon);

/// Rows of a full tile.
const ROWS: usize = 6;
/// Double steps of the inner loop, a block of the stored layout.
const UNROLLED: usize = 4;
/// Bytes of a vector.
const VECTOR: usize = 16;

impl Multiply for NeonI8mm {
    const OWN_ORDER: bool = true;
    const OWN_ROWS: bool = true;

    fn detect() -> Option<Self> {
        Neon::detect().filter(|_| std::arch::is_aarch64_feature_detected!("i8mm")).map(Self)
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

    fn rearrange(self, _bits: u8, cells: &mut [u8]) {
        // An odd last cell stays as it is.
        for cells in cells.as_chunks_mut::<{ 2 * CELL }>().0 {
            // SAFETY: `self` proves that the CPU has NEON.
            unsafe { zip_cells(cells) };
        }
    }

    fn arranged_bytes(self, steps: usize) -> usize {
        row_pairs::bytes(ROWS, steps)
    }

    fn arrange(self, rows: Rows<'_>, arranged: &mut [i8]) {
        row_pairs::arrange(rows, arranged);
    }

    #[inline]
    unsafe fn multiply(self, tile: &TileAddresses) {
        // SAFETY: passed on from the caller; `self` proves that the CPU has the features.
        unsafe { multiply(tile) }
    }
}

/// Puts eight inputs of each neuron side by side.
#[target_feature(enable = "neon")]
fn zip_cells(cells: &mut [u8; 2 * CELL]) {
    // SAFETY: two cells are eight vectors, each read before any is written.
    unsafe {
        let load = |vector: usize| vld1q_u32(cells.as_ptr().add(vector * VECTOR).cast());
        let vectors: [uint32x4_t; 8] = std::array::from_fn(load);
        let target = cells.as_mut_ptr();
        for index in 0..4 {
            let (first, second) = (vectors[index], vectors[4 + index]);
            vst1q_u32(target.add(2 * index * VECTOR).cast(), vzip1q_u32(first, second));
            vst1q_u32(target.add((2 * index + 1) * VECTOR).cast(), vzip2q_u32(first, second));
        }
    }
}

/// One tile of sums.
///
/// # Safety
/// As [`TileAddresses`] says; at most [`ROWS`] rows, on a CPU with matrix products.
unsafe fn multiply(tile: &TileAddresses) {
    for half in 0..2 {
        // SAFETY: passed on from the caller.
        unsafe {
            match row_pairs::pairs(tile.rows) {
                1 => sixteen_neurons::<1>(tile, half),
                2 => sixteen_neurons::<2>(tile, half),
                3 => sixteen_neurons::<3>(tile, half),
                pairs => unreachable!("tile of {pairs} pairs of rows"),
            }
        }
    }
}

/// Sums of a pair of rows with eight pairs of neurons: the first neuron with both rows, then the second.
type PairSums = [int32x4_t; 8];

/// One half of a tile of `PAIRS` pairs of rows.
#[target_feature(enable = "neon,i8mm")]
unsafe fn sixteen_neurons<const PAIRS: usize>(tile: &TileAddresses, half: usize) {
    let mut sums: [PairSums; PAIRS] = [[vdupq_n_s32(0); 8]; PAIRS];
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
            add_products(&mut sums, a, last_cell(cells));
        }
        for (pair, sums) in sums.iter().enumerate() {
            for (index, &[first, second]) in sums.as_chunks::<2>().0.iter().enumerate() {
                let neuron = half * TILE_NEURONS + index * 4;
                let (start, row) = (vld1q_s32(tile.start.add(neuron)), 2 * pair);
                let target = tile.sums.add(row * tile.sums_row + neuron);
                vst1q_s32(target, vaddq_s32(vuzp1q_s32(first, second), start));
                if row + 1 < tile.rows {
                    vst1q_s32(target.add(tile.sums_row), vaddq_s32(vuzp2q_s32(first, second), start));
                }
            }
        }
    }
}

/// Adds the products of eight inputs to all sums and moves on to the next eight.
#[target_feature(enable = "neon,i8mm")]
#[inline]
unsafe fn add_double_step<const PAIRS: usize>(sums: &mut [PairSums; PAIRS], a: &mut *const i8, cells: &mut *const u8) {
    // SAFETY: passed on from the caller.
    unsafe {
        // The number of pairs is constant: one of the branches is compiled in.
        if let Ok(sums) = <&mut [PairSums; 3]>::try_from(&mut sums[..]) {
            add_full_double_step(sums, a, cells);
        } else {
            add_products(sums, *a, std::array::from_fn(|vector| vld1q_u8(cells.add(vector * VECTOR))));
            *a = a.add(PAIRS * PAIR);
            *cells = cells.add(2 * CELL);
        }
    }
}

/// A cell without a neighbour, as if there were one of zeros.
#[target_feature(enable = "neon,i8mm")]
#[inline]
unsafe fn last_cell(cell: *const u8) -> [uint8x16_t; 8] {
    let zeros = vdupq_n_u32(0);
    std::array::from_fn(|vector| {
        // SAFETY: the caller promises a cell of four vectors.
        let codes = unsafe { vld1q_u32(cell.add(vector / 2 * VECTOR).cast()) };
        let zipped = if vector % 2 == 0 { vzip1q_u32(codes, zeros) } else { vzip2q_u32(codes, zeros) };
        vreinterpretq_u8_u32(zipped)
    })
}

/// Adds the products of eight inputs; the pairs of rows are at `a`.
#[target_feature(enable = "neon,i8mm")]
#[inline]
unsafe fn add_products<const PAIRS: usize>(sums: &mut [PairSums; PAIRS], a: *const i8, weights: [uint8x16_t; 8]) {
    for (pair, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller promises a vector for each pair of rows.
        let a = unsafe { vld1q_s8(a.add(pair * PAIR)) };
        for (sum, &weights) in sums.iter_mut().zip(&weights) {
            *sum = usmmla(*sum, weights, a);
        }
    }
}

/// Adds the products of two neurons with two rows.
// The intrinsic is not stable.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn usmmla(mut sums: int32x4_t, weights: uint8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: an instruction on registers only, which the CPU has.
    unsafe {
        asm!(
            "usmmla {sums:v}.4s, {weights:v}.16b, {a:v}.16b",
            sums = inout(vreg) sums,
            weights = in(vreg) weights,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// [`add_double_step`] for a full tile: three loads and 24 products of matrices. Written out, because the compiler would load
/// vectors one or two at a time.
#[target_feature(enable = "neon,i8mm")]
#[inline]
unsafe fn add_full_double_step(sums: &mut [PairSums; 3], a: &mut *const i8, cells: &mut *const u8) {
    /// One pair of neurons with the three pairs of rows in v28 to v30.
    #[rustfmt::skip]
    macro_rules! neurons {
        ($neurons:literal, $weights:literal) => {
            concat!(
                "usmmla {s0", $neurons, ":v}.4s, ", $weights, ".16b, v28.16b\n",
                "usmmla {s1", $neurons, ":v}.4s, ", $weights, ".16b, v29.16b\n",
                "usmmla {s2", $neurons, ":v}.4s, ", $weights, ".16b, v30.16b",
            )
        };
    }
    // SAFETY: reads three pairs and two cells, which the caller promises; the CPU has the instructions.
    unsafe {
        asm!(
            "ld1 {{v28.16b-v30.16b}}, [{a}], #48",
            "ld1 {{v24.16b-v27.16b}}, [{cells}], #64",
            neurons!("0", "v24"),
            neurons!("1", "v25"),
            neurons!("2", "v26"),
            neurons!("3", "v27"),
            "ld1 {{v24.16b-v27.16b}}, [{cells}], #64",
            neurons!("4", "v24"),
            neurons!("5", "v25"),
            neurons!("6", "v26"),
            neurons!("7", "v27"),
            a = inout(reg) *a,
            cells = inout(reg) *cells,
            s00 = inout(vreg) sums[0][0], s01 = inout(vreg) sums[0][1],
            s02 = inout(vreg) sums[0][2], s03 = inout(vreg) sums[0][3],
            s04 = inout(vreg) sums[0][4], s05 = inout(vreg) sums[0][5],
            s06 = inout(vreg) sums[0][6], s07 = inout(vreg) sums[0][7],
            s10 = inout(vreg) sums[1][0], s11 = inout(vreg) sums[1][1],
            s12 = inout(vreg) sums[1][2], s13 = inout(vreg) sums[1][3],
            s14 = inout(vreg) sums[1][4], s15 = inout(vreg) sums[1][5],
            s16 = inout(vreg) sums[1][6], s17 = inout(vreg) sums[1][7],
            s20 = inout(vreg) sums[2][0], s21 = inout(vreg) sums[2][1],
            s22 = inout(vreg) sums[2][2], s23 = inout(vreg) sums[2][3],
            s24 = inout(vreg) sums[2][4], s25 = inout(vreg) sums[2][5],
            s26 = inout(vreg) sums[2][6], s27 = inout(vreg) sums[2][7],
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            out("v28") _, out("v29") _, out("v30") _,
            options(readonly, nostack, preserves_flags),
        );
    }
}
