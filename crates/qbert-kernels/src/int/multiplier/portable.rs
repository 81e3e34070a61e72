//! The reference: plain loops over cells. The other multipliers give exactly the same sums.

use super::Multiply;
use crate::int::layout::{BLOCK_CELLS, CELL, CELL_INPUTS, TILE_NEURONS, block_bytes, planes};
use crate::int::tile::{PANEL, TileAddresses};
use crate::simd::{InstructionSet, portable};

/// Runs on any CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Portable;

impl Multiply for Portable {
    fn detect() -> Option<Self> {
        Some(Self)
    }

    fn instruction_set(self) -> InstructionSet {
        portable::Portable::ANYWHERE.into()
    }

    fn rows(self, _bits: u8) -> usize {
        4
    }

    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        widen(bits, packed, cells);
    }

    unsafe fn multiply(self, tile: &TileAddresses) {
        // SAFETY: passed on from the caller.
        unsafe { multiply(tile) }
    }
}

/// Widens the blocks of one tile to a byte per code, cell after cell.
fn widen(bits: u8, packed: &[u8], cells: &mut [u8]) {
    let blocks = packed.chunks_exact(block_bytes(bits)).zip(cells.chunks_exact_mut(BLOCK_CELLS * CELL));
    for (block, cells) in blocks {
        cells.fill(0);
        let mut rest = block;
        for &(plane, shift) in planes(bits) {
            let (bytes, after) = rest.split_at(CELL * plane);
            rest = after;
            let per_byte = 8 / plane;
            for (index, cell) in cells.chunks_exact_mut(CELL).enumerate() {
                let from = &bytes[index / per_byte * CELL..][..CELL];
                let (down, mask) = (index % per_byte * plane, u8::MAX >> (8 - plane));
                for (code, &byte) in cell.iter_mut().zip(from) {
                    *code |= ((byte >> down) & mask) << shift;
                }
            }
        }
    }
}

/// One tile of sums.
///
/// # Safety
/// As [`TileAddresses`] says.
unsafe fn multiply(tile: &TileAddresses) {
    for row in 0..tile.rows {
        for half in 0..2 {
            // SAFETY: the caller promises 32 starts, `steps` cells in each half, `rows` rows of `4·steps` codes,
            // and room for `rows` rows of 32 sums.
            unsafe {
                let mut sums = tile.start.add(half * TILE_NEURONS).cast::<[i32; TILE_NEURONS]>().read_unaligned();
                for step in 0..tile.steps {
                    let a = tile.a.add(row * tile.a_row + step * CELL_INPUTS).cast::<[i8; CELL_INPUTS]>().read();
                    let cell = tile.cells.add(half * tile.half_step + step * CELL).cast::<[u8; CELL]>().read();
                    for (neuron, sum) in sums.iter_mut().enumerate() {
                        for (input, &a) in a.iter().enumerate() {
                            let weight = i32::from(cell[neuron * CELL_INPUTS + input]);
                            *sum = sum.wrapping_add(i32::from(a) * weight);
                        }
                    }
                }
                let target = tile.sums.add(row * tile.sums_row + half * TILE_NEURONS);
                target.cast::<[i32; TILE_NEURONS]>().write_unaligned(sums);
            }
        }
    }
    const { assert!(PANEL == 2 * TILE_NEURONS) };
}
