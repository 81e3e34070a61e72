//! Softmax, its derivatives and log-sum-exp against f64, at every row length round a block edge.

mod common;

use common::{LENGTHS, assert_close, for_every_kernel, noise, wide};
use qbert_kernels::SoftmaxTangent;

fn softmax(row: &[f32], scale: f64) -> Vec<f64> {
    let max = row.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(f64::from(x)));
    let powers: Vec<f64> = row.iter().map(|&x| ((f64::from(x) - max) * scale).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| power / total).collect()
}

fn backward(p: &[f64], d: &[f64], scale: f64) -> Vec<f64> {
    let mean: f64 = p.iter().zip(d).map(|(p, d)| p * d).sum();
    p.iter().zip(d).map(|(p, d)| scale * p * (d - mean)).collect()
}

#[test]
fn rows_of_every_length_agree_with_f64() {
    for_every_kernel(|kernels| {
        for cols in LENGTHS.into_iter().filter(|&cols| cols > 0) {
            for (range, scale) in [(3.0, 0.176_776_7), (1.0, 1.0), (100.0, 0.125)] {
                let rows = noise(3 * cols, 1, range);
                let mut got = rows.clone();
                kernels.softmax(&mut got, cols, scale);
                for (row, got) in rows.chunks_exact(cols).zip(got.chunks_exact(cols)) {
                    let want = softmax(row, f64::from(scale));
                    let max = row.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
                    let allowed = |index: usize, want: f64| {
                        let exponent = f64::from(scale) * f64::from(max - row[index]);
                        want * (4e-7 + 1.3e-7 * exponent) + 1e-37
                    };
                    let what = format!("{} softmax of {cols}", kernels.name());
                    assert_close(&what, got, &want, allowed);
                    let total: f64 = wide(got).iter().sum();
                    assert!((total - 1.0).abs() < 1e-6, "{what} sums to {total}");
                }
            }
        }
    });
}

#[test]
fn extreme_rows_stay_probabilities() {
    for_every_kernel(|kernels| {
        for cols in [1, 5, 16, 33] {
            for fill in [3e38, -3e38, 1e-40, 0.0] {
                let mut row = vec![fill; cols];
                kernels.softmax(&mut row, cols, 1.0);
                let want = vec![1.0 / cols as f64; cols];
                assert_close(kernels.name(), &row, &want, |_, want| 1e-6 * want);
            }
            let mut row = vec![-1e30; cols];
            row[cols - 1] = 1e30;
            kernels.softmax(&mut row, cols, 1.0);
            assert_eq!(row[cols - 1], 1.0);
            assert!(row[..cols - 1].iter().all(|&p| p == 0.0));
            // Masked places get nothing; a row with nothing else has no answer.
            row.fill(f32::NEG_INFINITY);
            row[0] = -7.0;
            kernels.softmax(&mut row, cols, 0.5);
            assert_eq!(row[0], 1.0);
            assert!(row[1..].iter().all(|&p| p == 0.0));
            row.fill(f32::NEG_INFINITY);
            kernels.softmax(&mut row, cols, 0.5);
            assert!(row.iter().all(|p| p.is_nan()));
            row.fill(1.0);
            row[cols / 2] = f32::NAN;
            kernels.softmax(&mut row, cols, 0.5);
            assert!(row.iter().all(|p| p.is_nan()));
        }
        kernels.softmax(&mut [], 7, 1.0);
    });
}

#[test]
fn the_backward_pass_agrees_with_f64() {
    for_every_kernel(|kernels| {
        for cols in LENGTHS.into_iter().filter(|&cols| cols > 0) {
            let scale = 0.3;
            let mut p = noise(2 * cols, 1, 3.0);
            kernels.softmax(&mut p, cols, 1.0);
            let d = noise(2 * cols, 2, 1.0);
            let mut got = d.clone();
            kernels.softmax_backward(&p, &mut got, cols, scale);
            for (index, got) in got.chunks_exact(cols).enumerate() {
                let row = index * cols..(index + 1) * cols;
                let want = backward(&wide(&p[row.clone()]), &wide(&d[row]), f64::from(scale));
                assert_close(kernels.name(), got, &want, |_, _| 3e-7);
            }
        }
    });
}

/// Against a central difference of the f64 backward pass along the tangents.
#[test]
fn the_backward_tangent_is_the_derivative_of_the_backward_pass() {
    for_every_kernel(|kernels| {
        for cols in [1, 7, 16, 33, 100] {
            let scale = 0.3;
            let mut p = noise(cols, 1, 3.0);
            kernels.softmax(&mut p, cols, 1.0);
            let (pt, d) = (noise(cols, 2, 1.0), noise(cols, 3, 1.0));
            let dt = noise(cols, 4, 1.0);
            let mut got = dt.clone();
            let data = SoftmaxTangent { p: &p, p_tangent: &pt, d_p: &d, d_p_tangent: &mut got };
            kernels.softmax_backward_tangent(data, cols, scale);
            let at = |step: f64| {
                let moved = |x: &[f32], t: &[f32]| -> Vec<f64> {
                    wide(x).iter().zip(wide(t)).map(|(x, t)| x + step * t).collect()
                };
                backward(&moved(&p, &pt), &moved(&d, &dt), f64::from(scale))
            };
            let step = 1e-4;
            let want: Vec<f64> = at(step).iter().zip(at(-step)).map(|(a, b)| (a - b) / (2.0 * step)).collect();
            assert_close(kernels.name(), &got, &want, |_, want| 1e-5 + 1e-5 * want.abs());
        }
    });
}

#[test]
fn log_sum_exp_agrees_with_f64() {
    for_every_kernel(|kernels| {
        assert_eq!(kernels.log_sum_exp(&[]), f32::NEG_INFINITY);
        for length in LENGTHS.into_iter().filter(|&length| length > 0) {
            for range in [1.0, 50.0, 1e5] {
                let row = noise(length, 1, range);
                let max = wide(&row).into_iter().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = wide(&row).iter().map(|x| (x - max).exp()).sum();
                let want = max + total.ln();
                let got = kernels.log_sum_exp(&row);
                assert_close(kernels.name(), &[got], &[want], |_, want| 3e-7 * want.abs().max(1.0));
            }
        }
    });
}

#[test]
#[should_panic(expected = "10 elements are not whole rows of 4")]
fn broken_rows_are_refused() {
    qbert_kernels::Kernels::best().softmax(&mut [0.0; 10], 4, 1.0);
}
