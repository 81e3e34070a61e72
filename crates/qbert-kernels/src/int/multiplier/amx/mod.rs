//! AMX: the tile unit multiplies 16 rows × 64 inputs with 64 inputs × 16 neurons in one instruction, exactly, in i32.
//!
//! Sixteen stored cells (16 neurons × 4 inputs each) are one tile of weights as they are, and sixteen rows of codes are
//! one tile of activations, whatever their distance. So nothing is rearranged; only the number of cells must be a
//! multiple of sixteen ([`Multiply::padded_steps`]).
//!
//! The tiles and their instructions are those of [`crate::amx`].

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod trapped;

use super::Multiply;
use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use crate::amx::Hardware;
pub(crate) use crate::amx::Software;
use crate::amx::{COLUMNS as WEIGHTS, ROW_BYTES, ROWS, SUMS, Shape, TILE_CELLS, TILE_ROWS, TileNumbers, TileUnit};
use crate::int::layout::CELL;
use crate::int::tile::{PANEL, TileAddresses};
use crate::simd::InstructionSet;

/// A multiplier on tiles. Another multiplier widens the packed codes: tiles cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Amx<U, W>(U, W);

impl<U: TileUnit, W: Multiply> Multiply for Amx<U, W> {
    fn detect() -> Option<Self> {
        // The vectors come first: it takes more to ask for tiles.
        let widener = W::detect()?;
        U::detect(TileNumbers::Bytes, agrees_with_software).map(|unit| Self(unit, widener))
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
            unit.multiply_bytes::<{ SUMS[0][0] }, { ROWS[0] }, { WEIGHTS[0] }>();
            unit.load_rows::<{ WEIGHTS[1] }>(cells.add(tile.half_step), CELL);
            unit.multiply_bytes::<{ SUMS[0][1] }, { ROWS[0] }, { WEIGHTS[1] }>();
            if BOTH {
                unit.load_rows::<{ ROWS[1] }>(a.add(TILE_ROWS * tile.a_row), tile.a_row);
                unit.multiply_bytes::<{ SUMS[1][0] }, { ROWS[1] }, { WEIGHTS[0] }>();
                unit.multiply_bytes::<{ SUMS[1][1] }, { ROWS[1] }, { WEIGHTS[1] }>();
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

const _: () = assert!(CELL == ROW_BYTES);

/// Whether a unit computes what its double computes, on a tile with an edge.
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
            if SUMS == crate::amx::SUMS[1][1] {
                // SAFETY: passed on.
                unsafe { Software.multiply_bytes::<SUMS, ROWS, WEIGHTS>() };
            }
        }
        unsafe fn multiply_bf16<const SUMS: usize, const ROWS: usize, const COLUMNS: usize>(self) {
            // SAFETY: passed on.
            unsafe { Software.multiply_bf16::<SUMS, ROWS, COLUMNS>() };
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
