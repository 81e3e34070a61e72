//! Converts whole activation matrices from f32 to codes and back: for models that leave some matrices in f32 between
//! quantized activations.
//!
//! Not for the usual path through an encoder, where the operation that computes the values writes their codes.

use super::codes::{Codes, Quantizer, QuantizerLanes};
use crate::activation::Activation;
use crate::compute::Compute;
use crate::scratch::part_bytes;
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Rows per task.
const ROWS: usize = 16;

impl Compute {
    /// Quantizes row-major values over all threads; `codes` must already have their shape.
    ///
    /// # Panics
    /// When there are not as many values as codes.
    pub fn quantize(&self, values: &[f32], codes: &mut Codes, quantizer: Quantizer) {
        let (rows, cols, stride) = (codes.rows(), codes.cols(), codes.stride());
        assert!(values.len() == rows * cols, "{} values for {rows}×{cols} codes", values.len());
        if values.is_empty() {
            return;
        }
        self.threads().for_each_chunk([codes.stored_rows_mut()], [ROWS * stride], |task, [codes]| {
            let own = rows_of(task, rows);
            let values = &values[own.start * cols..own.end * cols];
            self.kernels().run(Quantize { values, cols, codes, stride, quantizer });
        });
    }

    /// Quantizes `f(a) ∘ g` over all threads, where a row of `values` has `a` and then `g`; `codes` must already have the shape
    /// of either.
    ///
    /// # Panics
    /// When there are not twice as many values as codes.
    pub fn gate_to_codes(&self, activation: Activation, values: &[f32], codes: &mut Codes, quantizer: Quantizer) {
        let (rows, cols, stride) = (codes.rows(), codes.cols(), codes.stride());
        assert!(values.len() == 2 * rows * cols, "{} values for {rows}×{cols} codes", values.len());
        if values.is_empty() {
            return;
        }
        let kernels = self.kernels();
        self.threads().for_each_chunk([codes.stored_rows_mut()], [ROWS * stride], |task, [codes]| {
            let mut scratch = self.scratch(part_bytes::<f32>(cols));
            let gated: &mut [f32] = scratch.parts().take(cols);
            for (row, codes) in rows_of(task, rows).zip(codes.chunks_exact_mut(stride)) {
                let (a, gate) = values[2 * row * cols..2 * (row + 1) * cols].split_at(cols);
                kernels.activate(activation, a, gated);
                kernels.multiply(gate, gated);
                kernels.run(Quantize { values: gated, cols, codes, stride, quantizer });
            }
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
    /// Rows of `stride` bytes: `cols` codes and room for a whole vector.
    codes: &'a mut [i8],
    stride: usize,
    quantizer: Quantizer,
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let lanes = QuantizerLanes::new(simd, &self.quantizer);
        let rows = self.values.chunks_exact(self.cols).zip(self.codes.chunks_exact_mut(self.stride));
        for (values, codes) in rows {
            for (part, codes) in values.chunks(S::LANES).zip(codes.chunks_exact_mut(S::LANES)) {
                let lanes = lanes.codes(simd, simd.load_partial(part));
                // SAFETY: a whole vector is there.
                unsafe { simd.store_i8_ptr(codes.as_mut_ptr(), lanes) };
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
        for (row, values) in self.rows.zip(self.values.chunks_exact_mut(self.codes.cols())) {
            let codes = self.codes.stored_row(row).chunks_exact(S::LANES);
            for (part, codes) in values.chunks_mut(S::LANES).zip(codes) {
                // SAFETY: a whole vector is there.
                let codes = unsafe { simd.load_i8_ptr(codes.as_ptr()) };
                simd.store_partial(part, simd.mul(step, simd.to_f32(simd.sub_i32(codes, zero))));
            }
        }
    }
}
