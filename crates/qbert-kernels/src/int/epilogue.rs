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
use crate::simd::math::gelu_of_each;
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

impl Target {
    /// Asks for the cache lines of a micro-tile's results, which are written (or added to) only after its products.
    #[inline]
    pub(super) fn prefetch(&self, rows: std::ops::Range<usize>, neuron: usize) {
        let lines = |address: *const u8, row_bytes: usize, width: usize| {
            for row in rows.clone() {
                for line in (0..width).step_by(LINE) {
                    prefetch(address.wrapping_add(row * row_bytes + line));
                }
            }
        };
        let float = size_of::<f32>();
        match *self {
            Self::Sums(base, stride) => lines(base.wrapping_add(neuron).cast(), stride * float, PANEL * float),
            Self::Float(base, stride) | Self::Add(base, stride) => {
                lines(base.wrapping_add(neuron).cast(), stride * float, PANEL * float);
            }
            Self::Codes(base, stride, _) | Self::Gelu(base, stride, _) => {
                lines(base.wrapping_add(neuron).cast(), stride, PANEL);
            }
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
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
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
                Target::Float(base, stride) => self.each_vector(simd, |place, y| {
                    simd.store_first_ptr(base.add(place.at(stride)), place.count, y);
                }),
                Target::Add(base, stride) => self.each_vector(simd, |place, y| {
                    let address = base.add(place.at(stride));
                    let sum = simd.add(y, simd.load_first_ptr(address, place.count));
                    simd.store_first_ptr(address, place.count, sum);
                }),
                Target::Codes(base, stride, quantizer) => {
                    let lanes = QuantizerLanes::new(simd, &quantizer);
                    self.each_vector(simd, |place, y| {
                        simd.store_i8_ptr(base.add(place.at(stride)), lanes.codes(simd, y));
                    });
                }
                Target::Gelu(base, stride, quantizer) => {
                    let lanes = QuantizerLanes::new(simd, &quantizer);
                    self.each_vectors(simd, gelu_of_each::<S, TOGETHER>, gelu_of_each::<S, 1>, |place, y| {
                        simd.store_i8_ptr(base.add(place.at(stride)), lanes.codes(simd, y));
                    });
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
    fn at(self, stride: usize) -> usize {
        self.row * stride + self.neuron
    }
}

/// The numbers of one vector of neurons.
struct Neurons<S: Simd> {
    step: S::F32,
    low: S::F32,
    bias: S::F32,
}

impl Finish<'_> {
    #[inline(always)]
    fn neurons<S: Simd>(&self, simd: S, neuron: usize) -> Neurons<S> {
        let LinearParams { steps, lows, biases, .. } = self.params;
        Neurons {
            step: simd.load(&steps[neuron..]),
            low: simd.load(&lows[neuron..]),
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
        let sum = unsafe { simd.load_i32_ptr(self.sums.add(row * PANEL + offset)) };
        let codes = simd.mul(neurons.step, simd.to_f32(sum));
        let inner = simd.add(codes, simd.mul(neurons.low, simd.splat(self.row_terms[row])));
        simd.add(simd.mul(simd.splat(self.step), inner), neurons.bias)
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
