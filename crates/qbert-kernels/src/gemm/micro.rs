//! What computes the tiles of a large product: vector registers here, or a tile unit (`tiles.rs`).

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use super::element::Bf16Pair;
use super::element::Element;
use super::emulated::Emulated;
use super::tile::{PackedBy, Tile, any_tile, whole_tile};
#[cfg(target_arch = "aarch64")]
use crate::simd::neon;
use crate::simd::{Kernel, Simd, portable, vectorize};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};

/// A micro-kernel: what is packed for it, and how it computes a tile. A value is the proof that the CPU can run it.
pub(super) trait MicroKernel: Copy + Send + Sync {
    /// What A and B are packed to.
    type Element: Element;

    /// Rows of a full tile. A panel of B always has two vectors of columns.
    const TILE_ROWS: usize;

    /// Whether A is packed by rows even where it is read by depth. Then `TILE_ROWS` is a multiple of the longest vector.
    const ROWS_ONLY: bool = false;

    /// Every block of packed B has steps of zeros up to a multiple of this. Packed rows of A have such steps up to a
    /// multiple of the vector.
    const STEPS: usize = 1;

    /// Whether tiles are told the smallest number of their block of B ([`Tile::b_smallest`]).
    const WANTS_SMALLEST: bool = false;

    /// Runs a kernel on the vectors that go with this micro-kernel.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    /// Called on a thread before its tiles. Other code may have run on it since the last [`MicroKernel::end`].
    fn begin(self) {}

    /// Called on a thread after its tiles: it may do something else now, or nothing for long.
    fn end(self) {}

    /// Computes one tile.
    ///
    /// # Safety
    /// The tile's addresses must be valid for `1..=TILE_ROWS` rows and `1..=2·LANES` columns of C, which overlaps neither A
    /// nor B, and no other thread may use C at the same time. A is packed as `packed_by` says, and B is a panel; both are
    /// padded as [`MicroKernel::STEPS`] says. On this thread, [`MicroKernel::begin`] came last.
    unsafe fn multiply<S: Simd>(self, simd: S, tile: &Tile, size: TileSize, packed_by: PackedBy);
}

/// Rows and columns of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileSize {
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// A thread computes tiles while this lives.
pub(super) struct Begun<M: MicroKernel>(M);

impl<M: MicroKernel> Begun<M> {
    pub(super) fn new(micro: M) -> Self {
        micro.begin();
        Self(micro)
    }
}

impl<M: MicroKernel> Drop for Begun<M> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Tiles in vector registers.
#[derive(Clone, Copy)]
pub(super) struct Registers<S, E> {
    simd: S,
    element: PhantomData<E>,
}

impl<S: Simd, E: Element> Registers<S, E> {
    pub(super) fn new(simd: S) -> Self {
        Self { simd, element: PhantomData }
    }
}

impl<S: Simd, E: Element> MicroKernel for Registers<S, E> {
    type Element = E;
    const TILE_ROWS: usize = S::TILE_ROWS;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        vectorize(self.simd, kernel)
    }

    #[inline(always)]
    unsafe fn multiply<T: Simd>(self, simd: T, tile: &Tile, size: TileSize, packed_by: PackedBy) {
        let TileSize { rows, cols } = size;
        // SAFETY: passed on from the caller.
        unsafe {
            if cols < 2 * T::LANES || rows < T::TILE_ROWS {
                any_tile::<T, E>(simd, tile, rows, cols);
            } else {
                whole_tile::<T, E>(simd, tile, packed_by);
            }
        }
    }
}

/// What multiplies bf16, and thus has a micro-kernel for pairs of them.
pub(super) trait Bf16Products {
    type Micro: MicroKernel;

    fn micro_kernel(self) -> Self::Micro;
}

#[cfg(target_arch = "x86_64")]
impl Bf16Products for avx512::Avx512Bf16 {
    type Micro = Registers<Self, Bf16Pair>;

    fn micro_kernel(self) -> Self::Micro {
        Registers::new(self)
    }
}

/// Sets without an instruction for bf16.
macro_rules! emulated {
    ($($(#[$gate:meta])* $Set:ty),* $(,)?) => {
        $($(#[$gate])*
        impl Bf16Products for $Set {
            type Micro = Emulated<Self>;

            fn micro_kernel(self) -> Self::Micro {
                Emulated::new(self)
            }
        })*
    };
}

emulated! {
    #[cfg(target_arch = "x86_64")] avx512::Avx512,
    #[cfg(target_arch = "x86_64")] avx2::Avx2,
    #[cfg(target_arch = "aarch64")] neon::Neon,
    #[cfg(test)] portable::Narrow,
    #[cfg(test)] portable::Wide,
    portable::Portable,
}
