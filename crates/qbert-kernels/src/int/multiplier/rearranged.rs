//! A multiplier for unit tests only, with orders of its own: weights input by input rather than neuron by neuron,
//! activations in pairs of rows, and taller tiles than any other. It shows that nothing outside a multiplier relies on the
//! stored orders or on a height.

use super::Multiply;
use super::portable::Portable;
use super::row_pairs::{self, PAIR_INPUTS};
use crate::int::layout::{CELL, CELL_INPUTS, TILE_NEURONS};
use crate::int::tile::{Rows, TileAddresses};
use crate::simd::InstructionSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rearranged;

const ROWS: usize = 32;

impl Multiply for Rearranged {
    const OWN_ORDER: bool = true;
    const OWN_ROWS: bool = true;

    fn detect() -> Option<Self> {
        Some(Self)
    }

    fn instruction_set(self) -> InstructionSet {
        Portable.instruction_set()
    }

    fn rows(self, _bits: u8) -> usize {
        ROWS
    }

    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        Portable.widen(bits, packed, cells);
    }

    fn rearrange(self, _bits: u8, cells: &mut [u8]) {
        for cell in cells.as_chunks_mut::<CELL>().0 {
            let stored = *cell;
            for (place, code) in cell.iter_mut().enumerate() {
                *code = stored[place % TILE_NEURONS * CELL_INPUTS + place / TILE_NEURONS];
            }
        }
    }

    fn arranged_bytes(self, steps: usize) -> usize {
        row_pairs::bytes(ROWS, steps)
    }

    fn arrange(self, rows: Rows<'_>, arranged: &mut [i8]) {
        row_pairs::arrange(rows, arranged);
    }

    unsafe fn multiply(self, tile: &TileAddresses) {
        let group = row_pairs::pairs(tile.rows) * row_pairs::PAIR;
        for row in 0..tile.rows {
            for neuron in 0..2 * TILE_NEURONS {
                let (half, lane) = (neuron / TILE_NEURONS, neuron % TILE_NEURONS);
                // SAFETY: inside the tile, as the caller promises.
                unsafe {
                    let mut sum = *tile.start.add(neuron);
                    for input in 0..tile.steps * CELL_INPUTS {
                        let place = input / CELL_INPUTS * CELL + input % CELL_INPUTS * TILE_NEURONS + lane;
                        let weight = i32::from(*tile.cells.add(half * tile.half_step + place));
                        let eight = input / PAIR_INPUTS * group + row * PAIR_INPUTS;
                        let code = i32::from(*tile.a.add(eight + input % PAIR_INPUTS));
                        sum = sum.wrapping_add(code * weight);
                    }
                    *tile.sums.add(row * tile.sums_row + neuron) = sum;
                }
            }
        }
    }
}
