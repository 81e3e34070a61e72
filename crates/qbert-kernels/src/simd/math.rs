//! Vector exponential, normal distribution, hyperbolic tangent and gates: the functions behind softmax,
//! the activations and the pooler.
//!
//! The polynomial coefficients were fitted for this crate (Chebyshev fits in 40-digit arithmetic);
//! the accuracy of each kernel built on them is stated and tested where the kernel lives.

use super::Simd;
use super::lanes::{lanes, vector};

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
    let (lowest, highest) = (simd.splat(EXP_LOWEST), simd.splat(EXP_HIGHEST));
    // The clamped value is the second operand, which is the one kept for NaN.
    let clamped = simd.max(lowest, simd.min(highest, x));
    let n = simd.round(simd.mul(clamped, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.neg_mul_add(n, simd.splat(LN_2_HIGH), clamped);
    let r = simd.neg_mul_add(n, simd.splat(LN_2_LOW), r);
    let [tail] = polynomial(simd, [r], EXP_POLYNOMIAL);
    let mantissa = simd.add(simd.mul_add(simd.mul(r, r), tail, r), simd.splat(1.0));
    simd.select_less(x, lowest, simd.splat(0.0), simd.mul_exp2_integer(mantissa, n))
}

/// `(atanh(r) / r - 1) / r²` as a polynomial of `r²` for |r| <= 0.1716, highest power first: the Taylor series, whose next
/// term is below 2e-9.
const ATANH_POLYNOMIAL: [f32; 4] = [1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0];

/// The natural logarithm of positive normal numbers, NaN for NaN and infinity; the absolute error is below
/// 1e-7·max(1, |ln x|).
#[inline(always)]
pub(crate) fn ln<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    // x = m·2^e with m from √½ to √2. The offset of the bits moves the limit between two exponents there.
    const OFFSET: u32 = 0x3f80_0000 - 0x3f35_04f3;
    let bits = lanes(simd, x);
    let exponent = |lane: usize| (bits[lane].wrapping_add(OFFSET) >> 23).cast_signed() - 127;
    let e = vector(simd, |lane| (exponent(lane) as f32).to_bits());
    let m = vector(simd, |lane| bits[lane].wrapping_sub((exponent(lane) << 23).cast_unsigned()));
    // ln m = 2·atanh((m - 1) / (m + 1))
    let r = simd.div(simd.sub(m, simd.splat(1.0)), simd.add(m, simd.splat(1.0)));
    let square = simd.mul(r, r);
    let [tail] = polynomial(simd, [square], ATANH_POLYNOMIAL);
    let twice = simd.add(r, r);
    let of_mantissa = simd.mul_add(simd.mul(twice, square), tail, twice);
    // The difference is 0, or NaN where there is no logarithm.
    simd.mul_add(e, simd.splat(std::f32::consts::LN_2), simd.add(of_mantissa, simd.sub(x, x)))
}

/// Below this `2^x` is not a normal number.
pub(crate) const EXP2_LOWEST: f32 = -126.0;
/// `2^x` for |x| <= 1/2, highest power first; relative error 9e-8.
#[expect(clippy::approx_constant, reason = "a fitted coefficient beside ln 2, not ln 2")]
const EXP2_POLYNOMIAL: [f32; 6] = [0.001_326_471_5, 0.009_671_514, 0.055_507_34, 0.240_222_42, 0.693_147, 1.0];

/// `2^x` of several vectors at once, for `x` up to 127; `2^-126` below [`EXP2_LOWEST`]; NaN stays NaN. What softmax needs
/// of an exponential: half the operations of [`exp`], since the change of base is part of softmax's scale.
#[inline(always)]
pub(crate) fn exp2_of_each<S: Simd, const N: usize>(simd: S, x: [S::F32; N]) -> [S::F32; N] {
    // The clamped value is the second operand, which is the one kept for NaN.
    let clamped = each!(simd, i => simd.max(simd.splat(EXP2_LOWEST), x[i]));
    let n = each!(simd, i => simd.round(clamped[i]));
    let rest = each!(simd, i => simd.sub(clamped[i], n[i]));
    let mantissa = polynomial(simd, rest, EXP2_POLYNOMIAL);
    each!(simd, i => simd.mul_exp2_integer(mantissa[i], n[i]))
}

