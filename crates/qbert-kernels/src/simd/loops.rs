//! The two loops that nearly every vector kernel consists of: a function of each element, and sums over elements.
//!
//! They call no intrinsic from a closure. The compiler may leave a closure out of line, and outside of the function with
//! the instruction set's features every intrinsic would be a call.

use super::{Kernel, SUM_LANES, Simd};

/// A function of the elements at one position of `IN` read-only and `OUT` written slices.
pub(crate) trait Elementwise<const IN: usize, const OUT: usize> {
    /// `current` holds what the written slices contained before.
    fn apply<S: Simd>(&self, simd: S, inputs: [S::F32; IN], current: [S::F32; OUT]) -> [S::F32; OUT];
}

/// Applies an [`Elementwise`] function to slices of one length.
pub(crate) struct Map<'a, E, const IN: usize, const OUT: usize> {
    pub(crate) function: E,
    pub(crate) inputs: [&'a [f32]; IN],
    pub(crate) outputs: [&'a mut [f32]; OUT],
}

impl<E: Elementwise<IN, OUT>, const IN: usize, const OUT: usize> Kernel for Map<'_, E, IN, OUT> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { function, inputs, mut outputs } = self;
        let length = outputs[0].len();
        assert_equal_lengths(&inputs, length);
        for output in &outputs {
            assert!(output.len() == length, "slices of {} and {length} elements", output.len());
        }
        let reads = inputs.map(<[f32]>::as_ptr);
        let writes = outputs.each_mut().map(|output| output.as_mut_ptr());
        let currents = writes.map(<*mut f32>::cast_const);
        let mut start = 0;
        while start + S::LANES <= length {
            // SAFETY: all slices have `length` elements and start + LANES <= length.
            unsafe {
                let inputs = load_each(simd, &reads, start);
                let current = load_each(simd, &currents, start);
                let values = function.apply(simd, inputs, current);
                for (pointer, value) in writes.into_iter().zip(values) {
                    simd.store_ptr(pointer.add(start), value);
                }
            }
            start += S::LANES;
        }
        let rest = length - start;
        if rest > 0 {
            // SAFETY: `rest < LANES` elements remain in every slice.
            unsafe {
                let inputs = load_first_of_each(simd, &reads, start, rest);
                let current = load_first_of_each(simd, &currents, start, rest);
                let values = function.apply(simd, inputs, current);
                for (pointer, value) in writes.into_iter().zip(values) {
                    simd.store_first_ptr(pointer.add(start), rest, value);
                }
            }
        }
    }
}

/// Terms that are summed over all positions of `IN` slices.
pub(crate) trait Terms<const IN: usize, const SUMS: usize> {
    fn terms<S: Simd>(&self, simd: S, inputs: [S::F32; IN]) -> [S::F32; SUMS];
}

/// [`SUM_LANES`] sums side by side, in as many vectors as this takes.
///
/// Element `i` of what is added up goes to sum `i mod 16` on every instruction set, so all of them add the same numbers
/// in the same order.
#[derive(Clone, Copy)]
pub(crate) struct LaneSums<S: Simd> {
    /// The first [`LaneSums::PARTS`] are in use. An array of exactly that length cannot be written in Rust yet; the
    /// compiler drops the others.
    parts: [S::F32; MOST_PARTS],
}

/// For vectors of four.
const MOST_PARTS: usize = 4;

impl<S: Simd> LaneSums<S> {
    /// Vectors that make up [`SUM_LANES`].
    pub(crate) const PARTS: usize = {
        let parts = SUM_LANES / S::LANES;
        assert!(parts * S::LANES == SUM_LANES && parts <= MOST_PARTS);
        parts
    };

    #[inline(always)]
    pub(crate) fn zero(simd: S) -> Self {
        Self { parts: [simd.splat(0.0); MOST_PARTS] }
    }

    /// Adds the elements of vector number `vector` of a row.
    #[inline(always)]
    pub(crate) fn add_vector(&mut self, simd: S, vector: usize, value: S::F32) {
        let part = &mut self.parts[vector % Self::PARTS];
        *part = simd.add(*part, value);
    }

    /// Lane by lane.
    #[inline(always)]
    pub(crate) fn plus(mut self, simd: S, other: Self) -> Self {
        for (vector, &value) in other.parts[..Self::PARTS].iter().enumerate() {
            self.add_vector(simd, vector, value);
        }
        self
    }

