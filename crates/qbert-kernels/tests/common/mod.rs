//! What the test files share: numbers, references in f64, comparisons.
#![allow(dead_code, reason = "every test file uses its own part of it")]

use qbert_kernels::Kernels;
use qbert_kernels::int::Multiplier;

/// Lengths around every block edge: vectors of 8 and 16, four of them, dropout groups, sum blocks.
pub(crate) const LENGTHS: [usize; 24] =
    [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 384, 1023, 1024, 1025, 2500];

/// Numbers in -range..range without a pattern.
pub(crate) fn noise(length: usize, seed: u32, range: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / 8_388_608.0 - 1.0) * range
        })
        .collect()
}

/// Runs a check for every instruction set of this CPU.
pub(crate) fn for_every_kernel(check: impl Fn(Kernels)) {
    for kernels in Kernels::supported() {
        check(kernels);
    }
}

/// Runs a check for every integer multiplier of this CPU with every instruction set.
pub(crate) fn for_every_multiplier(check: impl Fn(Kernels)) {
    for multiplier in Multiplier::supported() {
        for_every_kernel(|kernels| check(kernels.with_multiplier(multiplier)));
    }
}

/// Kernels as a failed check names them.
pub(crate) fn name(kernels: Kernels) -> String {
    format!("{}+{}", kernels.name(), kernels.multiplier().name())
}

/// Panics with the place unless `|got - want| <= tolerance(want)` everywhere.
#[track_caller]
pub(crate) fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: impl Fn(usize, f64) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        let allowed = tolerance(index, want);
        assert!(
            error <= allowed,
            "{what}[{index}]: {got:e} instead of {want:e}: off by {error:e}, allowed {allowed:e}"
        );
    }
}

/// The standard normal distribution function, to f64 accuracy, by its Taylor series near 0 and
/// its continued fraction in the tails.
pub(crate) fn normal_cumulative(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() < 5.0 {
        // Φ(x) = 1/2 + φ(x)·(x + x³/3 + x⁵/15 + …): all terms of one sign, no cancellation.
        let (mut term, mut total, mut odd) = (x, x, 1.0);
        while term.abs() > 1e-18 * total.abs() {
            odd += 2.0;
            term *= x * x / odd;
            total += term;
        }
        if x >= 0.0 || x > -1.0 { 0.5 + density * total } else { upper_tail(-x) }
    } else if x < 0.0 {
        upper_tail(-x)
    } else {
        1.0 - upper_tail(x)
    }
}

/// 1 - Φ(x) for x >= 1 by the continued fraction x + 1/(x + 2/(x + 3/(x + …))).
fn upper_tail(x: f64) -> f64 {
    let mut fraction = x;
    for k in (1..=500).rev() {
        fraction = x + f64::from(k) / fraction;
    }
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt() / fraction
}

/// A grid from `-count·step` to `count·step`, tiny numbers and huge ones.
pub(crate) fn points(count: i32, step: f32) -> Vec<f32> {
    let mut points: Vec<f32> = (-count..=count).map(|i| i as f32 * step).collect();
    points.extend([0.0, -0.0, 1e-40, -1e-40, 1e-20, -1e-20, f32::MIN_POSITIVE, 1e-7, -1e-7]);
    points.extend([50.0, -50.0, 1e4, -1e4, 1e19, -1e19, 1e30, -1e30, f32::MAX, f32::MIN]);
    points
}

/// The standard normal density.
pub(crate) fn normal_density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// `f32` slices as `f64`.
pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
