//! AdamW, sums, column sums and the small vector operations against f64.

mod common;

use common::{LENGTHS, assert_close, for_every_kernel, noise, wide};
use qbert_kernels::{AdamW, Compute, MatRef, Threads};

const STEP: AdamW = AdamW {
    learning_rate: 1e-2,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.05,
    correction1: 0.271,
    correction2: 0.002_997_001,
    gradient_scale: 0.25,
};

/// The update as its definition says, in f64.
fn adamw(p: f64, g: f64, m: f64, v: f64) -> [f64; 3] {
    let [lr, b1, b2] = [STEP.learning_rate, STEP.beta1, STEP.beta2].map(f64::from);
    let g = g * f64::from(STEP.gradient_scale);
    let m = b1 * m + (1.0 - b1) * g;
    let v = b2 * v + (1.0 - b2) * g * g;
    let step = m / f64::from(STEP.correction1) / ((v / f64::from(STEP.correction2)).sqrt() + f64::from(STEP.epsilon));
    [p * (1.0 - lr * f64::from(STEP.weight_decay)) - lr * step, m, v]
}

#[test]
fn adamw_agrees_with_its_definition() {
    for_every_kernel(|kernels| {
        for length in LENGTHS {
            let (mut p, g) = (noise(length, 1, 1.0), noise(length, 2, 1.0));
            let mut m = noise(length, 3, 0.1);
            let mut v: Vec<f32> = noise(length, 4, 0.1).iter().map(|v| v * v).collect();
            let want: Vec<[f64; 3]> =
                (0..length).map(|i| adamw(p[i].into(), g[i].into(), m[i].into(), v[i].into())).collect();
            let column = |which: usize| -> Vec<f64> { want.iter().map(|w| w[which]).collect() };
            kernels.adamw(&STEP, &mut p, &g, &mut m, &mut v);
            assert_close("p", &p, &column(0), |_, want| 5e-7 * want.abs().max(1.0));
            assert_close("m", &m, &column(1), |_, _| 1e-7);
            assert_close("v", &v, &column(2), |_, want| 5e-7 * want.abs());
        }
    });
}

/// A parameter whose gradient was always zero only decays.
#[test]
fn adamw_without_gradient_only_decays() {
    for_every_kernel(|kernels| {
        let (mut p, mut m, mut v) = ([2.0; 17], [0.0; 17], [0.0; 17]);
        kernels.adamw(&STEP, &mut p, &[0.0; 17], &mut m, &mut v);
        assert!(p.iter().all(|&p| (p - 2.0 * (1.0 - 0.01 * 0.05)).abs() < 1e-6));
        assert_eq!((m, v), ([0.0; 17], [0.0; 17]));
    });
}

#[test]
fn sums_agree_with_f64() {
    for_every_kernel(|kernels| {
        for length in LENGTHS.into_iter().chain([50_000]) {
            let (a, b) = (noise(length, 1, 3.0), noise(length, 2, 1.0));
            let want: f64 = wide(&a).iter().map(|a| a * a).sum();
            let got = kernels.sum_of_squares(&a);
            assert!((got - want).abs() <= 3e-7 * want, "{length} squares: {got} {want}");
            let terms: Vec<f64> = wide(&a).iter().zip(wide(&b)).map(|(a, b)| a * b).collect();
            let size: f64 = terms.iter().map(|term| term.abs()).sum();
            let want: f64 = terms.iter().sum();
            let got = kernels.dot(&a, &b);
            assert!((got - want).abs() <= 3e-7 * size, "{length} products: {got} {want}");
            let want: f64 = wide(&a).iter().zip(wide(&b)).map(|(a, b)| (a - b).powi(2)).sum();
            let got = kernels.squared_distance(&a, &b);
            assert!((got - want).abs() <= 3e-7 * want, "{length} squared differences: {got} {want}");
            let want: f64 = wide(&a).iter().sum();
            let size: f64 = wide(&a).iter().map(|a| a.abs()).sum();
            let got = kernels.sum(&a);
            assert!((got - want).abs() <= 3e-7 * size, "{length} elements: {got} {want}");
        }
    });
}

