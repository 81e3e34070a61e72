//! Softmax from integer scores to probability codes, row by row.
//!
//! The arithmetic and the order of the sum are those of [`crate::Kernels::softmax`] (scores below 2^24 are exact in f32),
//! so probabilities have the same bits; a code is `round_half_even(255 · p)`.

use crate::simd::loops::LaneSums;
use crate::simd::math::exp2_of_each;
use crate::simd::{Kernel, SUM_LANES, Simd};
use crate::softmax::{BiasRows, binary_scale};
use crate::window::Window;
use std::ops::Range;

/// Vectors whose exponentials are computed at once: whole groups of the lanes of a sum.
const TOGETHER: usize = 4;

/// Turns rows of scores into codes.
pub(super) struct SoftmaxRows<'a> {
    /// Rows of integers, each padded to whole vectors; overwritten.
    pub(super) scores: &'a mut [i32],
    pub(super) scores_row: usize,
    /// Scores that count in every row.
    pub(super) count: usize,
    pub(super) scale: f32,
    /// Rows of codes minus 128, each padded to whole vectors.
    pub(super) codes: &'a mut [i8],
    pub(super) codes_row: usize,
    /// Out: the sum of each row's codes (without the 128).
    pub(super) sums: &'a mut [i32],
    /// What is added to the scaled scores.
    pub(super) bias: Option<BiasRows<'a>>,
    /// Which keys each query sees, and the number of the first row among the queries.
    pub(super) seen: Option<(&'a WindowRows, usize)>,
}

/// The queries of a tile, and the keys of which each sees some.
#[derive(Clone)]
pub(super) struct WindowRows {
    pub(super) window: Window,
    /// Counted in the sequence, from a whole number of sum lanes on.
    pub(super) keys: Range<usize>,
    /// The first query.
    pub(super) first: usize,
}

impl WindowRows {
    /// The keys that query number `index` sees, counted from the first key.
    #[inline]
    pub(super) fn of(&self, index: usize) -> Range<usize> {
        self.window.seen(self.first + index, &self.keys)
    }
}

impl Kernel for SoftmaxRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { scores, scores_row, count, scale, codes, codes_row, sums, bias, seen } = self;
        let padded = count.next_multiple_of(S::LANES);
        assert!(count > 0 && padded <= scores_row && padded <= codes_row);
        let scale = binary_scale(scale);
        let rows = scores.chunks_exact_mut(scores_row).zip(codes.chunks_exact_mut(codes_row));
        for (index, ((scores, codes), sum)) in rows.zip(sums).enumerate() {
            if let Some((rows, first)) = seen {
                *sum = window_row(simd, rows.of(first + index), scale, &mut scores[..padded], &mut codes[..padded]);
                continue;
            }
            scores[count..padded].fill(i32::MIN);
            let max = row_max(simd, &scores[..padded]);
            let total = match bias {
                None => exponentials(simd, &mut scores[..padded], count, Plain::new(simd, max, scale)),
                Some(BiasRows { bias, head, first }) => {
                    let row = bias.row(head, first + index, count);
                    let max = add_bias(simd, &mut scores[..padded], max, scale, row);
                    exponentials(simd, &mut scores[..padded], count, Biased { max: simd.splat(max) })
                }
            };
            *sum = to_codes(simd, &scores[..padded], 1.0 / total, &mut codes[..padded]);
        }
    }
}

/// A row that counts only some keys: from scores to codes, and the sum of the codes. Sums go over the lanes that the keys
/// have in the whole row.
#[inline(always)]
fn window_row<S: Simd>(simd: S, seen: Range<usize>, scale: f32, scores: &mut [i32], codes: &mut [i8]) -> i32 {
    let start = seen.start / SUM_LANES * SUM_LANES;
    let end = (seen.end.next_multiple_of(S::LANES)).min(scores.len());
    codes[..start].fill(-128);
    codes[end..].fill(-128);
    let (scores, codes) = (&mut scores[start..end], &mut codes[start..end]);
    let (front, count) = (seen.start - start, seen.end - start);
    scores[..front].fill(i32::MIN);
    scores[count..].fill(i32::MIN);
    let exponent = Plain::new(simd, row_max(simd, scores), scale);
    let (mut total, zero) = (LaneSums::zero(simd), simd.splat(0.0));
    for (index, part) in scores.chunks_exact_mut(S::LANES).enumerate() {
        // SAFETY: a whole vector is there.
        let [value] = exp2_of_each(simd, [unsafe { exponent.of(simd, part.as_ptr()) }]);
        let value = simd.select_first((count - index * S::LANES).min(S::LANES), value, zero);
        let value = simd.select_first(front.saturating_sub(index * S::LANES).min(S::LANES), zero, value);
        // SAFETY: as above; integers may hold any bits.
        unsafe { simd.store_ptr(part.as_mut_ptr().cast(), value) };
        total.add_vector(simd, index, value);
    }
    to_codes(simd, scores, 1.0 / total.total(simd), codes)
}

#[inline(always)]
fn row_max<S: Simd>(simd: S, scores: &[i32]) -> i32 {
    let lowest = simd.splat_u32(i32::MIN.cast_unsigned());
    let mut highest = [lowest; 2];
    for pair in scores.chunks(2 * S::LANES) {
        for (highest, part) in highest.iter_mut().zip(pair.chunks_exact(S::LANES)) {
            // SAFETY: a whole vector is there.
            *highest = simd.max_i32(*highest, unsafe { simd.load_i32_ptr(part.as_ptr()) });
        }
    }
    simd.reduce_max_i32(simd.max_i32(highest[0], highest[1]))
}

