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
//! Ternary codes are stored otherwise, five to a byte ([`super::ternary`]).
//!
//! Nothing in it depends on the CPU: AVX2 reads a cell as two halves, NEON as four quarters, the portable code as 64 bytes.
//! A matrix whose sides are multiples of 16 and 32 (as in every usual BERT) takes exactly `bits` bits per weight. A tile is
//! a multiple of 64 bytes, so tiles of an aligned buffer are aligned.
//!
//! Not for embedding tables, which are looked up and stored row by row ([`super::EmbeddingRows`]).

use std::fmt;
use std::ops::Range;

use super::ternary;
use crate::cpu::Kernels;

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

/// How the codes of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Each in this many bits, 1 to 8.
    Bits(u8),
    /// Codes 0, 1 and 2, five to a byte.
    Ternary,
}

impl Coding {
    /// The largest code.
    fn max_code(self) -> u8 {
        match self {
            Self::Bits(bits) => u8::MAX >> (8 - bits.clamp(1, 8)),
            Self::Ternary => 2,
        }
    }

    /// Bits that hold a code once it is widened, which multipliers need to know.
    pub(super) fn widened_bits(self) -> u8 {
        match self {
            Self::Bits(bits) => bits,
            Self::Ternary => 2,
        }
    }

    /// Bytes of a tile of this many blocks.
    const fn tile_bytes(self, blocks: usize) -> usize {
        match self {
            Self::Bits(bits) => blocks * block_bytes(bits),
            Self::Ternary => ternary::tile_bytes(blocks * BLOCK_CELLS),
        }
    }
}

impl From<u8> for Coding {
    fn from(bits: u8) -> Self {
        Self::Bits(bits)
    }
}

