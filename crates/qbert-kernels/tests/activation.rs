//! The activations and their derivatives against f64, and softmax with a bias.

mod common;

use common::{assert_close, for_every_kernel, noise, points};
use qbert_kernels::{Activation, ActivationTangent, BiasRows, DistanceBias};

/// Value, first and second derivative.
fn exact(activation: Activation, x: f64) -> [f64; 3] {
    let gate = |g: f64, first: f64, second: f64| {
        let sigma = 1.0 / (1.0 + (-g).exp());
        let falling = sigma * (1.0 - sigma);
        let bend = 2.0 * first + x * second + x * first * first * (1.0 - 2.0 * sigma);
        let or_zero = |value: f64| if falling == 0.0 { 0.0 } else { value };
        [if sigma == 0.0 { 0.0 } else { x * sigma }, sigma + or_zero(x * first * falling), or_zero(falling * bend)]
    };
    match activation {
        Activation::GeluTanh => {
            let a = (8.0 / std::f64::consts::PI).sqrt();
            let c = 0.044_715;
            gate(a * (x + c * x.powi(3)), a * (1.0 + 3.0 * c * x * x), 6.0 * a * c * x)
        }
        Activation::Silu => gate(x, 1.0, 0.0),
        Activation::Relu => [x.max(0.0), f64::from(u8::from(x > 0.0)), 0.0],
        Activation::Gelu => {
            let (cumulative, density) = (common::normal_cumulative(x), common::normal_density(x));
            [x * cumulative, cumulative + x * density, density * (2.0 - x * x)]
        }
    }
}

#[test]
fn values_and_derivatives_agree_with_f64() {
    let x = points(100_000, 2e-4);
    for activation in Activation::ALL {
        let wide = |which: usize| x.iter().map(|&x| exact(activation, f64::from(x))[which]).collect::<Vec<f64>>();
        let (values, slopes, curvatures) = (wide(0), wide(1), wide(2));
        for_every_kernel(|kernels| {
            let name = format!("{} {activation:?}", kernels.name());
            let (mut value, mut both, mut slope) = (vec![0.0; x.len()], vec![0.0; x.len()], vec![0.0; x.len()]);
            kernels.activate(activation, &x, &mut value);
            kernels.activate_and_slope(activation, &x, &mut both, &mut slope);
            assert_eq!(value, both, "{name}: one pass and two give the same values");
            assert_close(&name, &value, &values, |index, _| 3e-7 * f64::from(x[index].abs()).max(1.0));
            assert_close(&format!("{name}'"), &slope, &slopes, |_, _| 6e-7);
            let (ones, zeros, mut bend) = (vec![1.0; x.len()], vec![0.0; x.len()], vec![0.0; x.len()]);
            let given = ActivationTangent { x: &x, x_tangent: &ones, d_out: &ones, d_out_tangent: &zeros };
            kernels.activation_backward_tangent(activation, given, &mut bend);
            assert_close(&format!("{name}''"), &bend, &curvatures, |_, _| 1e-6);
            let given = ActivationTangent { x: &x, x_tangent: &zeros, d_out: &ones, d_out_tangent: &ones };
            kernels.activation_backward_tangent(activation, given, &mut bend);
            assert_eq!(bend, slope, "{name}: the tangent of a gradient that alone moves is the slope");
        });
    }
}

#[test]
fn a_number_that_is_none_stays_none() {
    for_every_kernel(|kernels| {
        for activation in Activation::ALL {
            let (mut value, mut slope) = ([0.0; 2], [0.0; 2]);
            kernels.activate_and_slope(activation, &[f32::NAN, 1.0], &mut value, &mut slope);
            assert!(value[0].is_nan() && value[1] > 0.5, "{} {activation:?}: {value:?}", kernels.name());
        }
    });
}

#[test]
fn softmax_with_a_bias_agrees_with_f64() {
    for_every_kernel(|kernels| {
        for length in [1, 2, 7, 16, 17, 40, 130] {
            let (heads, longest, scale) = (2, length + 5, 0.37);
            let table = noise(2 * 2 * longest, 5, 3.0);
            let at = |head: usize, distance: isize| table[2 * (distance + longest as isize) as usize + head];
            let bias = DistanceBias::new(heads, longest, at);
            for head in 0..heads {
                let scores = noise(length * length, 6, 8.0);
                let mut rows = scores.clone();
                kernels.softmax_biased(&mut rows, length, scale, BiasRows { bias: &bias, head, first: 0 });
                for (query, (found, scores)) in rows.chunks(length).zip(scores.chunks(length)).enumerate() {
                    let z = |key: usize| {
                        let own = at(head, key as isize - query as isize);
                        (f64::from(scores[key]) * f64::from(scale) + f64::from(own)).exp()
                    };
                    let total: f64 = (0..length).map(z).sum();
                    let want: Vec<f64> = (0..length).map(|key| z(key) / total).collect();
                    assert_close(&format!("{} length {length}", kernels.name()), found, &want, |_, p| 4e-6 * p + 1e-9);
                }
                // Some rows alone are the same as in the whole.
                let from = length / 2;
                let mut part = scores[from * length..].to_vec();
                kernels.softmax_biased(&mut part, length, scale, BiasRows { bias: &bias, head, first: from });
                assert_eq!(part, rows[from * length..]);
            }
        }
    });
}
