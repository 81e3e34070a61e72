//! Whole activation matrices from f32 to codes and back: for a model whose neighbouring layers differ, a matrix left in
//! f32 between quantized activations.
//!
//! Not for the usual way through an encoder, where codes are written by the operation that computes the values.

use super::codes::{Codes, Quantizer, QuantizerLanes};
use crate::compute::Compute;
use crate::simd::{Kernel, Simd};
use crate::threads::Shared;
use std::ops::Range;

/// Rows of a task.
const ROWS: usize = 16;

impl Compute {
    /// Quantizes row-major values over all threads; `codes` already has their shape.
    ///
    /// # Panics
    /// When there are not as many values as codes.
    pub fn quantize(&self, values: &[f32], codes: &mut Codes, quantizer: Quantizer) {
        let (rows, cols, stride) = (codes.rows(), codes.cols(), codes.stride());
        assert!(values.len() == rows * cols, "{} values for {rows}×{cols} codes", values.len());
        let base = Shared(codes.as_mut_ptr());
        self.threads().for_each(rows.div_ceil(ROWS), |task| {
            let own = rows_of(task, rows);
            let values = &values[own.start * cols..own.end * cols];
            // SAFETY: these rows of codes exist, and no other task has them.
            let codes = unsafe { base.get().add(own.start * stride) };
            self.kernels().run(Quantize { values, cols, codes, stride, quantizer });
        });
    }

    /// `Δ · (A - z)` of every code, row-major, over all threads.
    ///
    /// # Panics
    /// When there are not as many values as codes.
    pub fn dequantize(&self, codes: &Codes, quantizer: Quantizer, values: &mut [f32]) {
        let (rows, cols) = (codes.rows(), codes.cols());
        assert!(values.len() == rows * cols, "{} values for {rows}×{cols} codes", values.len());
        if values.is_empty() {
            return;
        }
        self.threads().for_each_chunk([values], [ROWS * cols], |task, [values]| {
            self.kernels().run(Dequantize { codes, rows: rows_of(task, rows), quantizer, values });
        });
    }
}

fn rows_of(task: usize, rows: usize) -> Range<usize> {
    task * ROWS..rows.min((task + 1) * ROWS)
}

struct Quantize<'a> {
    values: &'a [f32],
    cols: usize,
    /// The first row's codes.
    codes: *mut i8,
    stride: usize,
    quantizer: Quantizer,
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let lanes = QuantizerLanes::new(simd, &self.quantizer);
        for (row, values) in self.values.chunks_exact(self.cols.max(1)).enumerate() {
            for (index, part) in values.chunks(S::LANES).enumerate() {
                let codes = lanes.codes(simd, simd.load_partial(part));
                // SAFETY: the row exists and has room for whole vectors.
                unsafe { simd.store_i8_ptr(self.codes.add(row * self.stride + index * S::LANES), codes) };
            }
        }
    }
}

struct Dequantize<'a> {
    codes: &'a Codes,
    rows: Range<usize>,
    quantizer: Quantizer,
    values: &'a mut [f32],
}

impl Kernel for Dequantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let zero = simd.splat_u32(self.quantizer.shifted_zero().cast_unsigned());
        let step = simd.splat(self.quantizer.step);
        assert!(self.rows.end <= self.codes.rows());
        for (row, values) in self.rows.zip(self.values.chunks_exact_mut(self.codes.cols())) {
            for (index, part) in values.chunks_mut(S::LANES).enumerate() {
                // SAFETY: the row exists and is padded to whole vectors.
                let codes =
                    unsafe { simd.load_i8_ptr(self.codes.as_ptr().add(row * self.codes.stride() + index * S::LANES)) };
                simd.store_partial(part, simd.mul(step, simd.to_f32(simd.sub_i32(codes, zero))));
            }
        }
    }
}
