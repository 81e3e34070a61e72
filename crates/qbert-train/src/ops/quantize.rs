//! Fake quantization of activations and its straight-through gradient (paper, §3.1 and App. A).
//!
//! The arithmetic is that of [`ActivationParams`]; this module applies it to tensors, on all threads. A gradient passes
//! where the clamp did not change the value. Where the value is kept anyway (the input of a layer is also its residual),
//! the backward pass tests it again. Where the quantized value overwrites it, the forward pass records which values
//! passed, one byte each.
//!
//! Not for weights: [`crate::qat`] quantizes those before the model sees them.

use qbert_kernels::{CHUNK, Compute, ROW_CHUNK};
use qbert_quant::ActivationParams;

/// `out = Q(x)`.
pub fn forward(compute: &Compute, params: ActivationParams, x: &[f32], out: &mut [f32]) {
    compute.threads().for_each_chunk([out], [CHUNK], |chunk, [out]| {
        let x = &x[chunk * CHUNK..chunk * CHUNK + out.len()];
        for (out, &x) in out.iter_mut().zip(x) {
            *out = params.round_trip(x);
        }
    });
}

/// Sets the gradient of `x` to zero where the clamp acted on it.
pub fn backward(compute: &Compute, params: ActivationParams, x: &[f32], d: &mut [f32]) {
    compute.threads().for_each_chunk([d], [CHUNK], |chunk, [d]| {
        let x = &x[chunk * CHUNK..chunk * CHUNK + d.len()];
        for (d, &x) in d.iter_mut().zip(x) {
            *d = if params.passes(x) { *d } else { 0.0 };
        }
    });
}

/// Some rows, and the record of which values passed.
struct Rows<'a> {
    values: &'a mut [f32],
    passed: &'a mut [u8],
}

/// `x ← Q(x)` for rows of `width` values that are parts of equal width, each with params of its own. `passed` gets a 1 for
/// every value that the clamp did not change; an empty `passed` records nothing.
pub fn forward_in_place<const PARTS: usize>(
    compute: &Compute,
    params: [ActivationParams; PARTS],
    width: usize,
    x: &mut [f32],
    passed: &mut [u8],
) {
    rows_in_place(compute, params, width, (x, passed), ActivationParams::fake_quantize);
}

/// [`forward_in_place`] without the step size: `x ← code(x) − z`. These are whole numbers, so sums of their products are
/// exact. [`steps_to_values`] multiplies by the step size.
pub fn steps_in_place<const PARTS: usize>(
    compute: &Compute,
    params: [ActivationParams; PARTS],
    width: usize,
    x: &mut [f32],
    passed: &mut [u8],
) {
    rows_in_place(compute, params, width, (x, passed), |params, values| {
        for value in values {
            *value = params.steps(*value);
        }
    });
}

/// `Δ·(code − z)`, from the output of [`steps_in_place`].
pub fn steps_to_values<const PARTS: usize>(
    compute: &Compute,
    params: [ActivationParams; PARTS],
    width: usize,
    x: &mut [f32],
) {
    rows_in_place(compute, params, width, (x, &mut []), |params, values| {
        for value in values {
            *value *= params.step();
        }
    });
}

/// Calls `quantize` for every part of every row, after recording what passes.
fn rows_in_place<const PARTS: usize>(
    compute: &Compute,
    params: [ActivationParams; PARTS],
    width: usize,
    (x, passed): (&mut [f32], &mut [u8]),
    quantize: impl Fn(&ActivationParams, &mut [f32]) + Sync,
) {
    let length = ROW_CHUNK * width;
    let mut masks = passed.chunks_mut(length);
    let parts = x.chunks_mut(length);
    let mut tasks: Vec<Rows<'_>> =
        parts.map(|values| Rows { values, passed: masks.next().unwrap_or_default() }).collect();
    compute.threads().for_each_item(&mut tasks, |_, Rows { values, passed }| {
        let part = width / PARTS;
        if !passed.is_empty() {
            for (values, passed) in values.chunks_exact(width).zip(passed.chunks_exact_mut(width)) {
                for (params, (values, passed)) in
                    params.iter().zip(values.chunks_exact(part).zip(passed.chunks_exact_mut(part)))
                {
                    for (passed, &value) in passed.iter_mut().zip(values) {
                        *passed = u8::from(params.passes(value));
                    }
                }
            }
        }
        for values in values.chunks_exact_mut(width) {
            for (params, values) in params.iter().zip(values.chunks_exact_mut(part)) {
                quantize(params, values);
            }
        }
    });
}

