//! Vector exponential, normal distribution and hyperbolic tangent: the functions behind softmax,
//! GELU and the pooler.
//!
//! The polynomial coefficients were fitted for this crate (Chebyshev fits in 40-digit arithmetic);
//! the accuracy of each kernel built on them is stated and tested where the kernel lives.

use super::Simd;

/// Below this the result of [`exp`] would not be a normal number, and is 0.
pub(crate) const EXP_LOWEST: f32 = -87.336_54;
const EXP_HIGHEST: f32 = 88.3;
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// `(e^r - 1 - r) / r²` for |r| <= ln 2 / 2, highest power first; relative error of e^r 1e-8.
const EXP_POLYNOMIAL: [f32; 5] = [0.001_392_617_6, 0.008_363_173, 0.041_666_555, 0.166_665_77, 0.5];

#[inline(always)]
fn polynomial<S: Simd, const N: usize>(simd: S, x: S::F32, coefficients: [f32; N]) -> S::F32 {
    let mut value = simd.splat(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        value = simd.mul_add(value, x, simd.splat(coefficient));
    }
    value
}

/// `e^x`, 0 below [`EXP_LOWEST`] (also for -∞), capped at `e^88.3`; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let lowest = simd.splat(EXP_LOWEST);
    // The clamped value is the second operand, which is the one kept for NaN.
    let clamped = simd.max(lowest, simd.min(simd.splat(EXP_HIGHEST), x));
    let n = simd.round(simd.mul(clamped, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.neg_mul_add(n, simd.splat(LN_2_HIGH), clamped);
    let r = simd.neg_mul_add(n, simd.splat(LN_2_LOW), r);
    let tail = polynomial(simd, r, EXP_POLYNOMIAL);
    let mantissa = simd.add(simd.mul_add(simd.mul(r, r), tail, r), simd.splat(1.0));
    let value = simd.mul(mantissa, simd.exp2_integer(n));
    simd.select_less(x, lowest, simd.splat(0.0), value)
}

/// From here on the density is 0 in [`exp`] and the distribution function 0 or 1.
const NORMAL_LIMIT: f32 = 14.0;
const NORMAL_STRETCH: f32 = 0.35;
/// `Φ(-t) · e^{t²/2} / u` with `u = 1 / (1 + 0.35 t)` for t in 0..=14; relative error 4e-8.
const NORMAL_POLYNOMIAL: [f32; 9] = [
    -0.029_679_522,
    0.146_545_83,
    -0.260_961_23,
    0.165_051,
    -0.027_046_608,
    0.107_114_59,
    0.119_444_92,
    0.139_912_3,
    0.139_618_71,
];
const INVERSE_SQRT_2_PI: f32 = 0.398_942_3;

/// The standard normal distribution at one vector of points.
pub(crate) struct Normal<V> {
    /// Φ(x)
    pub(crate) cumulative: V,
    /// φ(x)
    pub(crate) density: V,
    /// min(|x|, 14)²
    pub(crate) square: V,
}

/// Φ(x) and φ(x) from one exponential. The lower tail keeps its relative accuracy.
#[inline(always)]
pub(crate) fn normal<S: Simd>(simd: S, x: S::F32) -> Normal<S::F32> {
    let one = simd.splat(1.0);
    let t = simd.min(simd.splat(NORMAL_LIMIT), simd.abs(x));
    let square = simd.mul(t, t);
    let bell = exp(simd, simd.mul(square, simd.splat(-0.5)));
    let u = simd.div(one, simd.mul_add(t, simd.splat(NORMAL_STRETCH), one));
    let ratio = simd.mul(u, polynomial(simd, u, NORMAL_POLYNOMIAL));
    let tail = simd.mul(bell, ratio);
    let cumulative = simd.select_less(x, simd.splat(0.0), tail, simd.sub(one, tail));
    Normal { cumulative, density: simd.mul(bell, simd.splat(INVERSE_SQRT_2_PI)), square }
}

const TANH_SMALL: f32 = 0.625;
/// `(tanh(x)/x - 1) / x²` in powers of x² for |x| <= 0.625; relative error of tanh 2e-8.
const TANH_POLYNOMIAL: [f32; 5] = [-0.006_096_714, 0.020_997_18, -0.053_850_91, 0.133_327_7, -0.333_333_3];

/// `tanh(x)` with a small relative error everywhere (a polynomial near 0, where `1 - e^{-2x}`
/// would cancel).
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let one = simd.splat(1.0);
    let t = simd.abs(x);
    let square = simd.mul(x, x);
    let small = simd.mul_add(simd.mul(x, square), polynomial(simd, square, TANH_POLYNOMIAL), x);
    let e = exp(simd, simd.mul(t, simd.splat(-2.0)));
    let large = simd.div(simd.sub(one, e), simd.add(one, e));
    let large = simd.select_less(x, simd.splat(0.0), simd.sub(simd.splat(0.0), large), large);
    simd.select_less(t, simd.splat(TANH_SMALL), small, large)
}
