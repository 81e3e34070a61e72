//! AVX2 without saturation: `vpmaddubsw` adds two products into 16 bits and saturates, so it only ever sees codes whose
//! products fit.
//!
//! With `|A'| ≤ 128` and `W < 2^k` the magnitude of a pair sum is at most `256·(2^k - 1)`: up to seven bits it fits.
//! Narrow codes leave room for several pair sums in 16 bits before they are widened to 32 (one multiplication fewer
//! each); eight-bit codes are split into two four-bit halves, the upper one weighted by 16 when it is widened.

use std::arch::x86_64::*;

use super::{Multiply, widen_by_width};
use crate::int::layout::{BLOCK_CELLS, CELL, CELL_INPUTS, block_bytes, planes};
use crate::int::tile::TileAddresses;
use crate::simd::avx2::Avx2;
use crate::simd::{InstructionSet, Simd};

/// Proof that the CPU has AVX2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Avx2Pairs(Avx2);

impl Multiply for Avx2Pairs {
    fn detect() -> Option<Self> {
        Avx2::detect().map(Self)
    }

    fn instruction_set(self) -> InstructionSet {
        self.0.into()
    }

    #[inline(always)]
    fn rows(self, bits: u8) -> usize {
        rows(bits)
    }

    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        widen(self, bits, packed, cells);
    }

    #[inline(always)]
    unsafe fn multiply(self, tile: &TileAddresses) {
        // SAFETY: passed on from the caller.
        unsafe { multiply(self, tile) }
    }
}

/// Bytes of an AVX2 vector: half a cell, eight neurons.
const HALF_CELL: usize = 32;

/// Rows of a full micro-tile; eight-bit codes need twice the accumulators.
const fn rows(bits: u8) -> usize {
    if bits == 8 { 2 } else { 4 }
}

/// How many pair sums of codes of this width fit into 16 bits.
pub(super) const fn pair_sums(bits: u8) -> usize {
    let largest = 256 * ((1 << bits) - 1);
    i16::MAX as usize / largest
}

fn widen(_: Avx2Pairs, bits: u8, packed: &[u8], cells: &mut [u8]) {
    // SAFETY: the proof says that the CPU has AVX2.
    unsafe { widen_by_width!(bits, widen_blocks(packed, cells)) }
}

/// As in `vnni.rs`, by half cells.
#[target_feature(enable = "avx2")]
fn widen_blocks<const BITS: u8>(packed: &[u8], cells: &mut [u8]) {
    let blocks = packed.chunks_exact(block_bytes(BITS)).zip(cells.chunks_exact_mut(BLOCK_CELLS * CELL));
    for (block, cells) in blocks {
        for half in 0..2 * BLOCK_CELLS {
            let (index, offset) = (half / 2, half % 2 * HALF_CELL);
            let mut code = _mm256_setzero_si256();
            let mut start = 0;
            for &(plane, shift) in planes(BITS) {
                let per_byte = 8 / plane;
                let from = &block[start + index / per_byte * CELL + offset..][..HALF_CELL];
                // SAFETY: 32 bytes are there.
                let bytes = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
                let down = (index % per_byte * plane) as i32 - shift as i32;
                let moved = if down >= 0 {
                    _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(down))
                } else {
                    _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(-down))
                };
                let mask = _mm256_set1_epi8((((1_u32 << plane) - 1) << shift) as i8);
                code = _mm256_or_si256(code, _mm256_and_si256(moved, mask));
                start += CELL * plane;
            }
            let target = &mut cells[half * HALF_CELL..][..HALF_CELL];
            // SAFETY: 32 bytes are there.
            unsafe { _mm256_storeu_si256(target.as_mut_ptr().cast(), code) };
        }
    }
}

/// One tile of sums.
///
/// # Safety
/// As [`TileAddresses`] says; at most [`rows`] rows.
#[inline(always)]
unsafe fn multiply(_: Avx2Pairs, tile: &TileAddresses) {
    for half in 0..2 {
        // SAFETY: the proof says that the CPU has AVX2; both halves are inside what the caller promises.
        unsafe {
            let part = TileAddresses {
                cells: tile.cells.add(half * tile.half_step),
                start: tile.start.add(half * 16),
                sums: tile.sums.add(half * 16),
                ..*tile
            };
            match tile.rows {
                1 => sixteen_neurons::<1>(&part),
                2 => sixteen_neurons::<2>(&part),
                3 => sixteen_neurons::<3>(&part),
                4 => sixteen_neurons::<4>(&part),
                rows => unreachable!("tile of {rows} rows"),
            }
        }
    }
}