    /// The sum of all lanes, by the tree of [`Simd::reduce_sum`] over [`SUM_LANES`].
    #[inline(always)]
    pub(crate) fn total(self, simd: S) -> f32 {
        let mut parts = self.parts;
        let mut half = Self::PARTS / 2;
        while half > 0 {
            for part in 0..half {
                parts[part] = simd.add(parts[part], parts[part + half]);
            }
            half /= 2;
        }
        simd.reduce_sum(parts[0])
    }
}

/// Sums of terms over slices of one length.
///
/// Order, the same on every instruction set: in groups of [`SUM_LANES`] elements, group i is added to accumulator i mod 4
/// lane by lane, the four accumulators are added as (0+1)+(2+3), and the lanes are then added by `reduce_sum`'s tree.
#[inline(always)]
pub(crate) fn sums<S: Simd, T: Terms<IN, SUMS>, const IN: usize, const SUMS: usize>(
    simd: S,
    terms: &T,
    inputs: [&[f32]; IN],
) -> [f32; SUMS] {
    let length = inputs[0].len();
    assert_equal_lengths(&inputs, length);
    let reads = inputs.map(<[f32]>::as_ptr);
    let mut accumulators = [[LaneSums::zero(simd); SUMS]; 4];
    let mut start = 0;
    while start + 4 * SUM_LANES <= length {
        for (phase, accumulator) in accumulators.iter_mut().enumerate() {
            for part in 0..LaneSums::<S>::PARTS {
                let offset = start + phase * SUM_LANES + part * S::LANES;
                // SAFETY: all slices have `length` elements and offset + LANES <= start + 4 · SUM_LANES <= length.
                let values = unsafe { load_each(simd, &reads, offset) };
                let values = terms.terms(simd, values);
                for (sum, &value) in accumulator.iter_mut().zip(&values) {
                    sum.add_vector(simd, part, value);
                }
            }
        }
        start += 4 * SUM_LANES;
    }
    for accumulator in &mut accumulators {
        // Lanes beyond the end get nothing. (A sum that started from +0 is never -0, so adding 0 to one changes nothing.)
        for part in 0..LaneSums::<S>::PARTS {
            let rest = (length - start).min(S::LANES);
            if rest == 0 {
                break;
            }
            // SAFETY: `rest <= LANES` elements remain in every slice.
            let values = unsafe { load_first_of_each(simd, &reads, start, rest) };
            let values = terms.terms(simd, values);
            for (sum, &value) in accumulator.iter_mut().zip(&values) {
                sum.add_vector(simd, part, simd.select_first(rest, value, simd.splat(0.0)));
            }
            start += rest;
        }
    }
    let [a, b, c, d] = accumulators;
    let mut totals = [0.0; SUMS];
    for (i, total) in totals.iter_mut().enumerate() {
        *total = a[i].plus(simd, b[i]).plus(simd, c[i].plus(simd, d[i])).total(simd);
    }
    totals
}

/// A whole vector from every address plus an offset.
///
/// # Safety
/// `LANES` floats must be readable there.
#[inline(always)]
unsafe fn load_each<S: Simd, const N: usize>(simd: S, addresses: &[*const f32; N], offset: usize) -> [S::F32; N] {
    let mut values = [simd.splat(0.0); N];
    for (value, address) in values.iter_mut().zip(addresses) {
        // SAFETY: passed on from the caller.
        *value = unsafe { simd.load_ptr(address.add(offset)) };
    }
    values
}

/// The first `count` lanes from every address plus an offset, the others zero.
///
/// # Safety
/// `count <= LANES` floats must be readable there.
#[inline(always)]
unsafe fn load_first_of_each<S: Simd, const N: usize>(
    simd: S,
    addresses: &[*const f32; N],
    offset: usize,
    count: usize,
) -> [S::F32; N] {
    let mut values = [simd.splat(0.0); N];
    for (value, address) in values.iter_mut().zip(addresses) {
        // SAFETY: passed on from the caller.
        *value = unsafe { simd.load_first_ptr(address.add(offset), count) };
    }
    values
}

#[inline(always)]
fn assert_equal_lengths<const N: usize>(slices: &[&[f32]; N], length: usize) {
    for slice in slices {
        assert!(slice.len() == length, "slices of {} and {length} elements", slice.len());
    }
}