/// Beyond this `Φ(x)` is 0 or 1 in f32.
const NORMAL_LIMIT: f32 = 5.34;
/// From here on [`exp`] gives 0 for the density.
const DENSITY_LIMIT: f32 = 14.0;
/// `2 / 5.34²`
const NORMAL_STRETCH: f32 = 0.070_137_05;
/// `(Φ(x) - 1/2) / x` for `|x| <= 5.34` in powers of `2·(x/5.34)² - 1`, highest first; error of Φ 2.3e-8. Rounded to
/// f32, Φ is exactly 1 at the limit.
const NORMAL_POLYNOMIAL: [f32; 15] = [
    0.000_323_539_05,
    -0.000_861_909_94,
    0.000_788_125_5,
    -0.001_136_405_7,
    0.003_338_192_6,
    -0.006_185_328,
    0.009_157_401_5,
    -0.013_503_992,
    0.019_222_517,
    -0.025_487_747,
    0.032_103_512,
    -0.039_441_083,
    0.048_958_372,
    -0.066_038_13,
    0.132_395_9,
];
const INVERSE_SQRT_2_PI: f32 = 0.398_942_3;

/// The standard normal distribution at one vector of points.
pub(crate) struct Normal<V> {
    /// `x · Φ(x)`, which is GELU
    pub(crate) gelu: V,
    /// Φ(x)
    pub(crate) cumulative: V,
    /// φ(x)
    pub(crate) density: V,
    /// min(|x|, 14)²
    pub(crate) square: V,
}

/// Φ(x), φ(x) and GELU.
#[inline(always)]
pub(crate) fn normal<S: Simd>(simd: S, x: S::F32) -> Normal<S::F32> {
    let [[gelu], [cumulative]] = gelu_and_cumulative(simd, [x]);
    let t = simd.min(simd.splat(DENSITY_LIMIT), simd.abs(x));
    let square = simd.mul(t, t);
    let bell = exp(simd, simd.mul(square, simd.splat(-0.5)));
    Normal { gelu, cumulative, density: simd.mul(bell, simd.splat(INVERSE_SQRT_2_PI)), square }
}

/// GELU of several vectors at once, to the same bits as [`normal`].
#[inline(always)]
pub(crate) fn gelu_of_each<S: Simd, const N: usize>(simd: S, x: [S::F32; N]) -> [S::F32; N] {
    let [gelu, _] = gelu_and_cumulative(simd, x);
    gelu
}

