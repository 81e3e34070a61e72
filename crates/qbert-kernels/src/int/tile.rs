//! The micro-kernel's contract, and which implementation runs.
//!
//! One tile is `rows × 32` sums `start + Σ A'·W`, accumulated in i32 that wraps, so that the result does not depend on
//! the order of the additions: every instruction set gives the same integers.
//!
//! `A'` are activation codes minus 128 (`i8`), `W` weight codes (`u8`). This way round, rather than unsigned
//! activations and signed weights, eight-bit weight codes need no detour, a shift of the zero point by 128 corrects for
//! the 128, and AVX2's 16-bit pair sums have twice the room.

use super::layout::{BLOCK_CELLS, CELL, TILE_NEURONS};
#[cfg(target_arch = "x86_64")]
use super::{avx2, vnni};
use super::{layout, portable};
use crate::cpu::Kernels;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;

/// Neurons of a panel, two tiles side by side: the width of a micro-tile.
pub(super) const PANEL: usize = 2 * TILE_NEURONS;
/// The most rows of a micro-tile of any instruction set.
pub(super) const MAX_ROWS: usize = 12;

/// One micro-tile by address.
///
/// Whoever makes one promises: `rows` (at most [`MAX_ROWS`]) rows of `4·steps` readable codes at `a`; `steps` readable
/// cells at `cells` and at `cells + half_step`, whose bytes are below `2^bits`; 32 readable integers at `start`; `rows`
/// rows of 32 writable integers at `sums`, which overlap nothing else.
#[derive(Clone, Copy)]
pub(super) struct Tile {
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

/// The integer kernels that go with an instruction set of the float kernels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Multiplier {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Vnni(vnni::Vnni),
}

impl Multiplier {
    /// The best that `kernels` allows: AVX-512 without VNNI multiplies with AVX2.
    pub(super) fn of(kernels: Kernels) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if kernels.name() == "avx512"
                && let Some(vnni) = vnni::Vnni::new()
            {
                return Self::Vnni(vnni);
            }
            if kernels.name() != "portable"
                && let Some(avx2) = Avx2::new()
            {
                return Self::Avx2(avx2);
            }
        }
        let _ = kernels;
        Self::Portable
    }

    /// `avx512-vnni`, `avx2` or `portable`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(_) => "avx512-vnni",
        }
    }

    /// Rows of a full micro-tile for codes of this width.
    pub(super) fn rows(self, bits: u8) -> usize {
        match self {
            Self::Portable => 4,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => avx2::rows(bits),
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(_) => 12,
        }
    }

    /// Widens the blocks of one tile of packed codes to a byte per code, cell after cell.
    ///
    /// # Panics
    /// Unless `packed` is whole blocks and `cells` has exactly their room.
    pub(super) fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        let blocks = packed.len() / layout::block_bytes(bits);
        assert!(packed.len() == blocks * layout::block_bytes(bits) && cells.len() == blocks * BLOCK_CELLS * CELL);
        match self {
            Self::Portable => portable::widen(bits, packed, cells),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::widen(proof, bits, packed, cells),
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(proof) => vnni::widen(proof, bits, packed, cells),
        }
    }

    /// Computes one micro-tile.
    ///
    /// # Safety
    /// As [`Tile`] says; `rows` must be at most [`Multiplier::rows`] of `bits`.
    #[inline]
    pub(super) unsafe fn multiply(self, tile: &Tile) {
        // SAFETY: passed on from the caller.
        unsafe {
            match self {
                Self::Portable => portable::multiply(tile),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2(proof) => avx2::multiply(proof, tile),
                #[cfg(target_arch = "x86_64")]
                Self::Vnni(proof) => vnni::multiply(proof, tile),
            }
        }
    }
}
