//! Embedding tables as packed rows: a lookup widens one row and dequantizes it.
//!
//! A row is a stream of bits, lowest bit first, code after code without gaps (the order of `qbert_quant::pack`), padded to
//! a whole byte, so that row `r` begins at byte `r · row_bytes`. Every column, or every row, has a step and an offset:
//! `value = Δ · code + q0`, rounded twice and never fused, so it has the same bits on every instruction set.
//!
//! A row of product codes is a byte for every few columns: the number of an entry in a codebook of 256 rows, whose codes
//! of 8 bits in these columns are those of the row.

use super::layout::{Coding, LayoutError};
use crate::cpu::Kernels;
use crate::simd::{Kernel, Simd};

/// Codes that are widened at once: whole bytes at every width, whole vectors on every instruction set.
const CHUNK: usize = 64;

/// The packed rows of an embedding table `[rows, cols]`, borrowed: usually from a file.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingRows<'a> {
    coding: RowCoding<'a>,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

/// How a row is stored.
#[derive(Clone, Copy, Debug)]
enum RowCoding<'a> {
    /// So many bits for every code.
    Bits(u8),
    /// A byte for `values` codes, which stand in the codebook `[256, cols]`.
    Product { values: usize, codebook: &'a [u8] },
}

/// The rows of a codebook: as many as a byte can name.
const ENTRIES: usize = 256;

impl<'a> EmbeddingRows<'a> {
    /// Interprets `bytes` as packed rows.
    ///
    /// # Errors
    /// [`LayoutError::Bits`], [`LayoutError::Shape`] or [`LayoutError::Length`].
    pub fn new(bits: u8, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let expected = Self::packed_len(bits, rows, cols)?;
        if bytes.len() != expected {
            let coding = Coding::Bits(bits);
            return Err(LayoutError::Length { neurons: rows, inputs: cols, coding, expected, found: bytes.len() });
        }
        Ok(Self { coding: RowCoding::Bits(bits), rows, cols, bytes })
    }

    /// Interprets `bytes` as rows of product codes, each a byte for `values` columns, and `codebook` as the codes that
    /// they stand for, `[256, cols]`.
    ///
    /// # Errors
    /// [`LayoutError::Shape`] when a side or `values` is 0; [`LayoutError::Length`] when a slice does not fit.
    pub fn product(
        values: usize,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
        codebook: &'a [u8],
    ) -> Result<Self, LayoutError> {
        let shape = LayoutError::Shape { neurons: rows, inputs: cols };
        let parts = cols.checked_div(values).map(|whole| whole + usize::from(!cols.is_multiple_of(values)));
        let lengths = parts.and_then(|parts| Some((parts.checked_mul(rows)?, cols.checked_mul(ENTRIES)?)));
        let (expected, entries) = lengths.filter(|(length, _)| *length > 0).ok_or(shape)?;
        for (expected, found) in [(expected, bytes.len()), (entries, codebook.len())] {
            if expected != found {
                let coding = Coding::Bits(8);
                return Err(LayoutError::Length { neurons: rows, inputs: cols, coding, expected, found });
            }
        }
        Ok(Self { coding: RowCoding::Product { values, codebook }, rows, cols, bytes })
    }

    /// The packed size of a table in bytes: each row is rounded up to a whole byte.
    ///
    /// # Errors
    /// [`LayoutError::Bits`] unless `bits` is 1 to 8; [`LayoutError::Shape`] when a side is 0 or the length overflows.
    pub fn packed_len(bits: u8, rows: usize, cols: usize) -> Result<usize, LayoutError> {
        if !(1..=8).contains(&bits) {
            return Err(LayoutError::Bits { bits });
        }
        let length = row_bytes(bits, cols).and_then(|row| row.checked_mul(rows));
        length.filter(|&length| length > 0).ok_or(LayoutError::Shape { neurons: rows, inputs: cols })
    }

