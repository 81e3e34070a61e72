//! How weight codes are laid out in memory and on disk: one layout for every multiplier.
//!
//! A 512-bit dot-product instruction takes four consecutive inputs of each of sixteen output neurons: 64 codes, a
//! *cell*. Codes keep their own width until they are needed, so cells are stored as bit planes that are widened with a
//! shift and a mask:
//!
//! - **Tile**: 16 neurons, all inputs. Tiles are consecutive; the last is padded with zero codes.
//! - **Block**: 32 inputs of a tile, eight cells, `64 · bits` bytes. Inputs are padded with zeros to whole blocks.
//! - **Cell** `c` of a block: inputs `4c .. 4c+4` of all 16 neurons; the code of neuron `n` and input `4c+i` is at
//!   place `4n + i` of the cell's 64.
//! - **Planes**: a code is split into groups of 4, 2 and 1 bits, lowest first, as its width requires (3 = 2 + 1,
//!   7 = 4 + 2 + 1; 8 bits are one plane). A plane of `p` bits takes `64 · p` bytes of the block: byte `64·j + q` holds
//!   place `q` of the cells `j·8/p ..`, the first in the lowest bits. Planes are consecutive, lowest bits first.
//!
//! Nothing in it depends on the CPU: AVX2 reads a cell as two halves, NEON as four quarters, the portable code as 64 bytes.
//! A matrix whose sides are multiples of 16 and 32 (as in every usual BERT) takes exactly `bits` bits per weight. A tile is
//! a multiple of 64 bytes, so tiles of an aligned buffer are aligned.
//!
//! Not for embedding tables, which are looked up and stored row by row ([`super::EmbeddingRows`]).

use std::ops::Range;

/// Output neurons of a tile.
pub const TILE_NEURONS: usize = 16;
/// Inputs of a block.
pub const BLOCK_INPUTS: usize = 32;
/// The most inputs a matrix may have: `Σ (A - z)·W` stays an i32 for any codes.
pub const MOST_INPUTS: usize = 1 << 15;

/// Bytes of a cell: 16 neurons × 4 inputs, one byte each.
pub(super) const CELL: usize = 64;
/// Inputs of a cell.
pub(super) const CELL_INPUTS: usize = 4;
/// Cells of a block.
pub(super) const BLOCK_CELLS: usize = BLOCK_INPUTS / CELL_INPUTS;

/// Why a slice is not a packed matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Not a width of codes.
    #[error("{bits} is not a bit width (1 to 8)")]
    Bits {
        /// The width given.
        bits: u8,
    },
    /// A side of length 0, or too many inputs.
    #[error("a packed matrix cannot have {neurons} neurons of {inputs} inputs")]
    Shape {
        /// Rows.
        neurons: usize,
        /// Columns.
        inputs: usize,
    },
    /// A slice whose length does not match the shape.
    #[error("{neurons} neurons of {inputs} inputs at {bits} bits take {expected} bytes, not {found}")]
    Length {
        /// Rows.
        neurons: usize,
        /// Columns.
        inputs: usize,
        /// The width.
        bits: u8,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A code that needs more bits.
    #[error("code {code} of neuron {neuron}, input {input} does not fit in {bits} bits")]
    Code {
        /// Row.
        neuron: usize,
        /// Column.
        input: usize,
        /// The code.
        code: u8,
        /// The width.
        bits: u8,
    },
    /// A bit in the padding of the last tile or block is set.
    #[error("the code at neuron {neuron}, input {input}, outside of the matrix, is not 0")]
    Padding {
        /// Row, beyond the last or not.
        neuron: usize,
        /// Column, beyond the last or not.
        input: usize,
    },
}

