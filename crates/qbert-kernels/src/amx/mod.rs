//! AMX's tiles: eight registers of 16 rows of 64 bytes, and instructions that multiply them. The integer multiplier
//! (`int/multiplier/amx`) and the products of bf16 (`gemm/tiles.rs`) share what is here.
//!
//! Both use the tiles in the same way. Four hold sums (two tiles of rows × two of columns), so that each loaded tile is
//! used twice and the unit never waits for loads from the first-level cache.
//!
//! The instructions are behind [`TileUnit`]. [`Hardware`] executes them, and [`Software`] does the same on arrays, so
//! that blocking, layout and edges are tested on every CPU. The tests also execute the instructions themselves on CPUs
//! without AMX (`int/multiplier/trap`).

#[cfg(target_arch = "x86_64")]
pub(crate) mod hardware;
mod software;

use crate::simd::Simd;
#[cfg(target_arch = "x86_64")]
pub(crate) use hardware::Hardware;
pub(crate) use software::Software;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a tile's row.
pub(crate) const ROW_BYTES: usize = 64;
/// Groups of four bytes in a tile's row: as many rows has the other factor.
pub(crate) const TILE_CELLS: usize = 16;
const _: () = assert!(TILE_CELLS * 4 == ROW_BYTES);

// The numbers of the tiles: sums of the first and second sixteen rows with either half of the columns, two of rows, two
// of columns (which are the weights of integer products).
pub(crate) const SUMS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
pub(crate) const ROWS: [usize; 2] = [4, 5];
pub(crate) const COLUMNS: [usize; 2] = [6, 7];

/// How many rows the two tiles of rows, and the sums that belong to them, have; the second may have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape([u8; 2]);

impl Shape {
    pub(crate) fn of(rows: usize) -> Self {
        let first = rows.min(TILE_ROWS);
        Self([first as u8, (rows - first) as u8])
    }

    /// Rows of a tile.
    fn rows(self, tile: usize) -> u8 {
        let Self([first, second]) = self;
        match tile {
            0 | 1 | 4 => first,
            2 | 3 | 5 => second,
            _ => TILE_CELLS as u8,
        }
    }
}

/// What a unit can multiply; a CPU may have one without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileNumbers {
    /// Signed with unsigned bytes.
    Bytes,
    /// Pairs of bf16.
    #[cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code, reason = "nothing multiplies them there"))]
    Bf16,
}

/// The tile instructions. Tiles belong to a thread; they have content only between [`TileUnit::configure`] and
/// [`TileUnit::release`], and `T` and others are their numbers.
#[cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code, reason = "no bf16 is multiplied there"))]
pub(crate) trait TileUnit: Copy + Send + Sync + 'static {
    /// The proof that the instructions for these numbers may be executed, or `None`. `is_right` is asked once per process
    /// before the unit is used: tiles are where virtual machines differ most from the manual, and a wrong sum would go
    /// unnoticed.
    fn detect(numbers: TileNumbers, is_right: fn(Self) -> bool) -> Option<Self>;

    /// Forgets what this thread's tiles were configured for: other code may have used them since.
    fn forget(self);

    /// Gives this thread's tiles their shape. Their content is undefined if it was another one before.
    fn configure(self, shape: Shape);

    /// Frees this thread's tiles, so that the system need not save them when it switches threads.
    fn release(self);

    /// Loads the same sixteen integers into every row of a tile.
    ///
    /// # Safety
    /// Sixteen integers must be readable at `start`, and the tiles configured.
    #[inline(always)]
    unsafe fn load_starts<const T: usize>(self, start: *const i32) {
        // SAFETY: a stride of 0 reads the same 64 bytes for every row; the caller promises sixteen integers.
        unsafe { self.load_rows::<T>(start.cast(), 0) };
    }

    /// Fills a tile with zeros.
    ///
    /// # Safety
    /// The tiles must be configured.
    unsafe fn zero<const T: usize>(self);

    /// Loads rows of 64 bytes that are `stride` bytes apart: as many as the tile has.
    ///
    /// # Safety
    /// The rows must be readable, and the tiles configured.
    unsafe fn load_rows<const T: usize>(self, rows: *const u8, stride: usize);

    /// Adds the products of a tile of rows (signed bytes) with a tile of weights (unsigned bytes) to a tile of sums.
    ///
    /// # Safety
    /// The tiles must be configured, and the unit detected for bytes.
    unsafe fn multiply_bytes<const SUMS: usize, const ROWS: usize, const WEIGHTS: usize>(self);

    /// Adds the products of a tile of rows with a tile of columns, both of pairs of bf16, to a tile of f32. The first
    /// products of all pairs have a sum of their own, as have the second ones. Both start at zero, and their sum is added
    /// to what the tile has. Every step is rounded once to f32; a number below the smallest normal one is zero.
    ///
    /// # Safety
    /// The tiles must be configured, and the unit detected for bf16.
    unsafe fn multiply_bf16<const SUMS: usize, const ROWS: usize, const COLUMNS: usize>(self);

    /// Writes a tile of sums (integers, or the bits of floats), rows `stride` sums apart.
    ///
    /// # Safety
    /// As many rows of sixteen sums as the tile has must be writable, and the tiles configured.
    unsafe fn store_sums<const T: usize>(self, sums: *mut i32, stride: usize);
}

/// A tile unit that multiplies bf16, and the vectors that do the rest of a product: both proofs.
#[cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code, reason = "no bf16 is multiplied there"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tiled<U, S> {
    pub(crate) unit: U,
    pub(crate) simd: S,
}

