//! NEON alone, for ARM cores without dot products: `smlal` adds products into 16 bits, `sadalp` adds pairs of those to
//! 32-bit sums.
//!
//! `smlal` multiplies signed bytes. Codes of up to seven bits are such as they are; eight-bit codes are moved down by 128
//! when a panel is widened, and every sum is corrected by `128·ΣA'` of its row. With `|A'| ≤ 128` a lane of 16 bits has
//! room for one product of eight-bit codes, two of seven bits, and eight of five.

use std::arch::aarch64::*;

use super::{Multiply, widen_by_width};
use crate::int::layout::{BLOCK_CELLS, CELL, CELL_INPUTS, TILE_NEURONS, block_bytes, planes};
use crate::int::tile::TileAddresses;
use crate::simd::neon::Neon;
use crate::simd::{InstructionSet, Simd};

/// Proof that the CPU has NEON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NeonPairs(Neon);

/// Rows of a full tile: with eight neurons, twelve sums of 16 bits and twelve of 32.
const ROWS: usize = 3;
/// Neurons that are multiplied at once: half a cell.
const NEURONS: usize = 8;
/// Bytes of a vector: four neurons of a cell.
const VECTOR: usize = 16;

impl Multiply for NeonPairs {
    // The order is that of the file, but eight-bit codes are moved.
    const OWN_ORDER: bool = true;

    fn detect() -> Option<Self> {
        Neon::detect().map(Self)
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

    #[inline]
    unsafe fn multiply(self, tile: &TileAddresses) {
        // SAFETY: passed on from the caller; `self` proves that the CPU has NEON.
        unsafe { multiply(tile) }
    }
}

/// Widens the blocks of one tile to a byte per code, cell after cell: for every multiplier on ARM.
pub(super) fn widen(_: Neon, bits: u8, packed: &[u8], cells: &mut [u8]) {
    // SAFETY: the proof says that the CPU has NEON.
    unsafe { widen_by_width!(bits, widen_blocks(packed, cells)) }
}

/// As in `vnni.rs`, by quarters of a cell.
#[target_feature(enable = "neon")]
fn widen_blocks<const BITS: u8>(packed: &[u8], cells: &mut [u8]) {
    let blocks = packed.chunks_exact(block_bytes(BITS)).zip(cells.chunks_exact_mut(BLOCK_CELLS * CELL));
    for (block, cells) in blocks {
        for (place, target) in cells.as_chunks_mut::<VECTOR>().0.iter_mut().enumerate() {
            let (index, offset) = (place * VECTOR / CELL, place * VECTOR % CELL);
            let mut code = vdupq_n_u8(0);
            let mut start = 0;
            for &(plane, shift) in planes(BITS) {
                let per_byte = 8 / plane;
                let from = &block[start + index / per_byte * CELL + offset..][..VECTOR];
                // SAFETY: 16 bytes are there.
                let bytes = unsafe { vld1q_u8(from.as_ptr()) };
                let up = shift as i8 - (index % per_byte * plane) as i8;
                let mask = vdupq_n_u8((((1_u32 << plane) - 1) << shift) as u8);
                code = vorrq_u8(code, vandq_u8(vshlq_u8(bytes, vdupq_n_s8(up)), mask));
                start += CELL * plane;
            }
            // SAFETY: 16 bytes are there.
            unsafe { vst1q_u8(target.as_mut_ptr(), code) };
        }
    }
}

/// Moves eight-bit codes down by 128, so that they are signed bytes; narrower ones are already.
pub(super) fn make_signed(bits: u8, cells: &mut [u8]) {
    if bits == 8 {
        cells.iter_mut().for_each(|code| *code ^= 0x80);
    }
}

/// What the sums of a row lack if eight-bit codes were moved: `128·ΣA'`.
pub(super) fn correction(codes: &[i8]) -> i32 {
    codes.iter().map(|&code| i32::from(code)).fold(0, i32::wrapping_add).wrapping_mul(128)
}

/// How many products of codes of this width fit into 16 bits; no more than eight, which makes widening cheap enough.
const fn products(bits: u8) -> usize {
    match bits {
        8 => 1,
        7 => 2,
        6 => 4,
        _ => 8,
    }
}

// Seven bits and fewer: |A'| ≤ 128 and W < 2^bits. Eight bits: |W - 128| ≤ 128.
const _: () = {
    assert!(products(8) * 128 * 128 <= i16::MAX as usize);
    let mut bits = 1;
    while bits < 8 {
        assert!(products(bits) * 128 * ((1 << bits) - 1) <= i16::MAX as usize);
        bits += 1;
    }
};

/// One tile of sums.
///
/// # Safety
/// As [`TileAddresses`] says; at most [`ROWS`] rows, on a CPU with NEON.
unsafe fn multiply(tile: &TileAddresses) {
    macro_rules! by_rows {
        ($($rows:literal)*) => {
            match (tile.rows, products(tile.bits)) {
                $(($rows, 1) => multiply_rows::<$rows, 1>(tile),
                ($rows, 2) => multiply_rows::<$rows, 2>(tile),
                ($rows, 4) => multiply_rows::<$rows, 4>(tile),
                ($rows, _) => multiply_rows::<$rows, 8>(tile),)*
                (rows, _) => unreachable!("tile of {rows} rows"),
            }
        };
    }
    // SAFETY: passed on from the caller.
    unsafe { by_rows!(1 2 3) }
}

/// A tile of `ROWS` rows whose codes leave room for `RUN` products.
#[target_feature(enable = "neon")]
unsafe fn multiply_rows<const ROWS: usize, const RUN: usize>(tile: &TileAddresses) {
    let corrections: [i32; ROWS] = std::array::from_fn(|row| {
        if tile.bits < 8 {
            return 0;
        }
        // SAFETY: the caller promises `4·steps` codes in every row.
        correction(unsafe { std::slice::from_raw_parts(tile.a.add(row * tile.a_row), tile.steps * CELL_INPUTS) })
    });
    for part in 0..2 * TILE_NEURONS / NEURONS {
        let (half, offset) = (part * NEURONS / TILE_NEURONS, part * NEURONS % TILE_NEURONS * CELL_INPUTS);
        // SAFETY: every address is inside what the caller promises.
        unsafe {
            let cells = tile.cells.add(half * tile.half_step + offset);
            let sums = eight_neurons::<ROWS, RUN>(tile, cells);
            for (row, sums) in sums.iter().enumerate() {
                let correction = vdupq_n_s32(corrections[row]);
                for (vector, &sum) in sums.iter().enumerate() {
                    let neuron = part * NEURONS + vector * 4;
                    let total = vaddq_s32(vaddq_s32(sum, correction), vld1q_s32(tile.start.add(neuron)));
                    vst1q_s32(tile.sums.add(row * tile.sums_row + neuron), total);
                }
            }
        }
    }
}

/// The products of all rows with eight neurons, whose first code is at `cells`.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn eight_neurons<const ROWS: usize, const RUN: usize>(
    tile: &TileAddresses,
    cells: *const u8,
) -> [[int32x4_t; 2]; ROWS] {
    // Two sums per neuron: of its even and odd pairs of inputs.
    let mut sums = [[vdupq_n_s32(0); 4]; ROWS];
    // SAFETY: `step + RUN <= steps` steps are inside what the caller promises.
    unsafe {
        let mut step = 0;
        while step + RUN <= tile.steps {
            add_run::<ROWS>(&mut sums, tile, cells, step, RUN);
            step += RUN;
        }
        if step < tile.steps {
            add_run::<ROWS>(&mut sums, tile, cells, step, tile.steps - step);
        }
    }
    sums.map(|[a, b, c, d]| [vpaddq_s32(a, b), vpaddq_s32(c, d)])
}

