//! Ranges that are trained along with the weights (not in the paper; learned step sizes, LSQ).
//!
//! With `u = (w − q0)/Δ` and the rounding's derivative taken as 1, the quantizer `Q(w) = Δ·code + q0` depends on its
//! range as follows:
//!
//! | | `∂Q/∂Δ` | `∂Q/∂q0` |
//! |---|---|---|
//! | below the range, `u < 0` | 0 | 1 |
//! | within, `0 ≤ u ≤ 2^k − 1` | `code − u` | 0 |
//! | above | `2^k − 1` | 1 |
//!
//! So within the range a step is only moved by the rounding errors, and the clipped weights decide the ends.

use crate::error::Error;
use crate::matrix::{Axis, QuantParams};
use crate::quantizer::{SHIFT, shifted_code};
use crate::range::Range;

/// The derivative of a loss with respect to a group's range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RangeGradient {
    /// With respect to the offset `q0`, which moves all levels.
    pub low: f64,
    /// With respect to the step `Δ`.
    pub step: f64,
}

impl QuantParams {
    /// The derivative with respect to the range of one group, from the gradients of the quantized weights. The slices
    /// are the whole matrix, whose output neurons must be rows.
    ///
    /// # Errors
    /// [`Error::Length`] when a slice is not the whole matrix or there is no such group; [`Error::Shape`] when the
    /// output neurons are columns.
    pub fn range_gradient(&self, group: usize, weights: &[f32], gradients: &[f32]) -> Result<RangeGradient, Error> {
        let layout = self.layout();
        if layout.axis() != Axis::Rows {
            return Err(Error::Shape { rows: layout.rows(), cols: layout.cols() });
        }
        let all = 0..layout.rows();
        layout.check_rows("weights", &all, weights.len())?;
        layout.check_rows("gradients", &all, gradients.len())?;
        let (count, cols) = (layout.groups().count(), layout.cols());
        let affine = self.affines().get(group);
        let affine = affine.ok_or(Error::Length { what: "groups", expected: count, found: group.saturating_add(1) })?;
        let (low, inverse, top) = (affine.low(), affine.inverse_step(), affine.top());
        let rows = layout.groups().span(group);
        let span = rows.start * cols..rows.end * cols;
        let mut sum = RangeGradient::default();
        for (weights, gradients) in weights[span.clone()].chunks(cols).zip(gradients[span].chunks(cols)) {
            // A row at a time in f32 lanes that the compiler can keep in registers, rows in f64.
            const LANES: usize = 16;
            let (mut lows, mut steps) = ([0.0_f32; LANES], [0.0_f32; LANES]);
            for (weights, gradients) in weights.chunks(LANES).zip(gradients.chunks(LANES)) {
                for (lane, (&weight, &gradient)) in weights.iter().zip(gradients).enumerate() {
                    let u = (weight - low) * inverse;
                    let code = shifted_code(weight, low, inverse, top) - SHIFT;
                    let (below, above) = (u < 0.0, u > top);
                    let outside = below | above;
                    lows[lane] += if outside { gradient } else { 0.0 };
                    // Below the range the code is 0, above it is the top.
                    steps[lane] += gradient * if outside { code } else { code - u };
                }
            }
            sum.low += lows.iter().map(|&lane| f64::from(lane)).sum::<f64>();
            sum.step += steps.iter().map(|&lane| f64::from(lane)).sum::<f64>();
        }
        Ok(sum)
    }
}

impl Range {
    /// The range whose lowest level moved by `low` steps and whose step grew by the share `step`, of `top + 1` levels.
    ///
    /// # Errors
    /// [`Error::Range`] when the result is none.
    pub fn moved(self, low: f64, step: f64, top: u8) -> Result<Self, Error> {
        let old = (f64::from(self.high()) - f64::from(self.low())) / f64::from(top);
        let new_low = f64::from(self.low()) + old * low;
        let new_high = new_low + f64::from(top) * (old * (1.0 + step).max(0.0));
        Self::new(new_low as f32, new_high as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::BitWidth;
    use crate::matrix::Layout;

    /// The quantizer with the rounding error held fixed, which is what straight-through estimation differentiates.
    fn surrogate(weight: f64, error: f64, low: f64, step: f64, top: f64) -> f64 {
        let u = (weight - low) / step;
        let inside = (0.0..=top).contains(&u);
        step * (u.clamp(0.0, top) + if inside { error } else { 0.0 }) + low
    }

    #[test]
    fn gradients_are_those_of_the_quantizer_with_fixed_rounding_errors() {
        let bits = BitWidth::new(2).unwrap();
        let layout = Layout::new(4, 37, Axis::Rows, 2).unwrap();
        let weights: Vec<f32> = (0..4 * 37).map(|i| ((i * 7919 % 1000) as f32 / 500.0 - 1.0) * 1.3).collect();
        let gradients: Vec<f32> = (0..4 * 37).map(|i| (i * 104_729 % 1000) as f32 / 500.0 - 1.0).collect();
        let ranges = vec![Range::new(-0.9, 0.7).unwrap(), Range::new(-0.4, 1.1).unwrap()];
        let params = QuantParams::from_ranges(layout, bits, ranges).unwrap();
        for group in 0..2 {
            let affine = params.affines()[group];
            let (low, step, top) = (f64::from(affine.low()), f64::from(affine.step()), 3.0);
            let span = group * 2 * 37..(group + 1) * 2 * 37;
            let loss = |new_low: f64, new_step: f64| -> f64 {
                let pairs = weights[span.clone()].iter().zip(&gradients[span.clone()]);
                let value = |weight: f64| {
                    let u = (weight - low) / step;
                    surrogate(weight, u.clamp(0.0, top).round_ties_even() - u, new_low, new_step, top)
                };
                pairs.map(|(&weight, &gradient)| f64::from(gradient) * value(f64::from(weight))).sum()
            };
            let h = 1e-7;
            let by_low = (loss(low + h, step) - loss(low - h, step)) / (2.0 * h);
            let by_step = (loss(low, step + h) - loss(low, step - h)) / (2.0 * h);
            let found = params.range_gradient(group, &weights, &gradients).unwrap();
            assert!((found.low - by_low).abs() < 1e-4 * (1.0 + by_low.abs()), "{found:?} {by_low}");
            assert!((found.step - by_step).abs() < 1e-4 * (1.0 + by_step.abs()), "{found:?} {by_step}");
        }
        assert!(params.range_gradient(2, &weights, &gradients).is_err());
        assert!(params.range_gradient(0, &weights[1..], &gradients).is_err());
    }

    #[test]
    fn ranges_move_by_steps_and_grow_by_shares() {
        let range = Range::new(-1.0, 2.0).unwrap();
        assert_eq!(range.moved(0.5, 0.0, 3).unwrap(), Range::new(-0.5, 2.5).unwrap());
        assert_eq!(range.moved(0.0, 0.5, 3).unwrap(), Range::new(-1.0, 3.5).unwrap());
        assert_eq!(range.moved(0.0, -2.0, 3).unwrap(), Range::new(-1.0, -1.0).unwrap());
        assert!(range.moved(f64::NAN, 0.0, 3).is_err());
    }
}
