//! Products of bf16 on a tile unit: 32 rows × 32 columns of C in four tiles of sums.
//!
//! Packed copies are tiles as they are. Sixteen steps of a panel of B are two tiles of columns, whose rows are a whole
//! row of the panel apart. Sixteen steps of sixteen packed rows of A are a tile of rows. So the depth advances by sixteen
//! steps, 32 depths, at once, and the last steps of a product are padded with zeros on both sides.
//!
//! The order of summation is that of `tdpbf16ps` ([`TileUnit::multiply_bf16`]): other bits than those of vectors, but the
//! same for every tiling and any number of threads, because a tile always starts a block of depths at zero.

use std::mem::MaybeUninit;

use super::element::Bf16Pair;
use super::micro::{Bf16Products, MicroKernel, TileSize};
use super::pack::{BLOCK_STEPS, PACKED_ROW};
use super::tile::{PackedBy, Tile};
use crate::amx::{COLUMNS, ROWS, SUMS, Shape, TILE_CELLS, TILE_ROWS, TileUnit, Tiled};
use crate::simd::{Kernel, Simd, vectorize};

/// Columns of a panel: two tiles of sixteen sums.
const PANEL: usize = 2 * TILE_CELLS;

impl<U: TileUnit, S: Simd> Bf16Products for Tiled<U, S> {
    type Micro = Self;

    fn micro_kernel(self) -> Self {
        self
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
impl Bf16Products for crate::amx::TrappedBf16 {
    type Micro = Tiled<crate::amx::Hardware, crate::simd::portable::Wide>;

    fn micro_kernel(self) -> Self::Micro {
        self.0
    }
}

// Whole blocks are whole tiles, and packed rows of A have room for the padding.
const _: () = assert!(BLOCK_STEPS.is_multiple_of(TILE_CELLS) && BLOCK_STEPS <= PACKED_ROW);

impl<U: TileUnit, S: Simd> MicroKernel for Tiled<U, S> {
    type Element = Bf16Pair;
    const TILE_ROWS: usize = 2 * TILE_ROWS;
    const ROWS_ONLY: bool = true;
    const STEPS: usize = TILE_CELLS;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        const { assert!(2 * S::LANES == PANEL, "a panel of B is two tiles wide, and A is padded by whole tiles") };
        vectorize(self.simd, kernel)
    }

    // As the integer multiplier does: tiles are configured by the first product of a task and released at its end.
    fn begin(self) {
        self.unit.forget();
    }

    fn end(self) {
        self.unit.release();
    }

    #[inline(always)]
    unsafe fn multiply<T: Simd>(self, simd: T, tile: &Tile, size: TileSize, packed_by: PackedBy) {
        debug_assert!(matches!(packed_by, PackedBy::Rows) && tile.b_depth == PANEL && tile.a_row == PACKED_ROW);
        self.unit.configure(Shape::of(size.rows));
        let mut room = MaybeUninit::<Sums>::uninit();
        let sums = room.as_mut_ptr().cast::<f32>();
        // SAFETY: the tiles were configured for these rows, and the caller promises the addresses. As many rows of sums as
        // the tile has are written, and then read.
        unsafe {
            if size.rows > TILE_ROWS {
                add_up::<U, true>(self.unit, tile, sums);
            } else {
                add_up::<U, false>(self.unit, tile, sums);
            }
            finish(simd, tile, size, sums);
        }
    }
}

/// The sums of one tile, on their way from the tile unit to C.
#[repr(align(64))]
struct Sums(#[allow(dead_code, reason = "used by address")] [[f32; PANEL]; 2 * TILE_ROWS]);

/// Sums of up to sixteen rows, or with `BOTH` up to 32.
///
/// # Safety
/// The tiles must be configured for the rows, the factors readable and padded to whole tiles, and the sums writable.
#[inline(always)]
unsafe fn add_up<U: TileUnit, const BOTH: bool>(unit: U, tile: &Tile, sums: *mut f32) {
    const A_STRIDE: usize = PACKED_ROW * size_of::<f32>();
    const B_STRIDE: usize = PANEL * size_of::<f32>();
    // SAFETY: every address is inside what the caller promises, or inside the sums; the second tile of rows is touched
    // only where there is one.
    unsafe {
        unit.zero::<{ SUMS[0][0] }>();
        unit.zero::<{ SUMS[0][1] }>();
        if BOTH {
            unit.zero::<{ SUMS[1][0] }>();
            unit.zero::<{ SUMS[1][1] }>();
        }
        for step in (0..tile.steps).step_by(TILE_CELLS) {
            let (a, b) = (tile.a.add(step), tile.b.add(step * PANEL));
            unit.load_rows::<{ ROWS[0] }>(a.cast(), A_STRIDE);
            unit.load_rows::<{ COLUMNS[0] }>(b.cast(), B_STRIDE);
            unit.multiply_bf16::<{ SUMS[0][0] }, { ROWS[0] }, { COLUMNS[0] }>();
            unit.load_rows::<{ COLUMNS[1] }>(b.add(TILE_CELLS).cast(), B_STRIDE);
            unit.multiply_bf16::<{ SUMS[0][1] }, { ROWS[0] }, { COLUMNS[1] }>();
            if BOTH {
                unit.load_rows::<{ ROWS[1] }>(a.add(TILE_ROWS * PACKED_ROW).cast(), A_STRIDE);
                unit.multiply_bf16::<{ SUMS[1][0] }, { ROWS[1] }, { COLUMNS[0] }>();
                unit.multiply_bf16::<{ SUMS[1][1] }, { ROWS[1] }, { COLUMNS[1] }>();
            }
        }
        let target = sums.cast::<i32>();
        unit.store_sums::<{ SUMS[0][0] }>(target, PANEL);
        unit.store_sums::<{ SUMS[0][1] }>(target.add(TILE_CELLS), PANEL);
        if BOTH {
            let second = target.add(TILE_ROWS * PANEL);
            unit.store_sums::<{ SUMS[1][0] }>(second, PANEL);
            unit.store_sums::<{ SUMS[1][1] }>(second.add(TILE_CELLS), PANEL);
        }
    }
}

/// Adds the sums to the tile's start and writes C.
///
/// # Safety
/// C must be valid for the rows and columns, and so must the start; the sums must have rows of a whole panel.
#[inline(always)]
unsafe fn finish<S: Simd>(simd: S, tile: &Tile, size: TileSize, sums: *const f32) {
    for row in 0..size.rows {
        for column in (0..size.cols).step_by(S::LANES) {
            let count = S::LANES.min(size.cols - column);
            // SAFETY: passed on from the caller; the sums have whole vectors.
            unsafe {
                let sum = simd.load_ptr(sums.add(row * PANEL + column));
                tile.write(simd, (row, column), count, sum);
            }
        }
    }
}
