//! Softmax from integer scores to probability codes, row by row.
//!
//! The arithmetic and the order of the sum are those of [`crate::Kernels::softmax`] (scores below 2^24 are exact in f32),
//! so probabilities have the same bits; a code is `round_half_even(255 · p)`.

use crate::simd::loops::LaneSums;
use crate::simd::math::exp2_of_each;
use crate::simd::{Kernel, Simd};
use crate::softmax::binary_scale;

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
}

impl Kernel for SoftmaxRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { scores, scores_row, count, scale, codes, codes_row, sums } = self;
        let padded = count.next_multiple_of(S::LANES);
        assert!(count > 0 && padded <= scores_row && padded <= codes_row);
        let rows = scores.chunks_exact_mut(scores_row).zip(codes.chunks_exact_mut(codes_row));
        for ((scores, codes), sum) in rows.zip(sums) {
            scores[count..padded].fill(i32::MIN);
            let max = row_max(simd, &scores[..padded]);
            let total = exponentials(simd, &mut scores[..padded], count, max, scale);
            *sum = to_codes(simd, &scores[..padded], 1.0 / total, &mut codes[..padded]);
        }
    }
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

/// Replaces the scores by the bits of `e^(scale·(score - max))`, 0 from `count` on; returns the sum. What training
/// flushes to 0 is `2^-126` here, too little to change the sum, or a code.
#[inline(always)]
fn exponentials<S: Simd>(simd: S, scores: &mut [i32], count: usize, max: i32, scale: f32) -> f32 {
    let (max, scale) = (simd.splat_u32(max.cast_unsigned()), simd.splat(binary_scale(scale)));
    let mut total = LaneSums::zero(simd);
    let exponent = |part: &[i32]| {
        // SAFETY: a whole vector is there.
        let score = unsafe { simd.load_i32_ptr(part.as_ptr()) };
        simd.mul(simd.to_f32(simd.sub_i32(score, max)), scale)
    };
    let whole = count / (TOGETHER * S::LANES) * (TOGETHER * S::LANES);
    let (several, rest) = scores.split_at_mut(whole);
    for several in several.chunks_exact_mut(TOGETHER * S::LANES) {
        let mut values = [simd.splat(0.0); TOGETHER];
        for (value, part) in values.iter_mut().zip(several.chunks_exact(S::LANES)) {
            *value = exponent(part);
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
        let [value] = exp2_of_each(simd, [exponent(part)]);
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