/// The planes of a width: bits of the plane, and which bit of the code is its lowest.
pub(super) const fn planes(bits: u8) -> &'static [(usize, usize)] {
    match bits {
        1 => &[(1, 0)],
        2 => &[(2, 0)],
        3 => &[(2, 0), (1, 2)],
        4 => &[(4, 0)],
        5 => &[(4, 0), (1, 4)],
        6 => &[(4, 0), (2, 4)],
        7 => &[(4, 0), (2, 4), (1, 6)],
        _ => &[(8, 0)],
    }
}

/// A weight matrix `[neurons, inputs]` of packed codes, borrowed: usually from a file.
#[derive(Clone, Copy, Debug)]
pub struct PackedWeights<'a> {
    bits: u8,
    neurons: usize,
    inputs: usize,
    bytes: &'a [u8],
}

impl<'a> PackedWeights<'a> {
    /// Interprets `bytes` as a packed matrix.
    ///
    /// # Errors
    /// [`LayoutError::Bits`], [`LayoutError::Shape`] or [`LayoutError::Length`].
    pub fn new(bits: u8, neurons: usize, inputs: usize, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let expected = packed_len(bits, neurons, inputs)?;
        if bytes.len() != expected {
            return Err(LayoutError::Length { neurons, inputs, bits, expected, found: bytes.len() });
        }
        Ok(Self { bits, neurons, inputs, bytes })
    }

    /// A matrix of eight bits per code whose length has been checked.
    pub(super) fn wide(neurons: usize, inputs: usize, bytes: &'a [u8]) -> Self {
        debug_assert_eq!(packed_len(8, neurons, inputs), Ok(bytes.len()));
        Self { bits: 8, neurons, inputs, bytes }
    }

    /// Bits per code.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Output neurons: rows of the matrix.
    pub fn neurons(&self) -> usize {
        self.neurons
    }

    /// Inputs: columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The packed bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// One code; 0 in the padding of the last tile or block.
    ///
    /// # Panics
    /// When the place is beyond that.
    pub fn code(&self, neuron: usize, input: usize) -> u8 {
        let place = Place::of(neuron, input);
        let block = self.block(place.tile, place.block);
        planes(self.bits)
            .iter()
            .fold((0, 0), |(code, start), &(plane, shift)| {
                let (byte, bit) = place.in_plane(plane);
                let part = (block[start + byte] >> bit) & mask(plane);
                (code | part << shift, start + CELL * plane)
            })
            .0
    }

    /// All codes, row-major, one byte each: for exports and inspection.
    pub fn codes(&self) -> Vec<u8> {
        let rows = (0..self.neurons).flat_map(|neuron| (0..self.inputs).map(move |input| (neuron, input)));
        rows.map(|(neuron, input)| self.code(neuron, input)).collect()
    }

    /// Checks that all padding is 0, so that equal matrices have equal bytes.
    ///
    /// # Errors
    /// [`LayoutError::Padding`] with the first place that is not.
    pub fn check_padding(&self) -> Result<(), LayoutError> {
        let (neurons, inputs) = (self.tiles() * TILE_NEURONS, self.blocks() * BLOCK_INPUTS);
        let beside = (0..self.neurons).flat_map(|neuron| (self.inputs..inputs).map(move |input| (neuron, input)));
        let below = (self.neurons..neurons).flat_map(|neuron| (0..inputs).map(move |input| (neuron, input)));
        match beside.chain(below).find(|&(neuron, input)| self.code(neuron, input) != 0) {
            Some((neuron, input)) => Err(LayoutError::Padding { neuron, input }),
            None => Ok(()),
        }
    }

    pub(super) fn tiles(&self) -> usize {
        self.neurons.div_ceil(TILE_NEURONS)
    }

    pub(super) fn blocks(&self) -> usize {
        self.inputs.div_ceil(BLOCK_INPUTS)
    }