#[cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code, reason = "no bf16 is multiplied there"))]
impl<U: TileUnit, S: Simd> Tiled<U, S> {
    pub(crate) fn detect() -> Option<Self> {
        // The vectors come first: it takes more to ask for tiles.
        let simd = S::detect()?;
        U::detect(TileNumbers::Bf16, bf16_agree_with_software).map(|unit| Self { unit, simd })
    }
}

/// The instructions for bf16 where the CPU has none: each one is refused, and then emulated.
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TrappedBf16(pub(crate) Tiled<Hardware, crate::simd::portable::Wide>);

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
impl TrappedBf16 {
    pub(crate) fn detect() -> Option<Self> {
        let native = Hardware::detect(TileNumbers::Bf16, bf16_agree_with_software);
        let unit = native.unwrap_or_else(|| Hardware::trapped(crate::int::trap::Handler::install()));
        Simd::detect().map(|simd| Self(Tiled { unit, simd }))
    }
}

/// Whether a unit computes the bits that its double computes, on tiles of two heights.
#[cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code, reason = "there is no unit to ask about"))]
pub(crate) fn bf16_agree_with_software<U: TileUnit>(unit: U) -> bool {
    type Sums = [[f32; TILE_CELLS]; TILE_ROWS];
    // Numbers of either sign from 2^-4 to 2^4, so that every sum is rounded.
    let pair = |index: usize| {
        let number = |index: usize| {
            let random = (index.wrapping_mul(2_654_435_761) >> 9) as u32;
            let (sign, exponent, digits) = (random & 1, 123 + (random >> 1) % 8, random >> 5 & 0x7f);
            sign << 15 | exponent << 7 | digits
        };
        number(2 * index) | number(2 * index + 1) << 16
    };
    let factor = |from: usize| -> [[u32; TILE_CELLS]; TILE_ROWS] {
        std::array::from_fn(|row| std::array::from_fn(|cell| pair(from + row * TILE_CELLS + cell)))
    };
    let (rows, columns) = ([factor(0), factor(1_000)], [factor(2_000), factor(3_000)]);
    fn run<U: TileUnit>(unit: U, rows: &[[[u32; 16]; 16]; 2], columns: &[[[u32; 16]; 16]; 2]) -> [Sums; 2] {
        let mut sums = [[[0.0; TILE_CELLS]; TILE_ROWS]; 2];
        unit.forget();
        unit.configure(Shape::of(TILE_ROWS + 5));
        // SAFETY: the tiles are configured; every factor and every tile of sums has sixteen rows of 64 bytes.
        unsafe {
            unit.zero::<{ SUMS[0][0] }>();
            unit.zero::<{ SUMS[1][0] }>();
            for (rows, columns) in rows.iter().zip(columns) {
                unit.load_rows::<{ ROWS[0] }>(rows.as_ptr().cast(), ROW_BYTES);
                unit.load_rows::<{ ROWS[1] }>(rows[3..].as_ptr().cast(), ROW_BYTES);
                unit.load_rows::<{ COLUMNS[0] }>(columns.as_ptr().cast(), ROW_BYTES);
                unit.multiply_bf16::<{ SUMS[0][0] }, { ROWS[0] }, { COLUMNS[0] }>();
                unit.multiply_bf16::<{ SUMS[1][0] }, { ROWS[1] }, { COLUMNS[0] }>();
            }
            let [first, second] = &mut sums;
            unit.store_sums::<{ SUMS[0][0] }>(first.as_mut_ptr().cast(), TILE_CELLS);
            unit.store_sums::<{ SUMS[1][0] }>(second.as_mut_ptr().cast(), TILE_CELLS);
        }
        unit.release();
        sums
    }
    run(unit, &rows, &columns) == run(Software, &rows, &columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit that adds the products of bf16 in the order of `vdpbf16ps`.
    #[derive(Clone, Copy)]
    struct Wrong;

    impl TileUnit for Wrong {
        fn detect(_: TileNumbers, _: fn(Self) -> bool) -> Option<Self> {
            Some(Self)
        }
        fn forget(self) {
            Software.forget();
        }
        fn configure(self, shape: Shape) {
            Software.configure(shape);
        }
        fn release(self) {
            Software.release();
        }
        unsafe fn zero<const T: usize>(self) {
            // SAFETY: passed on.
            unsafe { Software.zero::<T>() };
        }
        unsafe fn load_rows<const T: usize>(self, rows: *const u8, stride: usize) {
            // SAFETY: passed on.
            unsafe { Software.load_rows::<T>(rows, stride) };
        }
        unsafe fn multiply_bytes<const SUMS: usize, const ROWS: usize, const WEIGHTS: usize>(self) {
            // SAFETY: passed on.
            unsafe { Software.multiply_bytes::<SUMS, ROWS, WEIGHTS>() };
        }
        unsafe fn multiply_bf16<const SUMS: usize, const ROWS: usize, const COLUMNS: usize>(self) {
            software::add_products::<SUMS, ROWS, COLUMNS>(|before, pairs| {
                pairs.fold(before, |sum, (a, b)| a[0].mul_add(b[0], a[1].mul_add(b[1], sum)))
            });
        }
        unsafe fn store_sums<const T: usize>(self, sums: *mut i32, stride: usize) {
            // SAFETY: passed on.
            unsafe { Software.store_sums::<T>(sums, stride) };
        }
    }

    #[test]
    fn a_unit_with_another_order_of_sums_is_noticed() {
        assert!(bf16_agree_with_software(Software));
        assert!(!bf16_agree_with_software(Wrong));
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn the_instructions_for_bf16_compute_what_their_double_computes() {
        let TrappedBf16(Tiled { unit, .. }) = TrappedBf16::detect().expect("they run anywhere");
        assert!(bf16_agree_with_software(unit));
    }
}
