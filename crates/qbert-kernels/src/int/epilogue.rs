//! Turns exact integer sums into what the next operation reads, in one pass over a tile.
//!
//! ```text
//! y_n = (Δa·Δw_n)·f32(S - z·ΣW_n) + ( (Δa·w0_n)·f32(ΣA - z·K) + b_n )
//! ```
//!
//! The integers are exact. The two products of steps are rounded, and each of the two sums is one fused multiply-add. So
//! `y`, and everything made from it, has the same bits on every instruction set.

use super::codes::{Quantizer, QuantizerLanes};
use super::params::LinearParams;
use super::tile::PANEL;
use crate::activation::Activation;
use crate::shared_matrix::SharedMatrix;
use crate::simd::math::{Cubic, Linear, gated_of_each, gelu_of_each, relu_of_each};
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Where a layer's results go: a matrix whose parts are written by different tasks. Rows of codes are whole cache lines.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Sums(SharedMatrix<'a, i32>),
    Float(SharedMatrix<'a, f32>),
    Add(SharedMatrix<'a, f32>),
    Codes(SharedMatrix<'a, i8>, Quantizer),
    Activated(Activation, SharedMatrix<'a, i8>, Quantizer),
}

impl Target<'_> {
    /// Prefetches the cache lines of a tile's results, which are written (or added to) only after its products.
    #[inline]
    pub(super) fn prefetch(&self, rows: Range<usize>, neuron: usize) {
        match self {
            Self::Sums(matrix) => prefetch_panel(matrix, rows, neuron),
            Self::Float(matrix) | Self::Add(matrix) => prefetch_panel(matrix, rows, neuron),
            Self::Codes(matrix, _) | Self::Activated(_, matrix, _) => prefetch_panel(matrix, rows, neuron),
        }
    }

    /// Checks that the matrix has these rows and neurons, and room for whole panels where whole vectors are stored.
    fn check(&self, rows: Range<usize>, neurons: Range<usize>) {
        match self {
            Self::Sums(matrix) => _ = matrix.block(rows, neurons),
            Self::Float(matrix) | Self::Add(matrix) => _ = matrix.block(rows, neurons),
            Self::Codes(matrix, _) | Self::Activated(_, matrix, _) => {
                _ = matrix.block(rows, neurons.start..neurons.start + PANEL);
            }
        }
    }
}

fn prefetch_panel<T>(matrix: &SharedMatrix<'_, T>, rows: Range<usize>, neuron: usize) {
    for row in rows {
        for offset in (0..PANEL).step_by(LINE / size_of::<T>()) {
            prefetch(matrix.address(row, neuron + offset).cast());
        }
    }
}

const LINE: usize = 64;

#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    crate::simd::neon::prefetch(address);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Turns one tile of sums into results and writes them to the target.
pub(super) struct Finish<'a> {
    /// Rows of 32 integers `S - z·ΣW`.
    sums: &'a [i32],
    /// `f32(ΣA - z·K)` of each row.
    row_terms: &'a [f32],
    params: &'a LinearParams,
    /// Step of the input's codes.
    step: f32,
    target: Target<'a>,
    /// Row of the target where the tile begins.
    row: usize,
    /// First neuron of the tile.
    neuron: usize,
    /// Neurons that exist, at most 32.
    neurons: usize,
}

/// What turns a layer's sums into its results: the same for all tiles.
pub(super) struct Epilogue<'a> {
    pub(super) params: &'a LinearParams,
    /// Step of the input's codes.
    pub(super) step: f32,
    pub(super) target: Target<'a>,
}

impl<'a> Epilogue<'a> {
    /// The kernel that finishes the tile whose first sum belongs to `row` and `neuron`.
    ///
    /// # Safety
    /// No other thread may use the tile's rows and neurons of the target until the kernel has run.
    ///
    /// # Panics
    /// When there are not 32 sums for every row term, or the target does not have the tile.
    pub(super) unsafe fn finish(&self, sums: &'a [i32], row_terms: &'a [f32], row: usize, neuron: usize) -> Finish<'a> {
        let &Self { params, step, target } = self;
        let neurons = PANEL.min(params.neurons() - neuron);
        assert!(sums.len() >= row_terms.len() * PANEL, "{} sums for {} rows", sums.len(), row_terms.len());
        target.check(row..row + row_terms.len(), neuron..neuron + neurons);
        Finish { sums, row_terms, params, step, target, row, neuron, neurons }
    }
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // SAFETY: `Epilogue::finish` checked that the target has the tile's rows and neurons (whole panels of codes), and
        // its caller promised that they are ours.
        unsafe {
            match self.target {
                Target::Sums(matrix) => self.copy_sums(matrix),
                Target::Float(matrix) => self.each_vector(simd, |place, y| {
                    simd.store_first_ptr(place.in_matrix(matrix), place.count, y);
                }),
                Target::Add(matrix) => self.each_vector(simd, |place, y| {
                    let address = place.in_matrix(matrix);
                    let sum = simd.add(y, simd.load_first_ptr(address, place.count));
                    simd.store_first_ptr(address, place.count, sum);
                }),
                Target::Codes(matrix, quantizer) => {
                    let lanes = QuantizerLanes::new(simd, &quantizer);
                    self.each_vector(simd, |place, y| {
                        simd.store_i8_ptr(place.in_matrix(matrix), lanes.codes(simd, y));
                    });
                }
                Target::Activated(activation, matrix, quantizer) => {
                    let lanes = QuantizerLanes::new(simd, &quantizer);
                    let store = |place: Place, y: S::F32| {
                        simd.store_i8_ptr(place.in_matrix(matrix), lanes.codes(simd, y));
                    };
                    match activation {
                        Activation::Gelu => {
                            self.each_vectors(simd, gelu_of_each::<S, TOGETHER>, gelu_of_each::<S, 1>, store);
                        }
                        Activation::GeluTanh => {
                            let several = gated_of_each::<S, Cubic, TOGETHER>;
                            self.each_vectors(simd, several, gated_of_each::<S, Cubic, 1>, store);
                        }
                        Activation::Relu => {
                            self.each_vectors(simd, relu_of_each::<S, TOGETHER>, relu_of_each::<S, 1>, store);
                        }
                        Activation::Silu => {
                            let several = gated_of_each::<S, Linear, TOGETHER>;
                            self.each_vectors(simd, several, gated_of_each::<S, Linear, 1>, store);
                        }
                    }
                }
            }
        }
    }
}