    /// Packs row-major codes, one byte each.
    ///
    /// # Errors
    /// As [`EmbeddingRows::packed_len`]; [`LayoutError::Length`] when there are not `rows · cols` codes,
    /// [`LayoutError::Code`] for a code that needs more than `bits` bits.
    pub fn pack(codes: &[u8], bits: u8, rows: usize, cols: usize) -> Result<Vec<u8>, LayoutError> {
        let mut packed = vec![0; Self::packed_len(bits, rows, cols)?];
        let expected = rows.saturating_mul(cols);
        if codes.len() != expected {
            let coding = Coding::Bits(8);
            return Err(LayoutError::Length { neurons: rows, inputs: cols, coding, expected, found: codes.len() });
        }
        if let Some(index) = codes.iter().position(|&code| code > u8::MAX >> (8 - bits)) {
            let (neuron, input, coding) = (index / cols, index % cols, Coding::Bits(bits));
            return Err(LayoutError::Code { neuron, input, code: codes[index], coding });
        }
        let length = packed.len() / rows;
        for (target, row) in packed.chunks_exact_mut(length).zip(codes.chunks_exact(cols)) {
            for (index, &code) in row.iter().enumerate() {
                let bit = index * usize::from(bits);
                let word = u16::from(code) << (bit % 8);
                target[bit / 8] |= word as u8;
                if word > 0xff {
                    target[bit / 8 + 1] |= (word >> 8) as u8;
                }
            }
        }
        Ok(packed)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Checks that the padding of each row is 0, so that equal tables have equal bytes.
    ///
    /// # Errors
    /// [`LayoutError::Padding`] with the first row where it is not.
    pub fn check_padding(&self) -> Result<(), LayoutError> {
        let RowCoding::Bits(bits) = self.coding else { return Ok(()) };
        let used = self.cols * usize::from(bits) % 8;
        if used == 0 {
            return Ok(());
        }
        let length = self.bytes.len() / self.rows;
        let filled = |row: &[u8]| row.last().is_some_and(|&byte| byte >> used != 0);
        match self.bytes.chunks_exact(length).position(filled) {
            Some(row) => Err(LayoutError::Padding { neuron: row, input: self.cols }),
            None => Ok(()),
        }
    }

    /// Checks that no code is above `largest`, which its bits may leave room for.
    ///
    /// # Errors
    /// [`LayoutError::Code`] with the first that is.
    pub fn check_codes(&self, largest: u8) -> Result<(), LayoutError> {
        match self.coding {
            RowCoding::Bits(bits) if largest != u8::MAX >> (8 - bits) => {}
            RowCoding::Bits(_) | RowCoding::Product { .. } => return Ok(()),
        }
        for neuron in 0..self.rows {
            let codes = self.row_codes(neuron);
            if let Some(input) = codes.iter().position(|&code| code > largest) {
                return Err(LayoutError::Code { neuron, input, code: codes[input], coding: Coding::Ternary });
            }
        }
        Ok(())
    }

    /// The codes of one row, one byte each.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row_codes(&self, row: usize) -> Vec<u8> {
        let mut codes = vec![0; self.cols];
        for (chunk, codes) in codes.chunks_mut(CHUNK).enumerate() {
            codes.copy_from_slice(&self.chunk(self.row(row), chunk)[..codes.len()]);
        }
        codes
    }

    fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of a table of {}", self.rows);
        let length = self.bytes.len() / self.rows;
        &self.bytes[row * length..][..length]
    }

    /// Up to 64 codes of a row; missing ones are 0.
    #[inline(always)]
    fn chunk(&self, row: &[u8], chunk: usize) -> [u8; CHUNK] {
        match self.coding {
            RowCoding::Bits(bits) => {
                let length = CHUNK / 8 * usize::from(bits);
                widen(bits, &row[chunk * length..row.len().min((chunk + 1) * length)])
            }
            RowCoding::Product { values, codebook } => self.look_up(row, chunk, values, codebook),
        }
    }

    /// The codes of a chunk from a codebook. A part that lies in two chunks is looked up for both.
    fn look_up(&self, row: &[u8], chunk: usize, values: usize, codebook: &[u8]) -> [u8; CHUNK] {
        let mut codes = [0; CHUNK];
        let (first, end) = (chunk * CHUNK, self.cols.min((chunk + 1) * CHUNK));
        let mut col = first;
        while col < end {
            let part = col / values;
            let next = ((part + 1) * values).min(end);
            let entry = &codebook[usize::from(row[part]) * self.cols..][col..next];
            codes[col - first..next - first].copy_from_slice(entry);
            col = next;
        }
        codes
    }
}