/// Adds the products of up to `RUN` steps, which fit into 16 bits, to the sums.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn add_run<const ROWS: usize>(
    sums: &mut [[int32x4_t; 4]; ROWS],
    tile: &TileAddresses,
    cells: *const u8,
    first: usize,
    steps: usize,
) {
    let mut products = [[vdupq_n_s16(0); 4]; ROWS];
    for step in first..first + steps {
        // SAFETY: the step is inside what the caller promises.
        unsafe {
            let cell = cells.add(step * CELL);
            let weights = [vld1q_s8(cell.cast()), vld1q_s8(cell.add(VECTOR).cast())];
            for (row, products) in products.iter_mut().enumerate() {
                let four = tile.a.add(row * tile.a_row + step * CELL_INPUTS).cast::<i32>().read_unaligned();
                let a = vreinterpretq_s8_s32(vdupq_n_s32(four));
                for (products, &weights) in products.as_chunks_mut::<2>().0.iter_mut().zip(&weights) {
                    products[0] = vmlal_s8(products[0], vget_low_s8(weights), vget_low_s8(a));
                    products[1] = vmlal_high_s8(products[1], weights, a);
                }
            }
        }
    }
    for (sum, &products) in sums.as_flattened_mut().iter_mut().zip(products.as_flattened()) {
        *sum = vpadalq_s16(*sum, products);
    }
}
