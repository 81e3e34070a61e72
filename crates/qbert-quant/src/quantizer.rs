//! The uniform quantizer, to the bit (paper, App. A).
//!
//! With `q0` the offset, `Δ` the step and `k` the width, all arithmetic in IEEE 754 binary32 with rounding
//! to nearest even after every operation:
//!
//! ```text
//! inverse = 1 / Δ                                      once per quantizer
//! code(x) = clamp(round_half_even((x - q0) · inverse), 0, 2^k - 1)
//! value(c) = Δ · c + q0                                two roundings, never a fused multiply-add
//! ```
//!
//! The division of the paper is a multiplication with the rounded inverse here, everywhere, so that
//! training, packing and every kernel agree. An implementation that fuses the multiplication and the
//! addition of `value`, or divides in `code`, does not conform.
//!
//! Hazards, and what happens:
//!
//! - **Δ = 0** (all values equal, or a range of one point) is legal: every code is 0, every value `q0`.
//! - **A step below 2⁻¹²⁶** (a subnormal number, whose inverse may overflow) is taken as 0. What is lost
//!   is at most 255 · 2⁻¹²⁶.
//! - **Overflow** cannot happen: ranges are limited in size ([`Range::LIMIT`]), and a difference `x - q0`
//!   that overflows for a huge `x` is infinite with the right sign and clamps to the right code.
//! - **NaN** gets code 0 from the scalar functions; the functions on slices refuse NaN and infinity.
//! - **Half-way cases** go to the even code, also where `(x - q0)·inverse` is half-way only by rounding.
//! - **A large offset** costs digits: inside the range the error is at most `Δ/2` plus a few units in the
//!   last place of the larger end, because values are rounded to f32.
//! - **The top**: `value(2^k - 1)` is `high` of the range only up to such rounding.

use crate::bits::BitWidth;
use crate::error::Error;
use crate::range::{Range, check_length};

/// A quantizer as it is stored: offset, step and width. See the [module](self) for the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    low: f32,
    step: f32,
    inverse_step: f32,
    bits: BitWidth,
}

impl Affine {
    /// The quantizer of a range: `q0 = low` and `Δ = (high - low) / (2^k - 1)`, the quotient computed in
    /// f64 and rounded once to f32.
    pub fn from_range(range: Range, bits: BitWidth) -> Self {
        let width = f64::from(range.high()) - f64::from(range.low());
        Self::with_step(range.low(), (width / f64::from(bits.max_code())) as f32, bits)
    }

    /// A quantizer from its stored form.
    ///
    /// # Errors
    /// [`Error::Affine`] when `low` is not finite, or `step` is negative or not finite, or the values of
    /// some codes would exceed [`Range::LIMIT`] (by more than rounding).
    pub fn new(low: f32, step: f32, bits: BitWidth) -> Result<Self, Error> {
        // In f64, where neither product nor sum can overflow; a little more than the limit because the
        // step of a valid range may have been rounded up.
        let limit = f64::from(Range::LIMIT) * (1.0 + f64::from(f32::EPSILON));
        let high = f64::from(low) + f64::from(step) * f64::from(bits.max_code());
        if low.abs() <= Range::LIMIT && step >= 0.0 && high <= limit {
            Ok(Self::with_step(low + 0.0, step, bits))
        } else {
            Err(Error::Affine { low, step })
        }
    }

    fn with_step(low: f32, step: f32, bits: BitWidth) -> Self {
        if step < f32::MIN_POSITIVE {
            Self { low, step: 0.0, inverse_step: 0.0, bits }
        } else {
            Self { low, step, inverse_step: 1.0 / step, bits }
        }
    }

    /// The offset `q0`: the value of code 0.
    pub fn low(&self) -> f32 {
        self.low
    }

    /// The step `Δ` between adjacent values; 0 when there is only one value.
    pub fn step(&self) -> f32 {
        self.step
    }

    /// `1 / Δ` rounded to f32; 0 when the step is 0.
    pub fn inverse_step(&self) -> f32 {
        self.inverse_step
    }

    /// The width of the codes.
    pub fn bits(&self) -> BitWidth {
        self.bits
    }

    /// The code of a value.
    #[inline]
    pub fn code(&self, value: f32) -> u8 {
        shifted_code(value, self.low, self.inverse_step, self.top()).to_bits() as u8
    }

    /// The value of a code.
    #[inline]
    pub fn value(&self, code: u8) -> f32 {
        self.step * f32::from(code) + self.low
    }