    /// The bytes of one tile.
    pub(super) fn tile(&self, tile: usize) -> &'a [u8] {
        self.tile_range(tile..tile + 1)
    }

    /// The bytes of some tiles.
    pub(super) fn tile_range(&self, tiles: Range<usize>) -> &'a [u8] {
        let length = self.blocks() * block_bytes(self.bits);
        &self.bytes[tiles.start * length..tiles.end * length]
    }

    fn block(&self, tile: usize, block: usize) -> &'a [u8] {
        let length = block_bytes(self.bits);
        &self.tile(tile)[block * length..][..length]
    }
}

/// Where a code is stored.
#[derive(Clone, Copy)]
struct Place {
    tile: usize,
    block: usize,
    cell: usize,
    /// 0..64 within the cell.
    place: usize,
}

impl Place {
    fn of(neuron: usize, input: usize) -> Self {
        let within = input % BLOCK_INPUTS;
        Self {
            tile: neuron / TILE_NEURONS,
            block: input / BLOCK_INPUTS,
            cell: within / CELL_INPUTS,
            place: neuron % TILE_NEURONS * CELL_INPUTS + within % CELL_INPUTS,
        }
    }

    /// Byte of a plane, and the lowest bit there.
    fn in_plane(self, bits: usize) -> (usize, usize) {
        let cells_per_byte = 8 / bits;
        (self.cell / cells_per_byte * CELL + self.place, self.cell % cells_per_byte * bits)
    }
}

fn mask(bits: usize) -> u8 {
    u8::MAX >> (8 - bits)
}

/// Bytes of a block.
pub(super) const fn block_bytes(bits: u8) -> usize {
    CELL * bits as usize
}

/// The packed size of a matrix in bytes: `64·bits` for each block of 16 neurons and 32 inputs.
///
/// # Errors
/// [`LayoutError::Bits`] unless `bits` is 1 to 8; [`LayoutError::Shape`] when a side is 0, there are more than
/// [`MOST_INPUTS`] inputs, or the length overflows.
pub fn packed_len(bits: u8, neurons: usize, inputs: usize) -> Result<usize, LayoutError> {
    if !(1..=8).contains(&bits) {
        return Err(LayoutError::Bits { bits });
    }
    let blocks = neurons.div_ceil(TILE_NEURONS).checked_mul(inputs.div_ceil(BLOCK_INPUTS));
    match blocks.and_then(|blocks| blocks.checked_mul(block_bytes(bits))) {
        Some(length) if length > 0 && inputs <= MOST_INPUTS => Ok(length),
        _ => Err(LayoutError::Shape { neurons, inputs }),
    }
}

/// Packs row-major codes `[neurons, inputs]`, one byte each.
///
/// # Errors
/// As [`packed_len`]; [`LayoutError::Length`] when there are not `neurons · inputs` codes, [`LayoutError::Code`] for a
/// code that needs more than `bits` bits.
pub fn pack(codes: &[u8], bits: u8, neurons: usize, inputs: usize) -> Result<Vec<u8>, LayoutError> {
    let mut packed = vec![0; packed_len(bits, neurons, inputs)?];
    let expected = neurons.saturating_mul(inputs);
    if codes.len() != expected {
        return Err(LayoutError::Length { neurons, inputs, bits: 8, expected, found: codes.len() });
    }
    if let Some(index) = codes.iter().position(|&code| code > mask(usize::from(bits))) {
        return Err(LayoutError::Code { neuron: index / inputs, input: index % inputs, code: codes[index], bits });
    }
    let (block_length, blocks) = (block_bytes(bits), inputs.div_ceil(BLOCK_INPUTS));
    for (neuron, row) in codes.chunks_exact(inputs).enumerate() {
        for (input, &code) in row.iter().enumerate() {
            let place = Place::of(neuron, input);
            let mut start = (place.tile * blocks + place.block) * block_length;
            for &(plane, shift) in planes(bits) {
                let (byte, bit) = place.in_plane(plane);
                packed[start + byte] |= ((code >> shift) & mask(plane)) << bit;
                start += CELL * plane;
            }
        }
    }
    Ok(packed)
}