/// The first sixteen neurons of a tile, the steps in runs whose sums fit 16 bits.
#[target_feature(enable = "avx2")]
unsafe fn sixteen_neurons<const ROWS: usize>(tile: &TileAddresses) {
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        for row in 0..ROWS {
            for vector in 0..2 {
                let start = _mm256_loadu_si256(tile.start.add(vector * 8).cast());
                _mm256_storeu_si256(tile.sums.add(row * tile.sums_row + vector * 8).cast(), start);
            }
        }
        let run = pair_sums(if tile.bits == 8 { 4 } else { tile.bits });
        let mut step = 0;
        while step < tile.steps {
            let end = tile.steps.min(step + run);
            if tile.bits == 8 {
                run_of_bytes::<ROWS>(tile, step, end);
            } else {
                run_of_codes::<ROWS>(tile, step, end);
            }
            step = end;
        }
    }
}

/// Four codes of one row in every 32-bit lane.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn broadcast(tile: &TileAddresses, row: usize, step: usize) -> __m256i {
    // SAFETY: inside the tile's rows.
    unsafe { _mm256_set1_epi32(tile.a.add(row * tile.a_row + step * CELL_INPUTS).cast::<i32>().read_unaligned()) }
}

/// Adds 16-bit pair sums, weighted, to the 32-bit sums in memory.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn add_to_sums(target: *mut i32, pairs: __m256i, weight: __m256i) {
    // SAFETY: eight integers are there.
    unsafe {
        let wide = _mm256_madd_epi16(pairs, weight);
        _mm256_storeu_si256(target.cast(), _mm256_add_epi32(_mm256_loadu_si256(target.cast()), wide));
    }
}

#[target_feature(enable = "avx2")]
#[inline]
unsafe fn run_of_codes<const ROWS: usize>(tile: &TileAddresses, from: usize, to: usize) {
    let mut pairs = [[_mm256_setzero_si256(); 2]; ROWS];
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        for step in from..to {
            let cell = tile.cells.add(step * CELL);
            let weights = [_mm256_loadu_si256(cell.cast()), _mm256_loadu_si256(cell.add(HALF_CELL).cast())];
            for (row, pairs) in pairs.iter_mut().enumerate() {
                let a = broadcast(tile, row, step);
                for (pair, &weight) in pairs.iter_mut().zip(&weights) {
                    *pair = _mm256_add_epi16(*pair, _mm256_maddubs_epi16(weight, a));
                }
            }
        }
        let ones = _mm256_set1_epi16(1);
        for (row, pairs) in pairs.iter().enumerate() {
            for (vector, &pair) in pairs.iter().enumerate() {
                add_to_sums(tile.sums.add(row * tile.sums_row + vector * 8), pair, ones);
            }
        }
    }
}

/// Eight-bit codes as two halves of four bits.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn run_of_bytes<const ROWS: usize>(tile: &TileAddresses, from: usize, to: usize) {
    let mut pairs = [[[_mm256_setzero_si256(); 2]; 2]; ROWS];
    let nibble = _mm256_set1_epi8(15);
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        for step in from..to {
            let cell = tile.cells.add(step * CELL);
            for vector in 0..2 {
                let bytes = _mm256_loadu_si256(cell.add(vector * HALF_CELL).cast());
                let low = _mm256_and_si256(bytes, nibble);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
                for (row, pairs) in pairs.iter_mut().enumerate() {
                    let a = broadcast(tile, row, step);
                    let [lows, highs] = &mut pairs[vector];
                    *lows = _mm256_add_epi16(*lows, _mm256_maddubs_epi16(low, a));
                    *highs = _mm256_add_epi16(*highs, _mm256_maddubs_epi16(high, a));
                }
            }
        }
        let weights = [_mm256_set1_epi16(1), _mm256_set1_epi16(16)];
        for (row, pairs) in pairs.iter().enumerate() {
            for (vector, halves) in pairs.iter().enumerate() {
                let target = tile.sums.add(row * tile.sums_row + vector * 8);
                for (&half, &weight) in halves.iter().zip(&weights) {
                    add_to_sums(target, half, weight);
                }
            }
        }
    }
}

const _: () = assert!(pair_sums(7) == 1 && pair_sums(4) == 8 && pair_sums(1) == 127);
