//! Activations in 8 bits with an integer zero point (paper, Tab. 1 and App. A; not in the paper: the zero point).
//!
//! Weights are quantized with a float offset ([`crate::quantizer`]); activations are not. Their offset is a whole
//! number of steps, so that a sum over codes stays an exact integer and the zero of a sum is the zero of its codes:
//!
//! ```text
//! inverse = 1 / Δ                                               once per tensor
//! code(x) = clamp(round_half_even(x · inverse) + z, 0, 255)
//! value(A) = Δ · (A - z)                                        one rounding
//! ```
//!
//! all in IEEE 754 binary32 with rounding to nearest even. From a range `[lo, hi]`, widened to hold 0:
//! `Δ = (hi - lo) / 255` and `z = round_half_even(-lo / Δ)`, both computed in f64, `Δ` rounded once to f32 before `z`
//! is taken. Zero is always represented exactly.
//!
//! The gradient of the quantizer (§3.1, straight-through) is 1 where the clamp left the code alone and 0 elsewhere:
//! up to half a step beyond the outermost values, so that both ends of the range pass although `z` is rounded.
//!
//! Hazards: an always-zero tensor (or one smaller than 255 · 2⁻¹²⁶) has `Δ = 1`, `z = 0`, and every value is 0; NaN gets
//! code 0, but no range is ever made of it ([`Range`] refuses it).
//!
//! Not for weights, and not for finding ranges: [`crate::range`] and calibration do that.

use crate::error::Error;
use crate::range::{Range, check_length};
use serde::Serialize;

/// How one activation tensor is quantized: the step and the zero point. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ActivationParams {
    step: f32,
    zero_point: u8,
    #[serde(skip)]
    inverse_step: f32,
}

/// The largest code.
const TOP: f32 = 255.0;

/// 1.5 · 2^23: adding it to a number of at most 2^22 in size leaves no room for a fraction, so it rounds half to even.
const SHIFT: f32 = 12_582_912.0;

impl ActivationParams {
    /// Attention probabilities: `code = round_half_even(255 · p)`, `Δ = 1/255` and `z = 0`, whatever the data.
    ///
    /// Multiplied by 255 exactly, which the inverse of the rounded step is not; so it is this constant and nothing that
    /// is stored.
    pub const PROBABILITIES: Self = Self { step: 1.0 / 255.0, zero_point: 0, inverse_step: 255.0 };

    /// A tensor that is always zero.
    pub const ZERO: Self = Self { step: 1.0, zero_point: 0, inverse_step: 1.0 };

    /// The quantizer of a range, which is widened to hold 0.
    pub fn from_range(range: Range) -> Self {
        let (low, high) = (f64::from(range.low().min(0.0)), f64::from(range.high().max(0.0)));
        let step = ((high - low) / f64::from(TOP)) as f32;
        if step < f32::MIN_POSITIVE {
            return Self::ZERO;
        }
        let zero_point = (-low / f64::from(step)).round_ties_even().clamp(0.0, f64::from(TOP)) as u8;
        Self { step, zero_point, inverse_step: 1.0 / step }
    }

    /// A quantizer from its stored form.
    ///
    /// # Errors
    /// [`Error::ActivationStep`] unless the step is a normal number above 0 and 255 steps are no more than twice
    /// [`Range::LIMIT`], the widest range there is.
    pub fn new(step: f32, zero_point: u8) -> Result<Self, Error> {
        let widest = 2.0 * f64::from(Range::LIMIT) * (1.0 + f64::from(f32::EPSILON));
        if step >= f32::MIN_POSITIVE && f64::from(step) * f64::from(TOP) <= widest {
            Ok(Self { step, zero_point, inverse_step: 1.0 / step })
        } else {
            Err(Error::ActivationStep { step })
        }
    }

    /// The step `Δ` between adjacent values.
    pub fn step(&self) -> f32 {
        self.step
    }

    /// The code of 0.
    pub fn zero_point(&self) -> u8 {
        self.zero_point
    }

    /// `1 / Δ` rounded to f32.
    pub fn inverse_step(&self) -> f32 {
        self.inverse_step
    }

    /// The smallest and the largest value a code stands for.
    pub fn extent(&self) -> (f32, f32) {
        (self.value(0), self.value(u8::MAX))
    }