/// `2 bits` or `ternary codes`, as errors say it.
impl fmt::Display for Coding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits(1) => formatter.write_str("1 bit"),
            Self::Bits(bits) => write!(formatter, "{bits} bits"),
            Self::Ternary => formatter.write_str("ternary codes"),
        }
    }
}

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
    #[error("{neurons} neurons of {inputs} inputs in {coding} take {expected} bytes, not {found}")]
    Length {
        /// Rows.
        neurons: usize,
        /// Columns.
        inputs: usize,
        /// How the codes are stored.
        coding: Coding,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A code that is too large.
    #[error("code {code} of neuron {neuron}, input {input} does not fit in {coding}")]
    Code {
        /// Row.
        neuron: usize,
        /// Column.
        input: usize,
        /// The code.
        code: u8,
        /// How the codes are stored.
        coding: Coding,
    },
    /// A byte that does not stand for five ternary codes.
    #[error("byte {byte} of the ternary codes has the value {value}, which stands for no codes")]
    TernaryByte {
        /// Its place.
        byte: usize,
        /// Its value.
        value: u8,
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
    coding: Coding,
    neurons: usize,
    inputs: usize,
    bytes: &'a [u8],
}

impl<'a> PackedWeights<'a> {
    /// Interprets `bytes` as a packed matrix.
    ///
    /// # Errors
    /// [`LayoutError::Bits`], [`LayoutError::Shape`] or [`LayoutError::Length`].
    pub fn new(coding: impl Into<Coding>, neurons: usize, inputs: usize, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let coding = coding.into();
        let expected = packed_len(coding, neurons, inputs)?;
        if bytes.len() != expected {
            return Err(LayoutError::Length { neurons, inputs, coding, expected, found: bytes.len() });
        }
        Ok(Self { coding, neurons, inputs, bytes })
    }

    /// A matrix of eight bits per code whose length has been checked.
    pub(super) fn wide(neurons: usize, inputs: usize, bytes: &'a [u8]) -> Self {
        debug_assert_eq!(packed_len(8, neurons, inputs), Ok(bytes.len()));
        Self { coding: Coding::Bits(8), neurons, inputs, bytes }
    }

    /// How the codes are stored.
    pub fn coding(&self) -> Coding {
        self.coding
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
        let Coding::Bits(bits) = self.coding else {
            return ternary::code(self.tile(place.tile), input / CELL_INPUTS, place.place);
        };
        let block = &self.tile(place.tile)[place.block * block_bytes(bits)..][..block_bytes(bits)];
        planes(bits)
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

    /// Checks that all padding is 0 and every byte stands for codes, so that equal matrices have equal bytes.
    ///
    /// # Errors
    /// [`LayoutError::Padding`] with the first place that is not 0; [`LayoutError::TernaryByte`].
    pub fn check_padding(&self) -> Result<(), LayoutError> {
        let inputs = match self.coding {
            Coding::Bits(_) => self.blocks() * BLOCK_INPUTS,
            Coding::Ternary => {
                ternary::check(self.bytes)?;
                ternary::tile_inputs(self.blocks() * BLOCK_CELLS)
            }
        };
        let neurons = self.tiles() * TILE_NEURONS;
        let beside = (0..self.neurons).flat_map(|neuron| (self.inputs..inputs).map(move |input| (neuron, input)));
        let below = (self.neurons..neurons).flat_map(|neuron| (0..inputs).map(move |input| (neuron, input)));
        match beside.chain(below).find(|&(neuron, input)| self.code(neuron, input) != 0) {
            Some((neuron, input)) => Err(LayoutError::Padding { neuron, input }),
            None => Ok(()),
        }
    }

    /// Widens one tile to a byte per code: whole blocks of cells, in the stored order.
    pub(super) fn widen_tile(&self, kernels: Kernels, tile: usize, cells: &mut [u8]) {
        match self.coding {
            Coding::Bits(bits) => kernels.multiplier().widen(bits, self.tile(tile), cells),
            Coding::Ternary => kernels.run(ternary::Widen { packed: self.tile(tile), cells }),
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
        let length = self.coding.tile_bytes(self.blocks());
        &self.bytes[tiles.start * length..tiles.end * length]
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

/// The packed size of a matrix in bytes: `64·bits` for each block of 16 neurons and 32 inputs, and for ternary codes 64
/// for each 16 neurons and 20 inputs.
///
/// # Errors
/// [`LayoutError::Bits`] unless bits are 1 to 8; [`LayoutError::Shape`] when a side is 0, there are more than
/// [`MOST_INPUTS`] inputs, or the length overflows.
pub fn packed_len(coding: impl Into<Coding>, neurons: usize, inputs: usize) -> Result<usize, LayoutError> {
    let coding = coding.into();
    if let Coding::Bits(bits) = coding
        && !(1..=8).contains(&bits)
    {
        return Err(LayoutError::Bits { bits });
    }
    if inputs > MOST_INPUTS {
        return Err(LayoutError::Shape { neurons, inputs });
    }
    let tile = coding.tile_bytes(inputs.div_ceil(BLOCK_INPUTS));
    let length = neurons.div_ceil(TILE_NEURONS).checked_mul(tile);
    length.filter(|&length| length > 0).ok_or(LayoutError::Shape { neurons, inputs })
}

/// Packs row-major codes `[neurons, inputs]`, one byte each.
///
/// # Errors
/// As [`packed_len`]; [`LayoutError::Length`] when there are not `neurons · inputs` codes, [`LayoutError::Code`] for a
/// code that is too large.
pub fn pack(codes: &[u8], coding: impl Into<Coding>, neurons: usize, inputs: usize) -> Result<Vec<u8>, LayoutError> {
    let coding = coding.into();
    let mut packed = vec![0; packed_len(coding, neurons, inputs)?];
    let expected = neurons.saturating_mul(inputs);
    if codes.len() != expected {
        return Err(LayoutError::Length { neurons, inputs, coding: Coding::Bits(8), expected, found: codes.len() });
    }
    if let Some(index) = codes.iter().position(|&code| code > coding.max_code()) {
        return Err(LayoutError::Code { neuron: index / inputs, input: index % inputs, code: codes[index], coding });
    }
    let blocks = inputs.div_ceil(BLOCK_INPUTS);
    let Coding::Bits(bits) = coding else {
        let tile_length = coding.tile_bytes(blocks);
        for (tile, rows) in packed.chunks_exact_mut(tile_length).zip(codes.chunks(TILE_NEURONS * inputs)) {
            ternary::pack_tile(rows, inputs, tile);
        }
        return Ok(packed);
    };
    let block_length = block_bytes(bits);
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
