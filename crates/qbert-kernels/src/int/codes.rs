//! Activations as 8-bit codes: the quantizer with an integer zero point, and the matrix that holds the codes.
//!
//! ```text
//! code(x) = clamp(round_half_even(x · inverse) + z, 0, 255)        value(A) = Δ · (A - z)
//! ```
//!
//! A matrix stores `A - 128` as `i8`, because that is what the dot products take (see `tile.rs`); code outside of `int`
//! sees only `A`. Rows are padded to whole cache lines, so that kernels read and write whole vectors.

use crate::shared_matrix::SharedMatrix;
use crate::simd::Simd;

/// How one activation tensor is quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantizer {
    pub(super) step: f32,
    pub(super) inverse: f32,
    pub(super) zero_point: u8,
}

impl Quantizer {
    /// Attention probabilities: `code = round_half_even(255 · p)`.
    pub const PROBABILITIES: Self = Self { step: 1.0 / 255.0, inverse: 255.0, zero_point: 0 };

    /// The quantizer of this step and zero point; the inverse of the step is rounded once to f32.
    ///
    /// # Panics
    /// Unless the step is a normal number above 0.
    pub fn new(step: f32, zero_point: u8) -> Self {
        assert!(step.is_normal() && step > 0.0, "activation step {step}");
        Self { step, inverse: 1.0 / step, zero_point }
    }

    /// The step `Δ` between adjacent values.
    pub fn step(&self) -> f32 {
        self.step
    }

    /// The code that stands for 0.
    pub fn zero_point(&self) -> u8 {
        self.zero_point
    }

    /// The zero point minus 128, as the stored codes have it.
    pub(super) fn shifted_zero(&self) -> i32 {
        i32::from(self.zero_point) - 128
    }
}

/// A quantizer's numbers in every lane.
#[derive(Clone, Copy)]
pub(super) struct QuantizerLanes<S: Simd> {
    inverse: S::F32,
    lowest: S::F32,
    highest: S::F32,
    zero: S::U32,
}

impl<S: Simd> QuantizerLanes<S> {
    #[inline(always)]
    pub(super) fn new(simd: S, quantizer: &Quantizer) -> Self {
        let zero = f32::from(quantizer.zero_point);
        Self {
            inverse: simd.splat(quantizer.inverse),
            lowest: simd.splat(-zero),
            highest: simd.splat(255.0 - zero),
            zero: simd.splat_u32(quantizer.shifted_zero().cast_unsigned()),
        }
    }

    /// Codes minus 128. Clamping before rounding gives the same result as after, since the bounds are whole numbers; it
    /// keeps the conversion in range and turns NaN into code 0.
    #[inline(always)]
    pub(super) fn codes(&self, simd: S, values: S::F32) -> S::U32 {
        let scaled = simd.mul(values, self.inverse);
        let clamped = simd.min(simd.max(scaled, self.lowest), self.highest);
        simd.add_i32(simd.to_i32(clamped), self.zero)
    }
}

/// Bytes that rows are padded to.
const LINE: usize = 64;
/// Rows this many bytes apart would share a few lines of the first-level cache.
const COLLIDING: usize = 4096;