    /// `value(code(x))`, the paper's `Q(x)`.
    #[inline]
    pub fn round_trip(&self, value: f32) -> f32 {
        round_trip(value, self.low, self.step, self.inverse_step, self.top())
    }

    /// The largest code as a float.
    #[inline]
    pub(crate) fn top(&self) -> f32 {
        f32::from(self.bits.max_code())
    }

    /// Writes the code of every value.
    ///
    /// # Errors
    /// [`Error::Length`] when the slices differ in length; [`Error::BadValue`] when a value is NaN or
    /// infinite, and then `codes` is in no particular state.
    pub fn quantize(&self, values: &[f32], codes: &mut [u8]) -> Result<(), Error> {
        check_length("codes", values.len(), codes.len())?;
        let (low, inverse, top) = (self.low, self.inverse_step, self.top());
        for (code, &value) in codes.iter_mut().zip(values) {
            *code = shifted_code(value, low, inverse, top).to_bits() as u8;
        }
        check_finite(values)
    }

    /// Writes the value of every code.
    ///
    /// # Errors
    /// [`Error::Length`] when the slices differ in length.
    pub fn dequantize(&self, codes: &[u8], values: &mut [f32]) -> Result<(), Error> {
        check_length("values", codes.len(), values.len())?;
        for (value, &code) in values.iter_mut().zip(codes) {
            *value = self.value(code);
        }
        Ok(())
    }

    /// Writes `Q(x)` of every value: fake quantization, the same bits as [`Affine::quantize`] followed by
    /// [`Affine::dequantize`].
    ///
    /// # Errors
    /// As [`Affine::quantize`].
    pub fn fake_quantize(&self, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        check_length("output", input.len(), output.len())?;
        let (low, step, inverse, top) = (self.low, self.step, self.inverse_step, self.top());
        for (result, &value) in output.iter_mut().zip(input) {
            *result = round_trip(value, low, step, inverse, top);
        }
        check_finite(input)
    }
}

/// 2^23: from here to 2^24 the floats are the whole numbers, so adding it rounds half to even and leaves
/// the whole number in the low bits.
pub(crate) const SHIFT: f32 = 8_388_608.0;

/// The code plus [`SHIFT`]. Clamping before rounding gives the same code as after, since the bounds are
/// whole numbers, and keeps the sum below 2^24. The comparisons are written so that NaN gets code 0 and
/// each is one vector instruction.
#[inline(always)]
pub(crate) fn shifted_code(value: f32, low: f32, inverse_step: f32, top: f32) -> f32 {
    let scaled = (value - low) * inverse_step;
    let scaled = if scaled > 0.0 { scaled } else { 0.0 };
    let scaled = if scaled < top { scaled } else { top };
    scaled + SHIFT
}

#[inline(always)]
pub(crate) fn round_trip(value: f32, low: f32, step: f32, inverse_step: f32, top: f32) -> f32 {
    step * (shifted_code(value, low, inverse_step, top) - SHIFT) + low
}

