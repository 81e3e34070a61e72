//! AMX: the tile unit multiplies 16 rows × 64 inputs with 64 inputs × 16 neurons in one instruction, exactly, in i32.
//!
//! Sixteen stored cells (16 neurons × 4 inputs each) are one tile of weights as they are, and sixteen rows of codes are
//! one tile of activations, whatever their distance. So nothing is rearranged; only the number of cells must be a
//! multiple of sixteen ([`Multiply::padded_steps`]).
//!
//! Four of the eight tiles hold sums (two tiles of rows × two of neurons): each loaded tile is used twice, and the unit
//! never waits for loads from the first-level cache.
//!
//! The instructions are behind [`TileUnit`]. [`Hardware`] executes them, and [`Software`] does the same on arrays, so
//! that blocking, layout and edges are tested on every CPU. The tests also execute the instructions themselves on CPUs
//! without AMX (`super::trap`).

#[cfg(target_arch = "x86_64")]
mod hardware;
mod software;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod trapped;

use super::Multiply;
use super::portable::Portable;
use crate::int::layout::CELL;
use crate::int::tile::{PANEL, TileAddresses};
use crate::simd::InstructionSet;
#[cfg(target_arch = "x86_64")]
pub(crate) use hardware::Hardware;
pub(crate) use software::Software;

/// Rows of a tile.
const TILE_ROWS: usize = 16;
/// Bytes of a tile's row.
const ROW_BYTES: usize = 64;
/// Cells of a tile of weights: one per row.
const TILE_CELLS: usize = 16;

// The numbers of the tiles: sums of the first and second sixteen rows with either half of the neurons, two of rows, two
// of weights.
const SUMS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
const ROWS: [usize; 2] = [4, 5];
const WEIGHTS: [usize; 2] = [6, 7];

/// How many rows the two tiles of rows, and the sums that belong to them, have; the second may have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape([u8; 2]);

