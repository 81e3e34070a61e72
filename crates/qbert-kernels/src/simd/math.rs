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

/// `[value(0), …, value(N - 1)]`: one operation on several independent vectors. One chain of dependent operations leaves
/// most of the CPU idle; this way `N` chains advance together.
macro_rules! each {
    ($simd:ident, $i:ident => $value:expr) => {{
        let mut out = [$simd.splat(0.0); N];
        let mut $i = 0;
        while $i < N {
            out[$i] = $value;
            $i += 1;
        }
        out
    }};
}

#[inline(always)]
fn polynomial<S: Simd, const TERMS: usize, const N: usize>(
    simd: S,
    x: [S::F32; N],
    coefficients: [f32; TERMS],
) -> [S::F32; N] {
    let mut value = [simd.splat(coefficients[0]); N];
    for &coefficient in &coefficients[1..] {
        value = each!(simd, i => simd.mul_add(value[i], x[i], simd.splat(coefficient)));
    }
    value
}

/// `e^x`, 0 below [`EXP_LOWEST`] (also for -∞), capped at `e^88.3`; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let [value] = exp_of_each(simd, [x]);
    value
}

/// [`exp`] of several vectors at once, to the same bits.
#[inline(always)]
pub(crate) fn exp_of_each<S: Simd, const N: usize>(simd: S, x: [S::F32; N]) -> [S::F32; N] {
    let (lowest, highest) = (simd.splat(EXP_LOWEST), simd.splat(EXP_HIGHEST));
    // The clamped value is the second operand, which is the one kept for NaN.
    let clamped = each!(simd, i => simd.max(lowest, simd.min(highest, x[i])));
    let n = each!(simd, i => simd.round(simd.mul(clamped[i], simd.splat(std::f32::consts::LOG2_E))));
    let r = each!(simd, i => simd.neg_mul_add(n[i], simd.splat(LN_2_HIGH), clamped[i]));
    let r = each!(simd, i => simd.neg_mul_add(n[i], simd.splat(LN_2_LOW), r[i]));
    let tail = polynomial(simd, r, EXP_POLYNOMIAL);
    let mantissa = each!(simd, i => simd.add(simd.mul_add(simd.mul(r[i], r[i]), tail[i], r[i]), simd.splat(1.0)));
    let value = each!(simd, i => simd.mul(mantissa[i], simd.exp2_integer(n[i])));
    each!(simd, i => simd.select_less(x[i], lowest, simd.splat(0.0), value[i]))
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
    let [[cumulative], [bell], [square]] = normal_of_each(simd, [x]);
    Normal { cumulative, density: simd.mul(bell, simd.splat(INVERSE_SQRT_2_PI)), square }
}

/// GELU of several vectors at once, to the same bits as `x · normal(x).cumulative`.
#[inline(always)]
pub(crate) fn gelu_of_each<S: Simd, const N: usize>(simd: S, x: [S::F32; N]) -> [S::F32; N] {
    let [cumulative, _, _] = normal_of_each(simd, x);
    each!(simd, i => simd.mul(x[i], cumulative[i]))
}

/// Φ(x), `e^{-t²/2}` and `t²` with `t = min(|x|, 14)`.
#[inline(always)]
fn normal_of_each<S: Simd, const N: usize>(simd: S, x: [S::F32; N]) -> [[S::F32; N]; 3] {
    let one = simd.splat(1.0);
    let t = each!(simd, i => simd.min(simd.splat(NORMAL_LIMIT), simd.abs(x[i])));
    let square = each!(simd, i => simd.mul(t[i], t[i]));
    let bell = exp_of_each(simd, each!(simd, i => simd.mul(square[i], simd.splat(-0.5))));
    let u = each!(simd, i => simd.div(one, simd.mul_add(t[i], simd.splat(NORMAL_STRETCH), one)));
    let ratio = polynomial(simd, u, NORMAL_POLYNOMIAL);
    let tail = each!(simd, i => simd.mul(bell[i], simd.mul(u[i], ratio[i])));
    let cumulative = each!(simd, i => simd.select_less(x[i], simd.splat(0.0), tail[i], simd.sub(one, tail[i])));
    [cumulative, bell, square]
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
    let small = simd.mul_add(simd.mul(x, square), polynomial(simd, [square], TANH_POLYNOMIAL)[0], x);
    let e = exp(simd, simd.mul(t, simd.splat(-2.0)));
    let large = simd.div(simd.sub(one, e), simd.add(one, e));
    let large = simd.select_less(x, simd.splat(0.0), simd.sub(simd.splat(0.0), large), large);
    simd.select_less(t, simd.splat(TANH_SMALL), small, large)
}