/// Vectors of a long function that are computed at once.
const TOGETHER: usize = 4;

/// A vector's place in the target.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    neuron: usize,
    /// Neurons that exist.
    count: usize,
}

impl Place {
    #[inline(always)]
    fn in_matrix<T>(self, matrix: SharedMatrix<'_, T>) -> *mut T {
        matrix.address(self.row, self.neuron)
    }
}

/// The numbers of one vector of neurons.
struct Neurons<S: Simd> {
    /// `Δa·Δw`
    step: S::F32,
    /// `Δa·w0`
    low: S::F32,
    bias: S::F32,
}

impl Finish<'_> {
    #[inline(always)]
    fn neurons<S: Simd>(&self, simd: S, neuron: usize) -> Neurons<S> {
        let LinearParams { steps, lows, biases, .. } = self.params;
        let step = simd.splat(self.step);
        Neurons {
            step: simd.mul(step, simd.load(&steps[neuron..])),
            low: simd.mul(step, simd.load(&lows[neuron..])),
            bias: simd.load(&biases[neuron..]),
        }
    }

    /// `y` of one row and one vector of neurons.
    ///
    /// # Safety
    /// `sums` must hold a row of 32 integers for every row term.
    #[inline(always)]
    unsafe fn y<S: Simd>(&self, simd: S, neurons: &Neurons<S>, row: usize, offset: usize) -> S::F32 {
        // SAFETY: a row of the tile has 32 sums.
        let sum = unsafe { simd.load_i32_ptr(self.sums.as_ptr().add(row * PANEL + offset)) };
        let offset = simd.mul_add(neurons.low, simd.splat(self.row_terms[row]), neurons.bias);
        simd.mul_add(neurons.step, simd.to_f32(sum), offset)
    }

    /// Calls `store(place, y)` for every vector of the tile.
    ///
    /// # Safety
    /// As [`Finish::y`].
    #[inline(always)]
    unsafe fn each_vector<S: Simd>(&self, simd: S, store: impl Fn(Place, S::F32)) {
        for offset in (0..self.neurons).step_by(S::LANES) {
            let neurons = self.neurons(simd, self.neuron + offset);
            let count = S::LANES.min(self.neurons - offset);
            for row in 0..self.row_terms.len() {
                // SAFETY: the caller's promise.
                let y = unsafe { self.y(simd, &neurons, row, offset) };
                store(Place { row: self.row + row, neuron: self.neuron + offset, count }, y);
            }
        }
    }

    /// The same with a function of `y` that is computed for several rows at once.
    ///
    /// # Safety
    /// As [`Finish::y`].
    #[inline(always)]
    unsafe fn each_vectors<S: Simd>(
        &self,
        simd: S,
        several: impl Fn(S, [S::F32; TOGETHER]) -> [S::F32; TOGETHER],
        single: impl Fn(S, [S::F32; 1]) -> [S::F32; 1],
        store: impl Fn(Place, S::F32),
    ) {
        let rows = self.row_terms.len();
        for offset in (0..self.neurons).step_by(S::LANES) {
            let neurons = self.neurons(simd, self.neuron + offset);
            let count = S::LANES.min(self.neurons - offset);
            let place = |row| Place { row: self.row + row, neuron: self.neuron + offset, count };
            for row in (0..rows - rows % TOGETHER).step_by(TOGETHER) {
                let mut y = [simd.splat(0.0); TOGETHER];
                for (index, y) in y.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    *y = unsafe { self.y(simd, &neurons, row + index, offset) };
                }
                let values = several(simd, y);
                for (index, &value) in values.iter().enumerate() {
                    store(place(row + index), value);
                }
            }
            for row in rows - rows % TOGETHER..rows {
                // SAFETY: the caller's promise.
                let [value] = single(simd, [unsafe { self.y(simd, &neurons, row, offset) }]);
                store(place(row), value);
            }
        }
    }

    /// # Safety
    /// As [`Finish::each_vector`], and the target must have the tile's rows and neurons.
    unsafe fn copy_sums(&self, matrix: SharedMatrix<'_, i32>) {
        for (row, sums) in self.sums.chunks_exact(PANEL).take(self.row_terms.len()).enumerate() {
            let target = matrix.address(self.row + row, self.neuron);
            // SAFETY: at most 32 sums are copied; the target has room for them, as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), target, self.neurons) };
        }
    }
}
