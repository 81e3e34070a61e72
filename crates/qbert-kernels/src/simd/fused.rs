//! `a · b + c` rounded once, for the portable set.
//!
//! The other sets have an instruction for it, so the portable set must round once too, or the last bits of floats would
//! depend on the CPU. The standard library's `mul_add` is a slow library call where the compiler may not use that
//! instruction; what is here is plain arithmetic that the compiler turns into vectors.

/// `a · b + c`, rounded once.
#[inline(always)]
pub(super) fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    // Where the instruction is always there.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { in_f64(a, b, c) }
}

/// The same without the instruction.
///
/// The product of two f32 is exact in f64. Rounding the sum to f64 and then to f32 would round twice, and the first
/// rounding could make a tie of what is none. So the sum is rounded to odd instead: if it is inexact, it becomes the one
/// of its two neighbours in f64 whose last bit is 1. That is never a tie of f32, and lies on the same side of every tie
/// as the exact sum (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
#[inline(always)]
fn in_f64(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What the sum lacks, exactly (Knuth's TwoSum): nothing comes near the limits of f64. It is NaN if the sum is NaN or
    // infinite.
    let added = sum - product;
    let lacks = (product - (sum - added)) + (c - added);
    // Negative where the exact sum is nearer to zero. Both comparisons are false for NaN, which stays as it is.
    let side = lacks * sum;
    let (nearer, farther) = (side < 0.0, side > 0.0);
    let odd = (sum.to_bits() - u64::from(nearer)) | u64::from(nearer | farther);
    f64::from_bits(odd) as f32
}

#[cfg(test)]
mod tests {
    use super::in_f64;

    #[track_caller]
    fn check(a: f32, b: f32, c: f32) {
        let (found, expected) = (in_f64(a, b, c), a.mul_add(b, c));
        let equal = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
        assert!(equal, "{a:e} · {b:e} + {c:e} = {found:e} instead of {expected:e}");
    }

    #[test]
    fn edges() {
        let mut values = vec![0.0, 1.0, 1.5, 3.0, f32::INFINITY, f32::NAN, f32::MAX, f32::EPSILON, 0.1];
        values.extend([f32::MIN_POSITIVE, f32::from_bits(1), f32::from_bits(0x7f_ffff), 16_777_215.0, 8_388_609.0]);
        // Neighbours of powers of two, where the distance of neighbours changes.
        values.extend([1, 23, 24, 25, 60, 126, 127, 150, 200, 253].map(|exponent| f32::from_bits(exponent << 23)));
        values.extend([1, 64, 127, 128, 151, 254].map(|exponent| f32::from_bits((exponent << 23) - 1)));
        values.extend([1, 64, 127, 128, 151, 254].map(|exponent| f32::from_bits((exponent << 23) + 1)));
        values.extend(values.clone().iter().map(|value| -value));
        for &a in &values {
            for &b in &values {
                for &c in &values {
                    check(a, b, c);
                }
            }
        }
    }

    #[test]
    fn any_bits() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        for _ in 0..1_000_000 {
            let [a, b, c] = [next(), next(), next()].map(f32::from_bits);
            check(a, b, c);
            // Of one size, so that all three matter, and with few bits, so that there are ties.
            let [a, b, c] = [next(), next(), next()].map(|bits| f32::from_bits(bits & 0x80ff_ffff | 0x3f00_0000));
            let few = f32::from_bits(b.to_bits() & 0xffff_f000);
            for b in [b, few] {
                check(a, b, c);
                check(a, b, -a * b);
                check(a, b, c * 1e-8);
                check(a, b, c * 16_777_216.0);
                // Results among the subnormal numbers.
                check(a * 1e-20, b * 1e-19, c * 1e-39);
            }
        }
    }

    /// Sums whose exact value lies just beside a tie: rounding them to f64 first would hit it.
    #[test]
    fn near_ties() {
        let tiny = f32::from_bits(1);
        for exponent in 1..60 {
            let a = 1.0 + f32::EPSILON * (exponent * 1000 + 1) as f32;
            for b in [1.0 + 2.0_f32.powi(-exponent.min(23)), 1.5, 3.0] {
                for c in [tiny, -tiny, 2.0_f32.powi(-80), -(2.0_f32.powi(-80)), 2.0_f32.powi(-30) * a] {
                    check(a, b, c);
                    check(-a, b, c);
                }
            }
        }
    }
}
