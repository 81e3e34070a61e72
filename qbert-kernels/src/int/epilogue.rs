//! From exact integer sums to what the next operation reads, in one pass over a micro-tile.
//!
//! ```text
//! y_n = Δa · ( Δw_n·f32(S - z·ΣW_n) + w0_n·f32(ΣA - z·K) ) + b_n
//! ```
//!
//! The integers are exact; then every float operation is rounded on its own, in exactly this order and never fused, so
//! that `y` has the same bits with every instruction set. So have the codes made from `y`; GELU agrees between
//! instruction sets only to its stated accuracy, as in training.

use super::codes::{Quantizer, QuantizerLanes};
use super::params::LinearParams;
use super::tile::PANEL;
use crate::simd::math::normal;
use crate::simd::{Kernel, Simd};

/// Where a layer's results go, by address: the first element of the matrix and the distance of rows.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Sums(*mut i32, usize),
    Float(*mut f32, usize),
    Add(*mut f32, usize),
    Codes(*mut i8, usize, Quantizer),
    Gelu(*mut i8, usize, Quantizer),
}

/// One micro-tile of sums on its way to its target.
pub(super) struct Finish<'a> {
    /// `rows` rows of 32 integers `S - z·ΣW`.
    pub(super) sums: *const i32,
    /// `f32(ΣA - z·K)` of each row.
    pub(super) row_terms: &'a [f32],
    pub(super) params: &'a LinearParams,
    /// Step of the input's codes.
    pub(super) step: f32,
    pub(super) target: Target,
    /// Row of the target where the tile begins.
    pub(super) row: usize,
    /// First neuron of the tile.
    pub(super) neuron: usize,
    /// Neurons that exist, at most 32.
    pub(super) neurons: usize,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // SAFETY: the addresses of every kind of target are inside the rows and neurons that whoever made this promised;
        // rows of codes have room for whole panels.
        unsafe {
            match self.target {
                Target::Sums(base, stride) => self.copy_sums(base, stride),
                Target::Float(base, stride) => self.each_vector(simd, |row, vector, count, y| {
                    simd.store_first_ptr(base.add(row * stride + vector), count, y);
                }),
                Target::Add(base, stride) => self.each_vector(simd, |row, vector, count, y| {
                    let place = base.add(row * stride + vector);
                    simd.store_first_ptr(place, count, simd.add(y, simd.load_first_ptr(place, count)));
                }),
                Target::Codes(base, stride, quantizer) => {
                    let lanes = QuantizerLanes::new(simd, &quantizer);
                    self.each_vector(simd, |row, vector, _, y| {
                        simd.store_i8_ptr(base.add(row * stride + vector), lanes.codes(simd, y));
                    });
                }
                Target::Gelu(base, stride, quantizer) => {
                    let lanes = QuantizerLanes::new(simd, &quantizer);
                    self.each_vector(simd, |row, vector, _, y| {
                        let value = simd.mul(y, normal(simd, y).cumulative);
                        simd.store_i8_ptr(base.add(row * stride + vector), lanes.codes(simd, value));
                    });
                }
            }
        }
    }
}

impl Finish<'_> {
    /// Calls `store(row, column, count, y)` for every vector of the tile, row and column counted in the target.
    ///
    /// # Safety
    /// `sums` must hold a row of 32 integers for every row term.
    #[inline(always)]
    unsafe fn each_vector<S: Simd>(&self, simd: S, store: impl Fn(usize, usize, usize, S::F32)) {
        let step = simd.splat(self.step);
        for offset in (0..self.neurons).step_by(S::LANES) {
            let neuron = self.neuron + offset;
            let weight_step = simd.load(&self.params.steps[neuron..]);
            let low = simd.load(&self.params.lows[neuron..]);
            let bias = simd.load(&self.params.biases[neuron..]);
            let count = S::LANES.min(self.neurons - offset);
            for (row, &term) in self.row_terms.iter().enumerate() {
                // SAFETY: a row of the tile has 32 sums.
                let sum = unsafe { simd.load_i32_ptr(self.sums.add(row * PANEL + offset)) };
                let codes = simd.mul(weight_step, simd.to_f32(sum));
                let inner = simd.add(codes, simd.mul(low, simd.splat(term)));
                let y = simd.add(simd.mul(step, inner), bias);
                store(self.row + row, neuron, count, y);
            }
        }
    }

    /// # Safety
    /// As [`Finish::each_vector`], and the target must have the tile's rows and neurons.
    unsafe fn copy_sums(&self, base: *mut i32, stride: usize) {
        for row in 0..self.row_terms.len() {
            // SAFETY: the caller's promises.
            unsafe {
                let target = base.add((self.row + row) * stride + self.neuron);
                std::ptr::copy_nonoverlapping(self.sums.add(row * PANEL), target, self.neurons);
            }
        }
    }
}