impl Shape {
    fn of(rows: usize) -> Self {
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

/// The tile instructions. Tiles belong to a thread; they have content only between [`TileUnit::configure`] and
/// [`TileUnit::release`], and `T` and others are their numbers.
trait TileUnit: Copy {
    /// The proof that the instructions may be executed, or `None`.
    fn detect() -> Option<Self>;

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

    /// Loads rows of 64 bytes that are `stride` bytes apart: as many as the tile has.
    ///
    /// # Safety
    /// The rows must be readable, and the tiles configured.
    unsafe fn load_rows<const T: usize>(self, rows: *const u8, stride: usize);

    /// Adds the products of a tile of rows (signed) with a tile of weights (unsigned) to a tile of sums.
    ///
    /// # Safety
    /// The tiles must be configured.
    unsafe fn multiply<const SUMS: usize, const ROWS: usize, const WEIGHTS: usize>(self);

    /// Writes a tile of sums, rows `stride` integers apart.
    ///
    /// # Safety
    /// As many rows of sixteen integers as the tile has must be writable, and the tiles configured.
    unsafe fn store_sums<const T: usize>(self, sums: *mut i32, stride: usize);
}

/// A multiplier on tiles. Another multiplier widens the packed codes: tiles cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Amx<U, W>(U, W);

impl<U: TileUnit, W: Multiply> Multiply for Amx<U, W> {
    fn detect() -> Option<Self> {
        // The vectors come first: it takes more to ask for tiles.
        let widener = W::detect()?;
        U::detect().map(|unit| Self(unit, widener))
    }

    fn instruction_set(self) -> InstructionSet {
        self.1.instruction_set()
    }

    fn rows(self, _bits: u8) -> usize {
        2 * TILE_ROWS
    }

    fn padded_steps(self, steps: usize) -> usize {
        steps.next_multiple_of(TILE_CELLS)
    }

    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        self.1.widen(bits, packed, cells);
    }

    // Tiles are configured by the first product. They are released after every task rather than before a thread sleeps:
    // so nothing has to remember which threads have used them, and it costs little beside a task.
    fn begin(self) {
        self.0.forget();
    }

    fn end(self) {
        self.0.release();
    }

    unsafe fn multiply(self, tile: &TileAddresses) {
        self.0.configure(Shape::of(tile.rows));
        // SAFETY: the tiles were configured for these rows, and the caller promises the addresses.
        unsafe {
            if tile.rows > TILE_ROWS {
                multiply::<U, true>(self.0, tile);
            } else {
                multiply::<U, false>(self.0, tile);
            }
        }
    }
}

/// One tile of sums: up to sixteen rows, or with `BOTH` up to 32.
///
/// # Safety
/// As [`TileAddresses`] says, with whole tiles of cells; the tiles are configured for the rows.
#[inline(always)]
unsafe fn multiply<U: TileUnit, const BOTH: bool>(unit: U, tile: &TileAddresses) {
    // SAFETY: every address is inside what the caller promises; the second tile of rows is touched only where there is one.
    unsafe {
        unit.load_starts::<{ SUMS[0][0] }>(tile.start);
        unit.load_starts::<{ SUMS[0][1] }>(tile.start.add(16));
        if BOTH {
            unit.load_starts::<{ SUMS[1][0] }>(tile.start);
            unit.load_starts::<{ SUMS[1][1] }>(tile.start.add(16));
        }
        for step in 0..tile.steps / TILE_CELLS {
            let (a, cells) = step_addresses(tile, step);
            unit.load_rows::<{ ROWS[0] }>(a, tile.a_row);
            unit.load_rows::<{ WEIGHTS[0] }>(cells, CELL);
            unit.multiply::<{ SUMS[0][0] }, { ROWS[0] }, { WEIGHTS[0] }>();
            unit.load_rows::<{ WEIGHTS[1] }>(cells.add(tile.half_step), CELL);
            unit.multiply::<{ SUMS[0][1] }, { ROWS[0] }, { WEIGHTS[1] }>();
            if BOTH {
                unit.load_rows::<{ ROWS[1] }>(a.add(TILE_ROWS * tile.a_row), tile.a_row);
                unit.multiply::<{ SUMS[1][0] }, { ROWS[1] }, { WEIGHTS[0] }>();
                unit.multiply::<{ SUMS[1][1] }, { ROWS[1] }, { WEIGHTS[1] }>();
            }
        }
        unit.store_sums::<{ SUMS[0][0] }>(tile.sums, tile.sums_row);
        unit.store_sums::<{ SUMS[0][1] }>(tile.sums.add(16), tile.sums_row);
        if BOTH {
            let second = tile.sums.add(TILE_ROWS * tile.sums_row);
            unit.store_sums::<{ SUMS[1][0] }>(second, tile.sums_row);
            unit.store_sums::<{ SUMS[1][1] }>(second.add(16), tile.sums_row);
        }
    }
}

/// Where the codes and the cells of a step of 64 inputs begin.
///
/// # Safety
/// The tile must have the step.
#[inline(always)]
unsafe fn step_addresses(tile: &TileAddresses, step: usize) -> (*const u8, *const u8) {
    // SAFETY: inside what the caller of the product promises.
    unsafe { (tile.a.add(step * ROW_BYTES).cast(), tile.cells.add(step * TILE_CELLS * CELL)) }
}

const _: () = assert!(CELL == ROW_BYTES && TILE_CELLS * 4 == ROW_BYTES);

/// Whether a unit computes what its double computes, on a tile with an edge.
///
/// Asked once per process before the unit is used: tiles are where virtual machines differ most from the manual, and a
/// wrong sum would go unnoticed.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "there is no unit to ask about"))]
fn agrees_with_software<U: TileUnit>(unit: U) -> bool {
    const ROW_COUNT: usize = 21;
    const STEPS: usize = 2 * TILE_CELLS;
    let byte = |index: usize| (index.wrapping_mul(2_654_435_761) >> 13) as u8;
    let codes: Vec<i8> = (0..ROW_COUNT * STEPS * 4).map(|index| byte(index).cast_signed()).collect();
    let cells: Vec<u8> = (0..2 * STEPS * CELL).map(|index| byte(index + 7_777)).collect();
    let start: [i32; PANEL] = std::array::from_fn(|neuron| neuron as i32 * 1_000_003 - 500);
    let sums_of = |multiply: &dyn Fn(&TileAddresses)| {
        let mut sums = vec![0; ROW_COUNT * PANEL];
        multiply(&TileAddresses {
            rows: ROW_COUNT,
            a: codes.as_ptr(),
            a_row: STEPS * 4,
            cells: cells.as_ptr(),
            half_step: STEPS * CELL,
            steps: STEPS,
            bits: 8,
            start: start.as_ptr(),
            sums: sums.as_mut_ptr(),
            sums_row: PANEL,
        });
        sums
    };
    fn run<M: Multiply>(multiplier: M, tile: &TileAddresses) {
        multiplier.begin();
        // SAFETY: the caller's vectors have what the addresses promise, and outlive the call.
        unsafe { multiplier.multiply(tile) };
        multiplier.end();
    }
    sums_of(&|tile| run(Amx(unit, Portable), tile)) == sums_of(&|tile| run(Amx(Software, Portable), tile))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit that is wrong in one product.
    #[derive(Clone, Copy)]
    struct Wrong;

    impl TileUnit for Wrong {
        fn detect() -> Option<Self> {
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
        unsafe fn load_rows<const T: usize>(self, rows: *const u8, stride: usize) {
            // SAFETY: passed on.
            unsafe { Software.load_rows::<T>(rows, stride) };
        }
        unsafe fn multiply<const SUMS: usize, const ROWS: usize, const WEIGHTS: usize>(self) {
            // SAFETY: passed on.
            unsafe { Software.multiply::<SUMS, ROWS, WEIGHTS>() };
            if SUMS == super::SUMS[1][1] {
                // SAFETY: passed on.
                unsafe { Software.multiply::<SUMS, ROWS, WEIGHTS>() };
            }
        }
        unsafe fn store_sums<const T: usize>(self, sums: *mut i32, stride: usize) {
            // SAFETY: passed on.
            unsafe { Software.store_sums::<T>(sums, stride) };
        }
    }

    #[test]
    fn a_unit_that_computes_something_else_is_noticed() {
        assert!(agrees_with_software(Software));
        assert!(!agrees_with_software(Wrong));
    }
}