    /// The code of a value.
    #[inline]
    pub fn code(&self, value: f32) -> u8 {
        // A whole number from 0 to 255: the cast is exact.
        (self.steps(value) + f32::from(self.zero_point)) as u8
    }

    /// The value of a code.
    #[inline]
    pub fn value(&self, code: u8) -> f32 {
        self.step * (f32::from(code) - f32::from(self.zero_point))
    }

    /// `value(code(x))`.
    #[inline]
    pub fn round_trip(&self, value: f32) -> f32 {
        self.step * self.steps(value)
    }

    /// Whether the clamp leaves the code of `value` alone: where the gradient passes. NaN does not pass.
    #[inline]
    pub fn passes(&self, value: f32) -> bool {
        let scaled = value * self.inverse_step;
        // Both comparisons are taken: no branch.
        (scaled >= self.lowest() - 0.5) & (scaled <= self.lowest() + TOP + 0.5)
    }

    /// `code(x) - z` as a float: the value in steps. Clamping before rounding gives the same as after, since the bounds are
    /// whole numbers.
    #[inline(always)]
    pub fn steps(&self, value: f32) -> f32 {
        let (scaled, low) = (value * self.inverse_step, self.lowest());
        // Written so that NaN becomes the lowest, and each comparison is one vector instruction.
        let scaled = if scaled > low { scaled } else { low };
        let scaled = if scaled < low + TOP { scaled } else { low + TOP };
        (scaled + SHIFT) - SHIFT
    }

    #[inline(always)]
    fn lowest(&self) -> f32 {
        -f32::from(self.zero_point)
    }

    /// Replaces every value by what its code stands for.
    pub fn fake_quantize(&self, values: &mut [f32]) {
        for value in values {
            *value = self.round_trip(*value);
        }
    }

    /// The same from one slice into another.
    ///
    /// # Errors
    /// [`Error::Length`] when the slices differ in length.
    pub fn fake_quantize_into(&self, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        check_length("output", input.len(), output.len())?;
        for (result, &value) in output.iter_mut().zip(input) {
            *result = self.round_trip(value);
        }
        Ok(())
    }