/// `x · Φ(x)` and `Φ(x)`. One polynomial without an exponential or a division: between the integer products of a
/// feed-forward layer nothing takes longer.
#[inline(always)]
fn gelu_and_cumulative<S: Simd, const N: usize>(simd: S, x: [S::F32; N]) -> [[S::F32; N]; 2] {
    // The clamped value is the second operand, which is the one kept for NaN.
    let from_below = each!(simd, i => simd.max(simd.splat(-NORMAL_LIMIT), x[i]));
    let clamped = each!(simd, i => simd.min(simd.splat(NORMAL_LIMIT), from_below[i]));
    let square = each!(simd, i => simd.mul(clamped[i], clamped[i]));
    let place = each!(simd, i => simd.mul_add(square[i], simd.splat(NORMAL_STRETCH), simd.splat(-1.0)));
    let ratio = polynomial(simd, place, NORMAL_POLYNOMIAL);
    let cumulative = each!(simd, i => simd.mul_add(clamped[i], ratio[i], simd.splat(0.5)));
    // Not `x` itself: what is left of Φ at the limit would grow with it.
    [each!(simd, i => simd.mul(from_below[i], cumulative[i])), cumulative]
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

/// A function `x·σ(g(x))`, with σ the logistic function: what makes it differ from another is `g`.
pub(crate) trait Gate {
    /// Outside of `±LIMIT` σ is 0 or 1, and `g` is not computed.
    const LIMIT: f32;

    /// `g(x)`
    fn argument<S: Simd>(simd: S, x: S::F32) -> S::F32;

    /// `g'(x)` and `g''(x)`
    fn derivatives<S: Simd>(simd: S, x: S::F32) -> [S::F32; 2];
}

/// `g(x) = x`: SiLU.
pub(crate) struct Linear;

impl Gate for Linear {
    const LIMIT: f32 = 80.0;

    #[inline(always)]
    fn argument<S: Simd>(_: S, x: S::F32) -> S::F32 {
        x
    }

    #[inline(always)]
    fn derivatives<S: Simd>(simd: S, _: S::F32) -> [S::F32; 2] {
        [simd.splat(1.0), simd.splat(0.0)]
    }
}

/// `g(x) = √(8/π)·(x + 0.044715·x³)`: GELU's approximation by tanh, because `(1 + tanh u)/2` is `σ(2u)`.
pub(crate) struct Cubic;

const CUBIC_FIRST: f32 = 1.595_769_2;
const CUBIC_THIRD: f32 = 0.071_354_814;

impl Gate for Cubic {
    const LIMIT: f32 = 9.0;

    #[inline(always)]
    fn argument<S: Simd>(simd: S, x: S::F32) -> S::F32 {
        simd.mul(x, simd.mul_add(simd.mul(x, x), simd.splat(CUBIC_THIRD), simd.splat(CUBIC_FIRST)))
    }

    #[inline(always)]
    fn derivatives<S: Simd>(simd: S, x: S::F32) -> [S::F32; 2] {
        let first = simd.mul_add(simd.mul(x, x), simd.splat(3.0 * CUBIC_THIRD), simd.splat(CUBIC_FIRST));
        [first, simd.mul(x, simd.splat(6.0 * CUBIC_THIRD))]
    }
}

/// A gate at one vector of points.
pub(crate) struct Gated<V> {
    /// `x·σ`
    pub(crate) value: V,
    /// Its first derivative.
    pub(crate) slope: V,
    /// Its second derivative.
    pub(crate) curvature: V,
}

/// A gate's value and derivatives.
#[inline(always)]
pub(crate) fn gated<S: Simd, G: Gate>(simd: S, x: S::F32) -> Gated<S::F32> {
    let Gates { values: [value], clamped: [clamped], powers: [power], sigmas: [sigma] } = gates::<S, G, 1>(simd, [x]);
    let [first, second] = G::derivatives(simd, clamped);
    // 1 − σ = e^−g·σ: the difference itself would lose its digits where σ is close to 1.
    let falling = simd.mul(sigma, simd.mul(power, sigma));
    let slope = simd.mul_add(simd.mul(clamped, first), falling, sigma);
    let bend = simd.mul(simd.mul(first, first), simd.neg_mul_add(simd.splat(2.0), sigma, simd.splat(1.0)));
    let inner = simd.mul_add(clamped, simd.add(second, bend), simd.add(first, first));
    Gated { value, slope, curvature: simd.mul(falling, inner) }
}

/// A gate's value for several vectors at once, to the same bits as [`gated`].
#[inline(always)]
pub(crate) fn gated_of_each<S: Simd, G: Gate, const N: usize>(simd: S, x: [S::F32; N]) -> [S::F32; N] {
    gates::<S, G, N>(simd, x).values
}

/// What a gate's value and derivatives are made from.
struct Gates<V, const N: usize> {
    /// `x·σ`
    values: [V; N],
    /// `x` within the limits.
    clamped: [V; N],
    /// `e^−g`
    powers: [V; N],
    /// `σ = 1 / (1 + e^−g)`
    sigmas: [V; N],
}

#[inline(always)]
fn gates<S: Simd, G: Gate, const N: usize>(simd: S, x: [S::F32; N]) -> Gates<S::F32, N> {
    // The clamped value is the second operand, which is the one kept for NaN.
    let from_below = each!(simd, i => simd.max(simd.splat(-G::LIMIT), x[i]));
    let clamped = each!(simd, i => simd.min(simd.splat(G::LIMIT), from_below[i]));
    let powers = each!(simd, i => exp(simd, simd.sub(simd.splat(0.0), G::argument(simd, clamped[i]))));
    let sigmas = each!(simd, i => simd.div(simd.splat(1.0), simd.add(simd.splat(1.0), powers[i])));
    // Not `x` itself: what is left of σ at the limit would grow with it.
    Gates { values: each!(simd, i => simd.mul(from_below[i], sigmas[i])), clamped, powers, sigmas }
}

/// `max(x, 0)` of several vectors; NaN stays NaN.
#[inline(always)]
pub(crate) fn relu_of_each<S: Simd, const N: usize>(simd: S, x: [S::F32; N]) -> [S::F32; N] {
    each!(simd, i => simd.max(simd.splat(0.0), x[i]))
}
