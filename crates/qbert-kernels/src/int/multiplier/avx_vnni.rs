//! AVX-VNNI: `vpdpbusd` on 256-bit vectors, for CPUs that have it without AVX-512. Twelve accumulators: 6 rows × 16
//! neurons.

use std::arch::x86_64::*;

use super::Multiply;
use super::avx2::Avx2Pairs;
#[cfg(all(test, target_os = "linux"))]
use super::trap::{Handler, Trappable};
use crate::int::layout::{CELL, CELL_INPUTS};
use crate::int::tile::TileAddresses;
use crate::simd::InstructionSet;

/// Proof that the CPU has AVX2 and AVX-VNNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AvxVnni(Avx2Pairs);

impl Multiply for AvxVnni {
    fn detect() -> Option<Self> {
        Avx2Pairs::detect().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }

    fn instruction_set(self) -> InstructionSet {
        self.0.instruction_set()
    }

    fn rows(self, _bits: u8) -> usize {
        6
    }

    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        self.0.widen(bits, packed, cells);
    }

    #[inline]
    unsafe fn multiply(self, tile: &TileAddresses) {
        // SAFETY: passed on from the caller.
        unsafe { multiply(self, tile) }
    }
}

#[cfg(all(test, target_os = "linux"))]
impl Trappable for AvxVnni {
    fn trapped(_: Handler) -> Option<Self> {
        Avx2Pairs::detect().map(Self)
    }
}

/// Bytes of a vector: half a cell, eight neurons.
const HALF_CELL: usize = 32;

/// One tile of sums, in two halves of sixteen neurons.
///
/// # Safety
/// As [`TileAddresses`] says; at most 6 rows.
unsafe fn multiply(_: AvxVnni, tile: &TileAddresses) {
    macro_rules! by_rows {
        ($part:ident: $($rows:literal $chains:literal),*) => {
            match tile.rows {
                $($rows => sixteen_neurons::<$rows, $chains>(&$part),)*
                rows => unreachable!("tile of {rows} rows"),
            }
        };
    }
    for half in 0..2 {
        // SAFETY: the proof says that the CPU has the features; both halves are inside what the caller promises.
        unsafe {
            let part = TileAddresses {
                cells: tile.cells.add(half * tile.half_step),
                start: tile.start.add(half * 16),
                sums: tile.sums.add(half * 16),
                ..*tile
            };
            by_rows!(part: 1 4, 2 2, 3 2, 4 1, 5 1, 6 1);
        }
    }
}

/// `CHAINS` sums per element take the steps in turn, so that with few rows no addition waits for the one before.
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn sixteen_neurons<const ROWS: usize, const CHAINS: usize>(tile: &TileAddresses) {
    // SAFETY: every address is inside what the caller promises.
    unsafe {
        let mut sums = [[[_mm256_setzero_si256(); 2]; ROWS]; CHAINS];
        sums[0] = [[_mm256_loadu_si256(tile.start.cast()), _mm256_loadu_si256(tile.start.add(8).cast())]; ROWS];
        let (mut a, mut cells) = (tile.a, tile.cells);
        for _ in 0..tile.steps / CHAINS {
            for sums in &mut sums {
                add_step(sums, tile.a_row, a, cells);
                a = a.add(CELL_INPUTS);
                cells = cells.add(CELL);
            }
        }
        for _ in 0..tile.steps % CHAINS {
            add_step(&mut sums[0], tile.a_row, a, cells);
            a = a.add(CELL_INPUTS);
            cells = cells.add(CELL);
        }
        for index in 0..ROWS {
            for vector in 0..2 {
                let mut total = sums[0][index][vector];
                for chain in &sums[1..] {
                    total = _mm256_add_epi32(total, chain[index][vector]);
                }
                _mm256_storeu_si256(tile.sums.add(index * tile.sums_row + vector * 8).cast(), total);
            }
        }
    }
}

/// Adds four inputs' products to every sum; `a` and `cells` are where these inputs begin.
#[target_feature(enable = "avx2,avxvnni")]
#[inline]
unsafe fn add_step<const ROWS: usize>(sums: &mut [[__m256i; 2]; ROWS], row: usize, a: *const i8, cells: *const u8) {
    // SAFETY: as above.
    unsafe {
        let (first, second) = (_mm256_loadu_si256(cells.cast()), _mm256_loadu_si256(cells.add(HALF_CELL).cast()));
        for (index, [low, high]) in sums.iter_mut().enumerate() {
            let four = _mm256_set1_epi32(a.add(index * row).cast::<i32>().read_unaligned());
            *low = _mm256_dpbusd_avx_epi32(*low, first, four);
            *high = _mm256_dpbusd_avx_epi32(*high, second, four);
        }
    }
}
