//! The two loops that nearly every vector kernel consists of: a function of each element, and sums over elements.

use super::{Kernel, Simd};

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
        let mut start = 0;
        while start + S::LANES <= length {
            // SAFETY: all slices have `length` elements and start + LANES <= length.
            unsafe {
                let inputs = reads.map(|pointer| simd.load_ptr(pointer.add(start)));
                let current = writes.map(|pointer| simd.load_ptr(pointer.add(start)));
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
                let inputs = reads.map(|pointer| simd.load_first_ptr(pointer.add(start), rest));
                let current = writes.map(|pointer| simd.load_first_ptr(pointer.add(start), rest));
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

/// Sums of terms over slices of one length.
///
/// Order: vector i is added to accumulator i mod 4, the four accumulators are added as (0+1)+(2+3), and the lanes are
/// then added by `reduce_sum`'s tree.
#[inline(always)]
pub(crate) fn sums<S: Simd, T: Terms<IN, SUMS>, const IN: usize, const SUMS: usize>(
    simd: S,
    terms: &T,
    inputs: [&[f32]; IN],
) -> [f32; SUMS] {
    let length = inputs[0].len();
    assert_equal_lengths(&inputs, length);
    let reads = inputs.map(<[f32]>::as_ptr);
    let mut accumulators = [[simd.splat(0.0); SUMS]; 4];
    let mut start = 0;
    while start + 4 * S::LANES <= length {
        for (phase, accumulator) in accumulators.iter_mut().enumerate() {
            let offset = start + phase * S::LANES;
            // SAFETY: all slices have `length` elements and offset + LANES <= length.
            let values = reads.map(|pointer| unsafe { simd.load_ptr(pointer.add(offset)) });
            let values = terms.terms(simd, values);
            for (sum, value) in accumulator.iter_mut().zip(values) {
                *sum = simd.add(*sum, value);
            }
        }
        start += 4 * S::LANES;
    }
    for accumulator in &mut accumulators {
        let rest = (length - start).min(S::LANES);
        if rest == 0 {
            break;
        }
        // SAFETY: `rest <= LANES` elements remain in every slice.
        let values = reads.map(|pointer| unsafe { simd.load_first_ptr(pointer.add(start), rest) });
        let values = terms.terms(simd, values);
        for (sum, value) in accumulator.iter_mut().zip(values) {
            *sum = simd.add(*sum, simd.select_first(rest, value, simd.splat(0.0)));
        }
        start += rest;
    }
    std::array::from_fn(|i| {
        let [a, b, c, d] = &accumulators;
        simd.reduce_sum(simd.add(simd.add(a[i], b[i]), simd.add(c[i], d[i])))
    })
}

#[inline(always)]
fn assert_equal_lengths<const N: usize>(slices: &[&[f32]; N], length: usize) {
    for slice in slices {
        assert!(slice.len() == length, "slices of {} and {length} elements", slice.len());
    }
}