    /// Sets to zero the gradients of the values that the clamp moved; see [`ActivationParams::passes`].
    ///
    /// # Errors
    /// [`Error::Length`] when the slices differ in length.
    pub fn straight_through(&self, values: &[f32], gradients: &mut [f32]) -> Result<(), Error> {
        check_length("gradients", values.len(), gradients.len())?;
        for (gradient, &value) in gradients.iter_mut().zip(values) {
            *gradient = if self.passes(value) { *gradient } else { 0.0 };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn params(low: f32, high: f32) -> ActivationParams {
        ActivationParams::from_range(Range::new(low, high).unwrap())
    }

    /// The definition, word for word, in another order of rounding and clamping.
    fn defined_code(params: &ActivationParams, value: f32) -> u8 {
        let rounded = (value * params.inverse_step()).round_ties_even() + f32::from(params.zero_point());
        rounded.clamp(0.0, 255.0) as u8
    }

    #[test]
    fn half_way_cases_go_to_the_even_code() {
        // Steps of exactly 1 and zero point 10.
        let params = params(-10.0, 245.0);
        assert_eq!((params.step(), params.zero_point()), (1.0, 10));
        let codes = [-10.5, -9.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.5, 244.5].map(|value| params.code(value));
        assert_eq!(codes, [0, 0, 10, 10, 10, 12, 12, 14, 254]);
        let values = [-9.5_f32, -0.5, 0.5, 1.5, 2.5].map(|value| params.round_trip(value));
        assert_eq!(values, [-10.0, 0.0, 0.0, 2.0, 2.0]);
    }

    #[test]
    fn values_outside_are_clamped_and_only_their_gradients_stop() {
        let params = params(-10.0, 245.0);
        let inputs = [-1e30, -10.6, -10.5, -10.0, 0.0, 245.0, 245.5, 245.6, 1e30, f32::INFINITY, f32::NAN];
        let codes = inputs.map(|value| params.code(value));
        assert_eq!(codes, [0, 0, 0, 0, 10, 255, 255, 255, 255, 255, 0]);
        let mut gradients = [2.0; 11];
        params.straight_through(&inputs, &mut gradients).unwrap();
        assert_eq!(gradients, [0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(params.extent(), (-10.0, 245.0));
    }

    #[test]
    fn a_tensor_that_is_always_zero_stays_zero() {
        for range in [(0.0, 0.0), (-0.0, 0.0), (-1e-40, 1e-40), (0.0, f32::MIN_POSITIVE)] {
            let params = params(range.0, range.1);
            assert_eq!(params, ActivationParams::ZERO, "{range:?}");
            assert_eq!(params.round_trip(range.1).to_bits(), 0);
        }
    }

    #[test]
    fn ranges_of_one_sign_are_widened_to_zero() {
        let positive = params(3.0, 5.1);
        assert_eq!((positive.zero_point(), positive.code(0.0), positive.code(5.1)), (0, 0, 255));
        assert_eq!(positive.step(), (f64::from(5.1_f32) / 255.0) as f32);
        let negative = params(-5.1, -3.0);
        assert_eq!((negative.zero_point(), negative.code(0.0), negative.code(-5.1)), (255, 255, 0));
    }

    #[test]
    fn no_range_is_made_of_what_is_no_number() {
        for (low, high) in [(f32::NAN, 1.0), (0.0, f32::NAN), (f32::NEG_INFINITY, 1.0), (1.0, -1.0)] {
            assert!(matches!(Range::new(low, high), Err(Error::Range { .. })));
        }
        assert!(matches!(Range::min_max(&[0.0, f32::NAN]), Err(Error::BadValue { index: 1, .. })));
        for step in [0.0, -1.0, 1e-40, f32::NAN, f32::INFINITY, f32::MAX] {
            assert!(matches!(ActivationParams::new(step, 3), Err(Error::ActivationStep { .. })), "{step}");
        }
    }

    #[test]
    fn probabilities_are_codes_of_a_255th() {
        let params = ActivationParams::PROBABILITIES;
        assert_eq!((params.step(), params.zero_point(), params.inverse_step()), (1.0 / 255.0, 0, 255.0));
        assert_ne!(1.0 / params.step(), 255.0, "the reason for a constant");
        for code in 0..=255_u8 {
            assert_eq!(params.code(f32::from(code) / 255.0), code);
        }
        assert_eq!(params.code(1.000_001), 255);
        assert!(params.passes(0.0) && params.passes(1.000_001));
    }

    fn float() -> impl Strategy<Value = f32> {
        prop_oneof![-300.0..300.0f32, -1e-3..1e-3f32, Just(0.0), Just(-0.0), -1e37..1e37f32]
    }

    proptest! {
        #[test]
        fn every_path_agrees_with_the_definition(
            one in float(), other in float(), values in prop::collection::vec(float(), 1..70),
        ) {
            let params = params(one.min(other), one.max(other));
            prop_assert_eq!(params.round_trip(0.0).to_bits(), 0);
            prop_assert_eq!(params.round_trip(-0.0).to_bits(), 0);
            let stored = ActivationParams::new(params.step(), params.zero_point()).unwrap();
            prop_assert_eq!(stored, params);
            let mut quantized = values.clone();
            params.fake_quantize(&mut quantized);
            let mut copied = vec![0.0; values.len()];
            params.fake_quantize_into(&values, &mut copied).unwrap();
            let mut gradients = vec![1.0; values.len()];
            params.straight_through(&values, &mut gradients).unwrap();
            for (index, &value) in values.iter().enumerate() {
                let code = params.code(value);
                prop_assert_eq!(code, defined_code(&params, value));
                prop_assert_eq!(quantized[index].to_bits(), params.value(code).to_bits());
                prop_assert_eq!(copied[index].to_bits(), quantized[index].to_bits());
                prop_assert_eq!(gradients[index] == 1.0, params.passes(value));
                if params.passes(value) {
                    let error = (f64::from(value) - f64::from(quantized[index])).abs();
                    prop_assert!(error <= f64::from(params.step()) * 0.5001, "{value} became {}", quantized[index]);
                }
            }
        }

        #[test]
        fn both_ends_of_the_range_pass(one in -300.0..0.0f32, other in 0.0..300.0f32) {
            prop_assume!(other - one > 1e-3);
            let params = params(one, other);
            // `z` is rounded: an end lies up to half a step beyond the outermost value, and rounding may add to that.
            let inside = |value: f32| params.passes(value * (1.0 - 1e-6));
            prop_assert!(inside(one) && inside(other));
        }
    }
}
