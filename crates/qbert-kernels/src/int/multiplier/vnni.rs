//! AVX-512 with VNNI: 64 products and sixteen sums per instruction, 24 accumulators.

use std::arch::x86_64::*;

use super::{Multiply, widen_by_width};
use crate::int::layout::{BLOCK_CELLS, CELL, CELL_INPUTS, block_bytes, planes};
use crate::int::tile::TileAddresses;
use crate::simd::avx512::Avx512;
use crate::simd::{InstructionSet, Simd};

/// Proof that the CPU has AVX-512 with VNNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Vnni(Avx512);

impl Multiply for Vnni {
    fn detect() -> Option<Self> {
        Avx512::detect().filter(|_| is_x86_feature_detected!("avx512vnni")).map(Self)
    }

    fn instruction_set(self) -> InstructionSet {
        self.0.into()
    }

    fn rows(self, _bits: u8) -> usize {
        12
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

/// Widens packed codes on AVX-512; products without VNNI share it.
pub(super) fn widen(_: Avx512, bits: u8, packed: &[u8], cells: &mut [u8]) {
    // SAFETY: the proof says that the CPU has the features.
    unsafe { widen_by_width!(bits, widen_blocks(packed, cells)) }
}

/// The width is a constant, so that loops over planes and cells unroll and shifts become immediate ones.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn widen_blocks<const BITS: u8>(packed: &[u8], cells: &mut [u8]) {
    let blocks = packed.chunks_exact(block_bytes(BITS)).zip(cells.chunks_exact_mut(BLOCK_CELLS * CELL));
    for (block, cells) in blocks {
        for index in 0..BLOCK_CELLS {
            let mut code = _mm512_setzero_si512();
            let mut start = 0;
            for &(plane, shift) in planes(BITS) {
                let per_byte = 8 / plane;
                let from = &block[start + index / per_byte * CELL..][..CELL];
                // SAFETY: 64 bytes are there.
                let bytes = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
                let down = (index % per_byte * plane) as i32 - shift as i32;
                let moved = move_down(bytes, down);
                let mask = _mm512_set1_epi8((((1_u32 << plane) - 1) << shift) as i8);
                // (moved & mask) | code in one instruction.
                code = _mm512_ternarylogic_epi64::<0xF8>(code, moved, mask);
                start += CELL * plane;
            }
            let target = &mut cells[index * CELL..][..CELL];
            // SAFETY: 64 bytes are there.
            unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), code) };
        }
    }
}

/// Bits cross byte boundaries here; the caller masks them off.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn move_down(bytes: __m512i, down: i32) -> __m512i {
    if down >= 0 {
        _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(down))
    } else {
        _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(-down))
    }
}

/// One tile of sums.
///
/// # Safety
/// As [`TileAddresses`] says; at most 12 rows.
unsafe fn multiply(_: Vnni, tile: &TileAddresses) {
    macro_rules! by_rows {
        ($($rows:literal $chains:literal),*) => {
            match tile.rows {
                $($rows => multiply_rows::<$rows, $chains>(tile),)*
                rows => unreachable!("tile of {rows} rows"),
            }
        };
    }
    // SAFETY: the proof says that the CPU has the features; the rest is passed on.
    unsafe { by_rows!(1 4, 2 4, 3 2, 4 2, 5 2, 6 1, 7 1, 8 1, 9 1, 10 1, 11 1, 12 1) }
}

/// `CHAINS` sums per element take the steps in turn, so that with few rows no addition waits for the one before.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn multiply_rows<const ROWS: usize, const CHAINS: usize>(tile: &TileAddresses) {
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        let mut sums = [[[_mm512_setzero_si512(); 2]; ROWS]; CHAINS];
        sums[0] = [[_mm512_loadu_si512(tile.start.cast()), _mm512_loadu_si512(tile.start.add(16).cast())]; ROWS];
        let (mut a, mut cells) = (tile.a, tile.cells);
        for _ in 0..tile.steps / CHAINS {
            for sums in &mut sums {
                add_step(sums, tile, a, cells);
                a = a.add(CELL_INPUTS);
                cells = cells.add(CELL);
            }
        }
        for _ in 0..tile.steps % CHAINS {
            add_step(&mut sums[0], tile, a, cells);
            a = a.add(CELL_INPUTS);
            cells = cells.add(CELL);
        }
        for index in 0..ROWS {
            for half in 0..2 {
                let mut total = sums[0][index][half];
                for chain in &sums[1..] {
                    total = _mm512_add_epi32(total, chain[index][half]);
                }
                _mm512_storeu_si512(tile.sums.add(index * tile.sums_row + half * 16).cast(), total);
            }
        }
    }
}

/// Adds four inputs' products to every sum; `a` and `cells` are where these inputs begin.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn add_step<const ROWS: usize>(
    sums: &mut [[__m512i; 2]; ROWS],
    tile: &TileAddresses,
    a: *const i8,
    cells: *const u8,
) {
    let (row, half) = (tile.a_row, tile.half_step);
    // SAFETY: as above.
    unsafe {
        let (first, second) = (_mm512_loadu_si512(cells.cast()), _mm512_loadu_si512(cells.add(half).cast()));
        for (index, [low, high]) in sums.iter_mut().enumerate() {
            let four = _mm512_set1_epi32(a.add(index * row).cast::<i32>().read_unaligned());
            *low = _mm512_dpbusd_epi32(*low, first, four);
            *high = _mm512_dpbusd_epi32(*high, second, four);
        }
    }
}
