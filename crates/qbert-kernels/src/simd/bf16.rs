//! bf16 without instructions for it, from what every set has. It defines what the instructions of AVX512-BF16 compute, to
//! the last bit.
//!
//! A bf16 is the upper half of an f32. Two of them share a 32-bit lane, where an f32 would stand: the one that comes first
//! is in the lower half.

use super::lanes::{lanes, vector};
use super::{Kernel, MAX_LANES, Simd};

/// Rounds to nearest, ties to even; subnormal numbers become zeros, and a NaN stays one.
#[inline(always)]
fn rounded(bits: u32) -> u32 {
    const EXPONENT: u32 = 0x7f80_0000;
    let up = 0x7fff + (bits >> 16 & 1);
    let (subnormal, nan) = (bits & EXPONENT == 0, bits & !(1 << 31) > EXPONENT);
    let quiet = bits >> 16 | 0x40;
    if nan {
        quiet
    } else if subnormal {
        bits >> 16 & 0x8000
    } else {
        bits.wrapping_add(up) >> 16
    }
}

/// [`Simd::bf16_rounded`].
#[inline(always)]
pub(super) fn each_rounded<S: Simd>(simd: S, numbers: S::F32) -> S::F32 {
    let numbers = lanes(simd, numbers);
    vector(simd, |lane| rounded(numbers[lane]) << 16)
}

/// [`Simd::bf16_joined`].
#[inline(always)]
pub(super) fn joined<S: Simd>(simd: S, low: S::F32, high: S::F32) -> S::F32 {
    let (low, high) = (lanes(simd, low), lanes(simd, high));
    vector(simd, |lane| low[lane] >> 16 | high[lane])
}

/// [`Simd::separated`].
#[inline(always)]
pub(super) fn separated<S: Simd>(simd: S, first: S::F32, second: S::F32) -> (S::F32, S::F32) {
    let (first, second) = (lanes(simd, first), lanes(simd, second));
    let number = |index: usize| if index < S::LANES { first[index] } else { second[index - S::LANES] };
    (vector(simd, |lane| number(2 * lane)), vector(simd, |lane| number(2 * lane + 1)))
}

/// [`Simd::bf16_halves`].
#[inline(always)]
pub(super) fn halves<S: Simd>(simd: S, pairs: S::F32) -> (S::F32, S::F32) {
    let pairs = lanes(simd, pairs);
    (vector(simd, |lane| pairs[lane] & 0xffff_0000), vector(simd, |lane| pairs[lane] << 16))
}

/// [`Simd::bf16_add_products`].
#[inline(always)]
pub(super) fn add_products<S: Simd>(simd: S, a: S::F32, b: S::F32, sums: S::F32) -> S::F32 {
    let [a, b, sums] = [lanes(simd, a), lanes(simd, b), lanes(simd, sums)];
    let found = simd.vectorize_apart(AddProducts { a, b, sums });
    vector(simd, |lane| found[lane])
}

/// The products of one vector, as a function of its own: a micro-kernel has many places that call it, and its speed does
/// not matter, since it runs only where a sum may become subnormal (`gemm/emulated.rs`).
struct AddProducts {
    a: [u32; MAX_LANES],
    b: [u32; MAX_LANES],
    sums: [u32; MAX_LANES],
}

impl Kernel for AddProducts {
    type Output = [u32; MAX_LANES];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let Self { a, b, sums } = self;
        let (high_a, high_b) = (vector(simd, |lane| a[lane] & 0xffff_0000), vector(simd, |lane| b[lane] & 0xffff_0000));
        let (low_a, low_b) = (vector(simd, |lane| a[lane] << 16), vector(simd, |lane| b[lane] << 16));
        let upper = without_subnormals(simd, simd.mul_add(high_a, high_b, vector(simd, |lane| sums[lane])));
        lanes(simd, without_subnormals(simd, simd.mul_add(low_a, low_b, upper)))
    }
}

/// Subnormal numbers become zeros of their sign.
#[inline(always)]
fn without_subnormals<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let zero = simd.mul(x, simd.splat(0.0));
    simd.select_less(simd.abs(x), simd.splat(f32::MIN_POSITIVE), zero, x)
}