#[test]
fn divergences_agree_with_f64() {
    for_every_kernel(|kernels| {
        for length in LENGTHS {
            // Probabilities of every size, and exact zeros.
            let probabilities = |seed: u32| -> Vec<f32> {
                let exponents = noise(length, seed, 60.0);
                let values = exponents.iter().map(|x| if *x > 50.0 { 0.0 } else { (-x.abs()).exp2() });
                values.collect()
            };
            let (p, q) = (probabilities(1), probabilities(2));
            let term = |(p, q): (&f32, &f32)| {
                let (p, q) = (f64::from(*p), f64::from(*q));
                p * (p.max(1e-30).ln() - q.max(1e-30).ln())
            };
            let terms: Vec<f64> = p.iter().zip(&q).map(term).collect();
            let (want, size) = (terms.iter().sum::<f64>(), terms.iter().map(|term| term.abs()).sum::<f64>());
            let got = kernels.divergence(&p, &q);
            assert!((got - want).abs() <= 1e-6 * size.max(1e-3), "{length} terms: {got} {want}");
        }
        assert!(kernels.divergence(&[f32::NAN], &[0.5]).is_nan());
        assert!(kernels.divergence(&[0.5], &[f32::NAN]).is_nan());
    });
}

#[test]
fn sums_of_tiny_and_huge_numbers_are_not_lost() {
    for_every_kernel(|kernels| {
        assert_eq!(kernels.sum(&[1e-42; 100]), f64::from(1e-42_f32) * 100.0);
        let got = kernels.sum_of_squares(&[1e17; 3000]);
        assert!((got / 3e37 - 1.0).abs() < 1e-6, "{got}");
        assert!(kernels.sum_of_squares(&[1e20; 1]).is_infinite());
        assert!(kernels.sum_of_squares(&[f32::NAN; 1]).is_nan());
    });
}

#[test]
fn column_sums_agree_with_f64() {
    for_every_kernel(|kernels| {
        for cols in [1, 7, 8, 16, 17, 63, 64, 65, 130] {
            for rows in [0, 1, 3, 4, 5, 130] {
                let stride = cols + 3;
                let data = noise(rows * stride, 1, 1.0);
                let matrix = MatRef::with_stride(&data, rows, cols, stride);
                let want: Vec<f64> =
                    (0..cols).map(|j| 2.0 + (0..rows).map(|i| f64::from(data[i * stride + j])).sum::<f64>()).collect();
                let mut got = vec![2.0; cols];
                kernels.add_column_sums(matrix, &mut got);
                assert_close("column sums", &got, &want, |_, _| 5e-6);
                let compute = Compute::new(kernels, Threads::single());
                let mut again = vec![2.0; cols];
                compute.add_column_sums(matrix, &mut again);
                assert_eq!(got, again, "split into column blocks");
            }
        }
    });
}

#[test]
fn small_operations_agree_with_scalar_arithmetic() {
    for_every_kernel(|kernels| {
        for length in LENGTHS {
            let (a, b, y) = (noise(length, 1, 1.0), noise(length, 2, 1.0), noise(length, 3, 1.0));
            let check = |what: &str, got: &[f32], want: &dyn Fn(f64, f64, f64) -> f64| {
                let want: Vec<f64> = (0..length).map(|i| want(a[i].into(), b[i].into(), y[i].into())).collect();
                assert_close(what, got, &want, |_, _| 2e-7);
            };
            let mut got = y.clone();
            kernels.add_scaled(0.5, &a, &mut got);
            check("add_scaled", &got, &|a, _, y| y + 0.5 * a);
            let mut got = y.clone();
            kernels.scale(-3.0, &mut got);
            check("scale", &got, &|_, _, y| -3.0 * y);
            let mut got = y.clone();
            kernels.add(&a, &b, &mut got);
            check("add", &got, &|a, b, _| a + b);
            let mut got = y.clone();
            kernels.add_product(&a, &b, &mut got);
            check("add_product", &got, &|a, b, y| y + a * b);
        }
    });
}