/// Turns a vector of what the row holds into exponents of 2.
trait Exponent<S: Simd>: Copy {
    /// # Safety
    /// `part` must begin a whole vector.
    unsafe fn of(self, simd: S, part: *const i32) -> S::F32;
}

/// The row holds scores: `scale·(score - max)`.
#[derive(Clone, Copy)]
struct Plain<S: Simd> {
    max: S::U32,
    scale: S::F32,
}

impl<S: Simd> Plain<S> {
    #[inline(always)]
    fn new(simd: S, max: i32, scale: f32) -> Self {
        Self { max: simd.splat_u32(max.cast_unsigned()), scale: simd.splat(scale) }
    }
}

impl<S: Simd> Exponent<S> for Plain<S> {
    #[inline(always)]
    unsafe fn of(self, simd: S, part: *const i32) -> S::F32 {
        // SAFETY: the caller's promise.
        let score = unsafe { simd.load_i32_ptr(part) };
        simd.mul(simd.to_f32(simd.sub_i32(score, self.max)), self.scale)
    }
}

/// The row holds the bits of scaled scores with their bias: `z - max`.
#[derive(Clone, Copy)]
struct Biased<S: Simd> {
    max: S::F32,
}

impl<S: Simd> Exponent<S> for Biased<S> {
    #[inline(always)]
    unsafe fn of(self, simd: S, part: *const i32) -> S::F32 {
        // SAFETY: the caller's promise.
        simd.sub(unsafe { simd.load_ptr(part.cast()) }, self.max)
    }
}

/// Replaces the scores by the bits of `z = scale·(score - max) + bias`, and returns the largest; -∞ beyond the bias's end.
#[inline(always)]
fn add_bias<S: Simd>(simd: S, scores: &mut [i32], max: i32, scale: f32, bias: &[f32]) -> f32 {
    let plain = Plain::new(simd, max, scale);
    let lowest = simd.splat(f32::NEG_INFINITY);
    let mut highest = lowest;
    for (part, bias) in scores.chunks_exact_mut(S::LANES).zip(bias.chunks(S::LANES)) {
        // SAFETY: a whole vector is there.
        let score = unsafe { simd.load_i32_ptr(part.as_ptr()) };
        let distance = simd.to_f32(simd.sub_i32(score, plain.max));
        let z = simd.mul_add(distance, plain.scale, simd.load_partial(bias));
        let z = simd.select_first(bias.len(), z, lowest);
        // SAFETY: as above; integers may hold any bits.
        unsafe { simd.store_ptr(part.as_mut_ptr().cast(), z) };
        highest = simd.max(highest, z);
    }
    simd.reduce_max(highest)
}

/// Replaces what the row holds by the bits of 2 to its exponents, 0 from `count` on; returns the sum. What training
/// flushes to 0 is `2^-126` here, too little to change the sum, or a code.
#[inline(always)]
fn exponentials<S: Simd>(simd: S, scores: &mut [i32], count: usize, exponent: impl Exponent<S>) -> f32 {
    let mut total = LaneSums::zero(simd);
    let whole = count / (TOGETHER * S::LANES) * (TOGETHER * S::LANES);
    let (several, rest) = scores.split_at_mut(whole);
    for several in several.chunks_exact_mut(TOGETHER * S::LANES) {
        let mut values = [simd.splat(0.0); TOGETHER];
        for (value, part) in values.iter_mut().zip(several.chunks_exact(S::LANES)) {
            // SAFETY: a whole vector is there.
            *value = unsafe { exponent.of(simd, part.as_ptr()) };
        }
        let values = exp2_of_each(simd, values);
        for (index, (&value, part)) in values.iter().zip(several.chunks_exact_mut(S::LANES)).enumerate() {
            // SAFETY: a whole vector is there; integers may hold any bits.
            unsafe { simd.store_ptr(part.as_mut_ptr().cast(), value) };
            total.add_vector(simd, index, value);
        }
    }
    for (index, part) in rest.chunks_exact_mut(S::LANES).enumerate() {
        let left = (count - whole - index * S::LANES).min(S::LANES);
        // SAFETY: a whole vector is there.
        let [value] = exp2_of_each(simd, [unsafe { exponent.of(simd, part.as_ptr()) }]);
        let value = simd.select_first(left, value, simd.splat(0.0));
        // SAFETY: as above.
        unsafe { simd.store_ptr(part.as_mut_ptr().cast(), value) };
        total.add_vector(simd, index, value);
    }
    total.total(simd)
}

/// `round(255 · share · e)` minus 128; returns the sum without the 128.
#[inline(always)]
fn to_codes<S: Simd>(simd: S, exponentials: &[i32], share: f32, codes: &mut [i8]) -> i32 {
    let (share, top) = (simd.splat(share), simd.splat(255.0));
    let half = simd.splat_u32(128);
    let mut sum = simd.splat_u32(0);
    for (values, codes) in exponentials.chunks_exact(S::LANES).zip(codes.chunks_exact_mut(S::LANES)) {
        // SAFETY: whole vectors are there; the values are the bits of floats.
        unsafe {
            let probability = simd.mul(share, simd.load_ptr(values.as_ptr().cast()));
            let code = simd.to_i32(simd.mul(probability, top));
            sum = simd.add_i32(sum, code);
            simd.store_i8_ptr(codes.as_mut_ptr(), simd.sub_i32(code, half));
        }
    }
    simd.reduce_add_i32(sum)
}