/// Sets to zero the gradients of values that did not pass in [`forward_in_place`] or [`steps_in_place`].
pub fn backward_passed(compute: &Compute, passed: &[u8], d: &mut [f32]) {
    compute.threads().for_each_chunk([d], [CHUNK], |chunk, [d]| {
        let passed = &passed[chunk * CHUNK..chunk * CHUNK + d.len()];
        for (d, &passed) in d.iter_mut().zip(passed) {
            *d = if passed != 0 { *d } else { 0.0 };
        }
    });
}

/// `x ← Q(x)` for the output of the activation. Its `slope` becomes zero where the clamp acted, since the backward pass
/// multiplies by it anyway. Pass an empty slice where there is no slope (evaluation).
pub fn forward_with_slope(compute: &Compute, params: ActivationParams, x: &mut [f32], slope: &mut [f32]) {
    if slope.is_empty() {
        return compute.threads().for_each_chunk([x], [CHUNK], |_, [x]| params.fake_quantize(x));
    }
    compute.threads().for_each_chunk([x, slope], [CHUNK; 2], |_, [x, slope]| {
        for (x, slope) in x.iter_mut().zip(slope) {
            *slope = if params.passes(*x) { *slope } else { 0.0 };
            *x = params.round_trip(*x);
        }
    });
}

/// [`forward_with_slope`] for the output of a gated activation `[T, I]`, which has two slopes: `[T, 2I]`, side by side.
pub fn forward_with_slopes(
    compute: &Compute,
    params: ActivationParams,
    width: usize,
    x: &mut [f32],
    slopes: &mut [f32],
) {
    if slopes.is_empty() {
        return forward_with_slope(compute, params, x, slopes);
    }
    compute.threads().for_each_chunk([x, slopes], [ROW_CHUNK * width, 2 * ROW_CHUNK * width], |_, [x, slopes]| {
        for (x, slopes) in x.chunks_exact_mut(width).zip(slopes.chunks_exact_mut(2 * width)) {
            let (first, second) = slopes.split_at_mut(width);
            for ((x, first), second) in x.iter_mut().zip(first).zip(second) {
                if !params.passes(*x) {
                    (*first, *second) = (0.0, 0.0);
                }
                *x = params.round_trip(*x);
            }
        }
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]
mod tests {
    use super::*;
    use qbert_quant::Range;

    #[test]
    fn steps_are_whole_numbers_and_their_values_those_of_the_codes() {
        let compute = Compute::detect(2).unwrap();
        let mut values = vec![0.0; 3 * 7 * 150];
        crate::random::Stream::new(1, "test", 0).fill_normal(&mut values, 1.0);
        let params = [(-1.0, 2.0), (0.0, 0.7), (-3.0, 0.0)]
            .map(|(low, high)| ActivationParams::from_range(Range::new(low, high).unwrap()));
        let (mut expected, mut passed) = (values.clone(), vec![0; values.len()]);
        forward_in_place(&compute, params, 21, &mut expected, &mut passed);
        let (mut found, mut noted) = (values.clone(), vec![0; values.len()]);
        steps_in_place(&compute, params, 21, &mut found, &mut noted);
        assert_eq!(noted, passed);
        assert!(passed.contains(&0) && passed.contains(&1));
        for (index, (&steps, &value)) in found.iter().zip(&values).enumerate() {
            let params = params[index % 21 / 7];
            assert_eq!(steps + f32::from(params.zero_point()), f32::from(params.code(value)));
        }
        steps_to_values(&compute, params, 21, &mut found);
        assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
        // Quantizing twice gives the same codes as quantizing once.
        forward_in_place(&compute, params, 21, &mut found, &mut []);
        assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