/// A matrix of activation codes, `rows × cols`, whose number of rows changes from call to call.
#[derive(Clone, Debug, Default)]
pub struct Codes {
    data: Vec<i8>,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl Codes {
    /// An empty matrix of `cols` columns.
    ///
    /// # Panics
    /// When a row is longer than the address space.
    pub fn new(cols: usize) -> Self {
        let padded = cols.checked_next_multiple_of(LINE).and_then(|padded| {
            let collides = padded > 0 && padded.is_multiple_of(COLLIDING);
            if collides { padded.checked_add(LINE) } else { Some(padded) }
        });
        let Some(stride) = padded else { panic!("rows of {cols} codes do not fit in memory") };
        Self { data: Vec::new(), rows: 0, cols, stride }
    }

    /// Changes the number of rows, whose content is then arbitrary. Allocates only when there were never so many rows.
    ///
    /// # Panics
    /// When the matrix is larger than the address space.
    pub fn resize(&mut self, rows: usize) {
        // A little more, because kernels read four codes at a time even at the end of a head. Kernels rely on this length,
        // so it must not wrap.
        let needed = rows.checked_mul(self.stride).and_then(|bytes| bytes.checked_add(LINE));
        let Some(needed) = needed else { panic!("{rows} rows of {} codes do not fit in memory", self.cols) };
        if self.data.len() < needed {
            self.data.resize(needed, 0);
        }
        self.rows = rows;
    }

    /// Drops all rows but these.
    ///
    /// # Panics
    /// Unless the rows ascend and exist.
    pub fn keep_rows(&mut self, rows: &[usize]) {
        let ascending = rows.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(ascending && rows.last().is_none_or(|&last| last < self.rows), "rows {rows:?} of {}", self.rows);
        for (row, &from) in rows.iter().enumerate() {
            self.data.copy_within(from * self.stride..from * self.stride + self.cols, row * self.stride);
        }
        self.rows = rows.len();
    }

    /// A matrix of these row-major codes.
    ///
    /// # Panics
    /// When they are not a whole number of rows.
    pub fn from_codes(codes: &[u8], cols: usize) -> Self {
        assert!(cols > 0 && codes.len().is_multiple_of(cols), "{} codes in rows of {cols}", codes.len());
        let mut matrix = Self::new(cols);
        matrix.resize(codes.len() / cols);
        let stride = matrix.stride;
        for (row, from) in codes.chunks_exact(cols).enumerate() {
            let stored = &mut matrix.data[row * stride..][..cols];
            stored.iter_mut().zip(from).for_each(|(stored, &code)| *stored = (code ^ 0x80).cast_signed());
        }
        matrix
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The bytes of memory that it holds, whatever the number of rows is now.
    pub fn bytes(&self) -> usize {
        self.data.capacity()
    }

    /// One code.
    ///
    /// # Panics
    /// When there is no such row or column.
    pub fn code(&self, row: usize, col: usize) -> u8 {
        assert!(row < self.rows && col < self.cols, "code {row},{col} of {}×{}", self.rows, self.cols);
        self.data[row * self.stride + col].cast_unsigned() ^ 0x80
    }

    /// All codes, row-major: for tests and inspection.
    pub fn to_codes(&self) -> Vec<u8> {
        let places = (0..self.rows).flat_map(|row| (0..self.cols).map(move |col| (row, col)));
        places.map(|(row, col)| self.code(row, col)).collect()
    }

    /// Bytes between rows: at least `cols` rounded up to 64.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// All stored codes: rows of [`Codes::stride`] bytes, and a little more after the last.
    pub(super) fn stored(&self) -> &[i8] {
        &self.data
    }

    /// The stored codes of the rows that exist, to be written row by row.
    pub(super) fn stored_rows_mut(&mut self) -> &mut [i8] {
        &mut self.data[..self.rows * self.stride]
    }

    /// The stored codes of one row, followed by its padding.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline(always)]
    pub(super) fn stored_row(&self, row: usize) -> &[i8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.data[row * self.stride..][..self.stride]
    }

    /// The matrix for tasks that each write their own part.
    pub(super) fn shared(&mut self) -> SharedMatrix<'_, i8> {
        SharedMatrix::new(&mut self.data, self.rows, self.stride, self.stride)
    }
}

/// `Σ A'` of some stored codes.
#[inline(always)]
pub(super) fn sum_of_codes<S: Simd>(simd: S, codes: &[i8]) -> i32 {
    let mut sums = simd.splat_u32(0);
    let mut vectors = codes.chunks_exact(S::LANES);
    for vector in &mut vectors {
        // SAFETY: a whole vector is there.
        sums = simd.add_i32(sums, unsafe { simd.load_i8_ptr(vector.as_ptr()) });
    }
    let rest: i32 = vectors.remainder().iter().map(|&code| i32::from(code)).sum();
    simd.reduce_add_i32(sums).wrapping_add(rest)
}