fn row_bytes(bits: u8, cols: usize) -> Option<usize> {
    Some(cols.checked_mul(usize::from(bits))?.div_ceil(8))
}

/// Widens up to 64 codes; missing ones are 0.
#[inline(always)]
fn widen(bits: u8, bytes: &[u8]) -> [u8; CHUNK] {
    macro_rules! by_bits {
        ($($bits:literal)*) => {
            match bits {
                $($bits => widen_chunk::<$bits>(bytes),)*
                _ => widen_chunk::<8>(bytes),
            }
        };
    }
    by_bits!(1 2 3 4 5 6 7)
}

/// Eight codes of `BITS` bits are `BITS` bytes: one word each.
#[inline(always)]
fn widen_chunk<const BITS: usize>(bytes: &[u8]) -> [u8; CHUNK] {
    let mut codes = [0; CHUNK];
    for (bytes, codes) in bytes.chunks(BITS).zip(codes.as_chunks_mut::<8>().0) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        for (place, code) in codes.iter_mut().enumerate() {
            *code = (word >> (place * BITS)) as u8 & (u8::MAX >> (8 - BITS));
        }
    }
    codes
}

/// An embedding table with its steps and offsets.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingTable<'a> {
    /// The codes.
    pub rows: EmbeddingRows<'a>,
    /// Whether rows or columns have a step and an offset each.
    pub by_row: bool,
    /// `Δ` of each.
    pub steps: &'a [f32],
    /// `q0` of each.
    pub lows: &'a [f32],
}

struct Lookup<'a> {
    table: EmbeddingTable<'a>,
    row: usize,
    out: &'a mut [f32],
    add: bool,
}

impl Kernel for Lookup<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { table: EmbeddingTable { rows, by_row, steps, lows }, row, out, add } = self;
        let bytes = rows.row(row);
        let own = by_row.then(|| (simd.splat(steps[row]), simd.splat(lows[row])));
        for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
            let codes = rows.chunk(bytes, chunk);
            for (index, out) in out.chunks_mut(S::LANES).enumerate() {
                let col = chunk * CHUNK + index * S::LANES;
                let (step, low) = match own {
                    Some(own) => own,
                    None => {
                        let columns = col..col + out.len();
                        (simd.load_partial(&steps[columns.clone()]), simd.load_partial(&lows[columns]))
                    }
                };
                // SAFETY: the codes of a chunk are whole vectors.
                let codes = unsafe { simd.load_u8_as_f32_ptr(codes.as_ptr().add(index * S::LANES)) };
                let value = simd.add(simd.mul(step, codes), low);
                let value = if add { simd.add(simd.load_partial(out), value) } else { value };
                simd.store_partial(out, value);
            }
        }
    }
}

impl Kernels {
    /// `out = value` of one row of a table.
    ///
    /// # Panics
    /// When there is no such row, or a slice has another length than the table asks for.
    pub fn write_embedding(self, table: EmbeddingTable<'_>, row: usize, out: &mut [f32]) {
        check(&table, out);
        self.run(Lookup { table, row, out, add: false });
    }

    /// `out += value` of one row of a table.
    ///
    /// # Panics
    /// As [`Kernels::write_embedding`].
    pub fn add_embedding(self, table: EmbeddingTable<'_>, row: usize, out: &mut [f32]) {
        check(&table, out);
        self.run(Lookup { table, row, out, add: true });
    }
}

fn check(table: &EmbeddingTable<'_>, out: &[f32]) {
    let EmbeddingTable { rows, by_row, steps, lows } = table;
    let expected = if *by_row { rows.rows } else { rows.cols };
    assert!(
        steps.len() == expected && lows.len() == expected,
        "{} steps and {} offsets of {expected}",
        steps.len(),
        lows.len()
    );
    assert!(out.len() == rows.cols, "an output of {} for {} columns", out.len(), rows.cols);
}
