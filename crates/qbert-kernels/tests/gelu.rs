//! GELU and its derivatives, and tanh, against f64 over the whole range that matters.

mod common;

use common::{LENGTHS, assert_close, for_every_kernel, noise, normal_cumulative, normal_density, points};
use qbert_kernels::Kernels;

fn gelu(x: f64) -> f64 {
    x * normal_cumulative(x)
}

fn slope(x: f64) -> f64 {
    normal_cumulative(x) + x * normal_density(x)
}

fn curvature(x: f64) -> f64 {
    normal_density(x) * (2.0 - x * x)
}

/// The reference itself, against published values of the normal distribution.
#[test]
fn the_reference_distribution_is_right() {
    let known = [
        (0.0, 0.5),
        (1.0, 0.841_344_746_068_542_9),
        (-1.0, 0.158_655_253_931_457_05),
        (2.0, 0.977_249_868_051_820_8),
        (-3.0, 0.001_349_898_031_630_094_5),
        (-6.0, 9.865_876_450_376_98e-10),
        (6.0, 0.999_999_999_013_412_3),
    ];
    for (x, want) in known {
        let got = normal_cumulative(x);
        assert!((got / want - 1.0).abs() < 1e-13, "Φ({x}) = {got:e} instead of {want:e}");
    }
}

#[test]
fn values_and_derivatives_agree_with_f64() {
    let x = points(150_000, 1e-4);
    let wide = |f: fn(f64) -> f64| -> Vec<f64> { x.iter().map(|&x| f(f64::from(x))).collect() };
    let (values, slopes, curvatures) = (wide(gelu), wide(slope), wide(curvature));
    for_every_kernel(|kernels| {
        let name = kernels.name();
        let (mut value, mut both, mut derivative) = (vec![0.0; x.len()], vec![0.0; x.len()], vec![0.0; x.len()]);
        kernels.gelu(&x, &mut value);
        kernels.gelu_and_slope(&x, &mut both, &mut derivative);
        assert_eq!(value, both, "{name}: one pass and two give the same values");
        let allowed = |index: usize, _: f64| 2e-7 * f64::from(x[index].abs()).max(1.0);
        assert_close(&format!("{name} gelu"), &value, &values, allowed);
        assert_close(&format!("{name} gelu'"), &derivative, &slopes, |_, _| 4e-7);
        let ones = vec![1.0; x.len()];
        let mut product = vec![0.0; x.len()];
        kernels.gelu_backward(&x, &ones, &mut product);
        assert_eq!(product, derivative, "{name}: backward of 1 is the slope");
        let zeros = vec![0.0; x.len()];
        let mut bend = vec![0.0; x.len()];
        kernels.gelu_backward_tangent(&x, &ones, &ones, &zeros, &mut bend);
        let finite = |_: usize, _: f64| 6e-7;
        assert_close(&format!("{name} gelu''"), &bend, &curvatures, finite);
    });
}

/// Beyond the polynomial's range nothing is left of the other branch, however large x is.
#[test]
fn the_tails_are_flat() {
    let x: Vec<f32> = (0..2_000).map(|i| 5.34 + i as f32 * i as f32).collect();
    let negative: Vec<f32> = x.iter().map(|x| -x).chain([f32::MIN, f32::NEG_INFINITY]).collect();
    for_every_kernel(|kernels| {
        let mut got = vec![0.0; x.len()];
        kernels.gelu(&x, &mut got);
        assert_eq!(got, x, "{}", kernels.name());
        let mut got = vec![1.0; negative.len()];
        kernels.gelu(&negative, &mut got);
        assert!(got.iter().all(|&y| y == got[0] && y.abs() < 2e-7), "{}: {}", kernels.name(), got[0]);
    });
}

#[test]
fn every_length_and_tail_is_computed() {
    for_every_kernel(|kernels| {
        for length in LENGTHS {
            let (x, d) = (noise(length, 1, 6.0), noise(length, 2, 1.0));
            let (xt, dt) = (noise(length, 3, 1.0), noise(length, 4, 1.0));
            let mut out = vec![9.0; length + 1];
            kernels.gelu_backward_tangent(&x, &xt, &d, &dt, &mut out[..length]);
            assert_eq!(out[length], 9.0, "nothing beyond the end is written");
            let want: Vec<f64> = (0..length)
                .map(|i| {
                    let [x, xt, d, dt] = [&x, &xt, &d, &dt].map(|v| f64::from(v[i]));
                    curvature(x) * xt * d + slope(x) * dt
                })
                .collect();
            assert_close(kernels.name(), &out[..length], &want, |_, _| 1e-6);
        }
    });
}

#[test]
fn not_a_number_stays_visible() {
    for_every_kernel(|kernels| {
        let mut out = [0.0; 2];
        kernels.gelu(&[f32::NAN, f32::INFINITY], &mut out);
        assert!(out[0].is_nan() && out[1] == f32::INFINITY);
        kernels.tanh(&[f32::NAN, f32::INFINITY], &mut out);
        assert!(out[0].is_nan() && out[1] == 1.0);
    });
}

#[test]
fn tanh_agrees_with_f64() {
    let x = points(150_000, 1e-4);
    let want: Vec<f64> = x.iter().map(|&x| f64::from(x).tanh()).collect();
    for_every_kernel(|kernels| {
        let mut y = vec![0.0; x.len()];
        kernels.tanh(&x, &mut y);
        let tiny = f64::from(f32::MIN_POSITIVE);
        assert_close(kernels.name(), &y, &want, |_, want| 5e-7 * want.abs() + tiny);
        let d = noise(x.len(), 1, 1.0);
        let mut back = vec![0.0; x.len()];
        kernels.tanh_backward(&y, &d, &mut back);
        let want: Vec<f64> =
            y.iter().zip(&d).map(|(&y, &d)| f64::from(d) * (1.0 - f64::from(y) * f64::from(y))).collect();
        assert_close(kernels.name(), &back, &want, |_, _| 2e-7);
    });
}

#[test]
#[should_panic(expected = "slices of 3 and 4 elements")]
fn lengths_that_differ_are_named() {
    Kernels::best().gelu(&[0.0; 3], &mut [0.0; 4]);
}
