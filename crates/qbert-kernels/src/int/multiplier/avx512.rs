//! AVX-512 without VNNI: the 16-bit pair sums of `avx2.rs` on 512-bit vectors, for the Xeons before Cascade Lake.
//!
//! With 32 registers a tile has all 32 neurons of a panel and up to twelve rows, six with eight-bit codes, which need
//! twice the accumulators.

use std::arch::x86_64::*;

use super::Multiply;
use super::avx2::pair_sums;
use super::vnni::widen;
use crate::int::layout::{CELL, CELL_INPUTS};
use crate::int::tile::TileAddresses;
use crate::simd::avx512::Avx512;
use crate::simd::{InstructionSet, Simd};

/// Proof that the CPU has AVX-512.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Avx512Pairs(Avx512);

impl Multiply for Avx512Pairs {
    fn detect() -> Option<Self> {
        Avx512::detect().map(Self)
    }

    fn instruction_set(self) -> InstructionSet {
        self.0.into()
    }

    fn rows(self, bits: u8) -> usize {
        if bits == 8 { 6 } else { 12 }
    }

    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        widen(self.0, bits, packed, cells);
    }

    #[inline]
    unsafe fn multiply(self, tile: &TileAddresses) {
        // SAFETY: passed on from the caller.
        unsafe { multiply(self, tile) }
    }
}

/// One tile of sums.
///
/// # Safety
/// As [`TileAddresses`] says; at most 12 rows, 6 with eight-bit codes.
unsafe fn multiply(_: Avx512Pairs, tile: &TileAddresses) {
    macro_rules! by_rows {
        ($kernel:ident: $($rows:literal)*) => {
            match tile.rows {
                $($rows => $kernel::<$rows>(tile),)*
                rows => unreachable!("tile of {rows} rows"),
            }
        };
    }
    // SAFETY: the proof says that the CPU has the features; the rest is passed on.
    unsafe {
        if tile.bits == 8 {
            by_rows!(multiply_bytes: 1 2 3 4 5 6);
        } else {
            by_rows!(multiply_codes: 1 2 3 4 5 6 7 8 9 10 11 12);
        }
    }
}

/// Copies the starts of the sums.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn start<const ROWS: usize>(tile: &TileAddresses) {
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        for row in 0..ROWS {
            for half in 0..2 {
                let start = _mm512_loadu_si512(tile.start.add(half * 16).cast());
                _mm512_storeu_si512(tile.sums.add(row * tile.sums_row + half * 16).cast(), start);
            }
        }
    }
}

/// Four codes of one row in every 32-bit lane.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn broadcast(tile: &TileAddresses, row: usize, step: usize) -> __m512i {
    // SAFETY: inside the tile's rows.
    unsafe { _mm512_set1_epi32(tile.a.add(row * tile.a_row + step * CELL_INPUTS).cast::<i32>().read_unaligned()) }
}

/// Adds 16-bit pair sums, weighted, to the 32-bit sums of a row's half in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn add_to_sums(tile: &TileAddresses, row: usize, half: usize, pairs: __m512i, weight: __m512i) {
    // SAFETY: sixteen integers are there.
    unsafe {
        let target = tile.sums.add(row * tile.sums_row + half * 16).cast();
        let wide = _mm512_madd_epi16(pairs, weight);
        _mm512_storeu_si512(target, _mm512_add_epi32(_mm512_loadu_si512(target), wide));
    }
}

/// The cells of both halves at one step.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn cells(tile: &TileAddresses, step: usize) -> [__m512i; 2] {
    // SAFETY: inside the tile's cells.
    unsafe {
        let cell = tile.cells.add(step * CELL);
        [_mm512_loadu_si512(cell.cast()), _mm512_loadu_si512(cell.add(tile.half_step).cast())]
    }
}

/// Codes of up to seven bits, the steps in runs whose sums fit 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn multiply_codes<const ROWS: usize>(tile: &TileAddresses) {
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        start::<ROWS>(tile);
        let ones = _mm512_set1_epi16(1);
        let run = pair_sums(tile.bits);
        for from in (0..tile.steps).step_by(run) {
            let mut pairs = [[_mm512_setzero_si512(); 2]; ROWS];
            for step in from..tile.steps.min(from + run) {
                let weights = cells(tile, step);
                for (row, pairs) in pairs.iter_mut().enumerate() {
                    let a = broadcast(tile, row, step);
                    for (pair, &weight) in pairs.iter_mut().zip(&weights) {
                        *pair = _mm512_add_epi16(*pair, _mm512_maddubs_epi16(weight, a));
                    }
                }
            }
            for (row, pairs) in pairs.iter().enumerate() {
                for (half, &pair) in pairs.iter().enumerate() {
                    add_to_sums(tile, row, half, pair, ones);
                }
            }
        }
    }
}

/// Eight-bit codes as two halves of four bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn multiply_bytes<const ROWS: usize>(tile: &TileAddresses) {
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        start::<ROWS>(tile);
        let nibble = _mm512_set1_epi8(15);
        let weights = [_mm512_set1_epi16(1), _mm512_set1_epi16(16)];
        let run = pair_sums(4);
        for from in (0..tile.steps).step_by(run) {
            let mut pairs = [[[_mm512_setzero_si512(); 2]; 2]; ROWS];
            for step in from..tile.steps.min(from + run) {
                for (half, &bytes) in cells(tile, step).iter().enumerate() {
                    let low = _mm512_and_si512(bytes, nibble);
                    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), nibble);
                    for (row, pairs) in pairs.iter_mut().enumerate() {
                        let a = broadcast(tile, row, step);
                        let [lows, highs] = &mut pairs[half];
                        *lows = _mm512_add_epi16(*lows, _mm512_maddubs_epi16(low, a));
                        *highs = _mm512_add_epi16(*highs, _mm512_maddubs_epi16(high, a));
                    }
                }
            }
            for (row, pairs) in pairs.iter().enumerate() {
                for (half, parts) in pairs.iter().enumerate() {
                    for (&part, &weight) in parts.iter().zip(&weights) {
                        add_to_sums(tile, row, half, part, weight);
                    }
                }
            }
        }
    }
}