/// Refuses NaN and infinity. A pass of its own, because the loop without branches is the fast one.
pub(crate) fn check_finite(values: &[f32]) -> Result<(), Error> {
    let mut good = true;
    for value in values {
        good &= value.is_finite();
    }
    if good {
        return Ok(());
    }
    let index = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
    Err(Error::BadValue { index, value: values[index] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word for word.
    fn defined_code(affine: &Affine, value: f32) -> u8 {
        let scaled = (value - affine.low) * affine.inverse_step;
        scaled.round_ties_even().clamp(0.0, f32::from(affine.bits.max_code())) as u8
    }

    fn range() -> impl Strategy<Value = Range> {
        let end = prop_oneof![-1e-3_f32..1e-3, -4.0_f32..4.0, -1e30_f32..1e30, Just(0.0_f32)];
        (end.clone(), end).prop_map(|(one, other)| Range::new(one.min(other), one.max(other)).unwrap())
    }

    #[test]
    fn half_way_goes_to_the_even_code() {
        let affine = Affine::new(0.0, 1.0, BitWidth::new(3).unwrap()).unwrap();
        let codes = [-1.0, 0.5, 1.5, 2.5, 3.5, 6.5, 6.51, 100.0].map(|value| affine.code(value));
        assert_eq!(codes, [0, 0, 2, 2, 4, 6, 7, 7]);
    }

    #[test]
    fn one_value_has_code_zero_and_comes_back() {
        for bits in BitWidth::all() {
            let affine = Affine::from_range(Range::new(-0.3, -0.3).unwrap(), bits);
            assert_eq!(affine.step(), 0.0);
            for value in [-0.3, 7.0, f32::INFINITY, f32::NAN] {
                assert_eq!(affine.code(value), 0);
                assert_eq!(affine.round_trip(value), -0.3);
            }
        }
    }

    #[test]
    fn a_step_too_small_to_invert_is_no_step() {
        let tiny = f32::MIN_POSITIVE;
        let below = Affine::from_range(Range::new(0.0, tiny / 2.0).unwrap(), BitWidth::ONE);
        assert_eq!((below.step(), below.inverse_step(), below.code(1.0)), (0.0, 0.0, 0));
        let just = Affine::from_range(Range::new(0.0, tiny).unwrap(), BitWidth::ONE);
        assert_eq!((just.step(), just.inverse_step()), (tiny, 2.0_f32.powi(126)));
        assert_eq!((just.code(0.0), just.code(tiny)), (0, 1));
    }

    #[test]
    fn the_widest_range_does_not_overflow() {
        let range = Range::new(-Range::LIMIT, Range::LIMIT).unwrap();
        for bits in BitWidth::all() {
            let affine = Affine::from_range(range, bits);
            assert_eq!(affine.code(f32::MAX), bits.max_code());
            assert_eq!(affine.code(f32::NEG_INFINITY), 0);
            assert!(affine.value(bits.max_code()).is_finite());
            assert_eq!(Affine::new(affine.low(), affine.step(), bits).unwrap(), affine);
        }
    }

    #[test]
    fn a_stored_quantizer_is_checked() {
        for (low, step) in
            [(f32::NAN, 1.0), (0.0, f32::NAN), (0.0, -1.0), (0.0, f32::INFINITY), (f32::INFINITY, 0.0), (0.0, 1e37)]
        {
            assert!(Affine::new(low, step, BitWidth::EIGHT).is_err(), "{low} {step}");
        }
    }

    #[test]
    fn slices_refuse_what_is_not_finite_and_wrong_lengths() {
        let affine = Affine::new(0.0, 1.0, BitWidth::EIGHT).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let values = [1.0, bad, 2.0];
            let error = affine.quantize(&values, &mut [0; 3]).unwrap_err();
            assert!(matches!(error, Error::BadValue { index: 1, .. }));
            assert!(affine.fake_quantize(&values, &mut [0.0; 3]).is_err());
        }
        assert!(matches!(affine.quantize(&[1.0], &mut [0; 2]), Err(Error::Length { expected: 1, found: 2, .. })));
        assert!(affine.dequantize(&[1], &mut []).is_err());
    }

    proptest! {
        #[test]
        fn the_error_inside_the_range_is_at_most_half_a_step(range in range(), place in 0.0_f64..=1.0) {
            let (low, high) = (f64::from(range.low()), f64::from(range.high()));
            let value = ((low + place * (high - low)) as f32).clamp(range.low(), range.high());
            let ulp = f64::from(range.low().abs().max(range.high().abs())) * f64::from(f32::EPSILON);
            for bits in BitWidth::all() {
                let affine = Affine::from_range(range, bits);
                let half = (high - low) / f64::from(bits.max_code()) / 2.0;
                let error = (f64::from(affine.round_trip(value)) - f64::from(value)).abs();
                let rounding = 4.0 * ulp + 256.0 * f64::from(f32::MIN_POSITIVE);
                prop_assert!(error <= half * (1.0 + 1e-4) + rounding, "{bits} bits: {error} > {half} + {rounding}");
            }
        }

        #[test]
        fn codes_follow_the_definition_bit_for_bit(range in range(), bits in any::<u32>(), place in -0.2_f32..1.2) {
            let near = range.low() + place * (range.high() - range.low());
            for value in [f32::from_bits(bits), near, range.low(), range.high()] {
                for bits in BitWidth::all() {
                    let affine = Affine::from_range(range, bits);
                    prop_assert_eq!(affine.code(value), defined_code(&affine, value));
                    let back = affine.value(affine.code(value));
                    prop_assert_eq!(affine.round_trip(value).to_bits(), back.to_bits());
                }
            }
        }

        #[test]
        fn values_of_codes_keep_their_codes(range in range(), code in any::<u8>()) {
            // Only where the offset leaves the digits to tell neighbours apart.
            let largest = range.low().abs().max(range.high().abs());
            for bits in BitWidth::all() {
                let affine = Affine::from_range(range, bits);
                let code = code & bits.max_code();
                if affine.step() > largest * 8.0 * f32::EPSILON {
                    prop_assert_eq!(affine.code(affine.value(code)), code);
                }
            }
        }
    }
}
