//! Ternary codes, five to a byte: 1.6 bits each.
//!
//! A tile of 16 neurons is a row of cells, as at every width ([`super::layout`]): 64 codes of four inputs. Five cells in a row
//! share 64 bytes, a byte for each of the 64 places. The last byte row of a tile is filled up with cells of zeros.
//!
//! Five codes `c0 .. c4` are the number `v = 81·c0 + 27·c1 + 9·c2 + 3·c3 + c4`, 0 to 242. What is stored is the fraction
//! `v / 243` in 256ths, rounded up: `⌈256·v / 243⌉`. Then each code is the whole part of three times the fraction, and the
//! next one follows from what is left. So codes come out by multiplying bytes, which is fast in vectors, rather than by dividing.

use super::layout::{CELL, CELL_INPUTS, LayoutError};
use crate::simd::{Kernel, Simd};

/// Codes of a byte.
const PER_BYTE: usize = 5;
/// Values of five codes.
const VALUES: u16 = 243;

/// Bytes of a tile with this many cells.
pub(super) const fn tile_bytes(cells: usize) -> usize {
    cells.div_ceil(PER_BYTE) * CELL
}

/// Inputs of a tile with this many cells, and of those that fill up its last bytes.
pub(super) const fn tile_inputs(cells: usize) -> usize {
    cells.next_multiple_of(PER_BYTE) * CELL_INPUTS
}

/// The byte of five codes.
fn byte_of(codes: [u8; PER_BYTE]) -> u8 {
    let value = codes.iter().fold(0, |value, &code| 3 * value + u16::from(code));
    (256 * value).div_ceil(VALUES) as u8
}

/// Takes the next code out of a byte.
#[inline(always)]
fn next_code(byte: &mut u8) -> u8 {
    let tripled = 3 * u16::from(*byte);
    *byte = tripled as u8;
    (tripled >> 8) as u8
}

/// One code of a tile.
pub(super) fn code(tile: &[u8], cell: usize, place: usize) -> u8 {
    let mut byte = tile[cell / PER_BYTE * CELL + place];
    (0..=cell % PER_BYTE).fold(0, |_, _| next_code(&mut byte))
}

/// Writes the row-major codes of up to 16 neurons. What is missing is 0.
pub(super) fn pack_tile(rows: &[u8], inputs: usize, tile: &mut [u8]) {
    for (index, byte) in tile.iter_mut().enumerate() {
        let (place, first) = (index % CELL, index / CELL * PER_BYTE);
        let (neuron, within) = (place / CELL_INPUTS, place % CELL_INPUTS);
        *byte = byte_of(std::array::from_fn(|cell| {
            let input = (first + cell) * CELL_INPUTS + within;
            if input < inputs { rows.get(neuron * inputs + input).copied().unwrap_or(0) } else { 0 }
        }));
    }
}

/// Refuses bytes that no five codes have.
pub(super) fn check(bytes: &[u8]) -> Result<(), LayoutError> {
    let mut known = [false; 256];
    for value in 0..VALUES {
        known[usize::from((256 * value).div_ceil(VALUES))] = true;
    }
    match bytes.iter().position(|&byte| !known[usize::from(byte)]) {
        Some(byte) => Err(LayoutError::TernaryByte { byte, value: bytes[byte] }),
        None => Ok(()),
    }
}

/// Widens a tile to one byte per code. The compiler makes vectors of the plain loops, of the width that the instruction set has.
pub(super) struct Widen<'a> {
    /// The stored tile.
    pub(super) packed: &'a [u8],
    /// Whole blocks of cells.
    pub(super) cells: &'a mut [u8],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let groups = self.packed.as_chunks::<CELL>().0.iter();
        for (bytes, cells) in groups.zip(self.cells.chunks_mut(PER_BYTE * CELL)) {
            let mut bytes = *bytes;
            for cell in cells.as_chunks_mut::<CELL>().0 {
                for (code, byte) in cell.iter_mut().zip(&mut bytes) {
                    *code = next_code(byte);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_codes_come_back_from_their_byte() {
        let mut seen = [false; 256];
        for value in 0..VALUES {
            let codes = std::array::from_fn(|place| (value / 3_u16.pow(4 - place as u32) % 3) as u8);
            let mut byte = byte_of(codes);
            assert!(!std::mem::replace(&mut seen[usize::from(byte)], true), "two values in byte {byte}");
            assert_eq!(check(&[byte]), Ok(()));
            assert_eq!(std::array::from_fn(|_| next_code(&mut byte)), codes);
        }
        for (byte, seen) in (0..=255).zip(seen) {
            let expected = if seen { Ok(()) } else { Err(LayoutError::TernaryByte { byte: 1, value: byte }) };
            assert_eq!(check(&[0, byte]), expected);
        }
    }
}
