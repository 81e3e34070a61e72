//! LayerNorm's four passes against f64: values, gradients, and tangents by central differences.

mod common;

use common::{assert_close, for_every_kernel, noise, wide};
use qbert_kernels::{Kernels, LayerNorm, LayerNormGradients, LayerNormTangents, Normalized, NormalizedMut};

const EPSILON: f32 = 1e-5;
const WIDTHS: [usize; 11] = [1, 2, 7, 15, 16, 17, 33, 63, 64, 65, 384];
const ROWS: usize = 5;

/// `x̂` and `rstd` of one row.
fn hat(s: &[f64]) -> (Vec<f64>, f64) {
    let n = s.len() as f64;
    let mean = s.iter().sum::<f64>() / n;
    let variance = s.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n;
    let rstd = 1.0 / (variance + f64::from(EPSILON)).sqrt();
    (s.iter().map(|s| (s - mean) * rstd).collect(), rstd)
}

fn forward(s: &[f64], gamma: &[f64], beta: &[f64]) -> Vec<f64> {
    let (hat, _) = hat(s);
    (0..s.len()).map(|i| hat[i] * gamma[i] + beta[i]).collect()
}

fn backward(s: &[f64], gamma: &[f64], d: &[f64]) -> Vec<f64> {
    let (hat, rstd) = hat(s);
    let n = s.len() as f64;
    let g: Vec<f64> = gamma.iter().zip(d).map(|(gamma, d)| gamma * d).collect();
    let mean = g.iter().sum::<f64>() / n;
    let along = g.iter().zip(&hat).map(|(g, hat)| g * hat).sum::<f64>() / n;
    (0..s.len()).map(|i| rstd * (g[i] - mean - hat[i] * along)).collect()
}

struct Layer {
    n: usize,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    sum: Vec<f32>,
    mean: Vec<f32>,
    rstd: Vec<f32>,
    out: Vec<f32>,
}

impl Layer {
    fn forward(kernels: Kernels, n: usize, offset: f32, residual: Option<&[f32]>) -> Self {
        let mut sum = noise(ROWS * n, 1, 2.0);
        sum.iter_mut().for_each(|s| *s += offset);
        let mut layer = Self {
            n,
            gamma: noise(n, 2, 1.5),
            beta: noise(n, 3, 1.0),
            sum,
            mean: vec![0.0; ROWS],
            rstd: vec![0.0; ROWS],
            out: vec![0.0; ROWS * n],
        };
        let norm = LayerNorm { gamma: &layer.gamma, beta: &layer.beta, epsilon: EPSILON };
        let target =
            NormalizedMut { sum: &mut layer.sum, mean: &mut layer.mean, rstd: &mut layer.rstd, out: &mut layer.out };
        kernels.layer_norm_forward(norm, residual, target);
        layer
    }

    fn saved(&self) -> Normalized<'_> {
        Normalized { sum: &self.sum, mean: &self.mean, rstd: &self.rstd }
    }

    /// The f64 version of a row of some matrix of this shape.
    fn row(&self, data: &[f32], row: usize) -> Vec<f64> {
        wide(&data[row * self.n..(row + 1) * self.n])
    }
}

#[test]
fn forward_agrees_with_f64_and_adds_the_residual() {
    for_every_kernel(|kernels| {
        for n in WIDTHS {
            let residual = noise(ROWS * n, 9, 1.0);
            let plain = Layer::forward(kernels, n, 0.0, None);
            let layer = Layer::forward(kernels, n, 0.0, Some(&residual));
            for (index, sum) in layer.sum.iter().enumerate() {
                assert_eq!(*sum, plain.sum[index] + residual[index]);
            }
            let (gamma, beta) = (wide(&layer.gamma), wide(&layer.beta));
            for row in 0..ROWS {
                let s = layer.row(&layer.sum, row);
                let want = forward(&s, &gamma, &beta);
                let got = &layer.out[row * n..(row + 1) * n];
                assert_close(&format!("{} n={n}", kernels.name()), got, &want, |_, _| 3e-6);
                let mean = s.iter().sum::<f64>() / n as f64;
                assert_close("mean", &[layer.mean[row]], &[mean], |_, _| 5e-7);
                assert_close("rstd", &[layer.rstd[row]], &[hat(&s).1], |_, want| 2e-6 * want);
            }
        }
    });
}

/// A large common offset must not eat the variance (that is why there are two passes).
#[test]
fn a_large_mean_does_not_spoil_the_variance() {
    for_every_kernel(|kernels| {
        let layer = Layer::forward(kernels, 384, 1000.0, None);
        for row in 0..ROWS {
            let want = hat(&layer.row(&layer.sum, row)).1;
            assert_close(kernels.name(), &[layer.rstd[row]], &[want], |_, want| 1e-5 * want);
        }
    });
}

#[test]
fn backward_agrees_with_f64_and_accumulates() {
    for_every_kernel(|kernels| {
        for n in WIDTHS {
            let layer = Layer::forward(kernels, n, 0.0, None);
            let d = noise(ROWS * n, 4, 1.0);
            let mut d_in = vec![0.0; ROWS * n];
            let (mut d_gamma, mut d_beta) = (vec![1.0; n], vec![-1.0; n]);
            let gradients = LayerNormGradients { gamma: &mut d_gamma, beta: &mut d_beta };
            kernels.layer_norm_backward(&layer.gamma, layer.saved(), &d, &mut d_in, gradients);
            let gamma = wide(&layer.gamma);
            let (mut want_gamma, mut want_beta) = (vec![1.0; n], vec![-1.0; n]);
            for row in 0..ROWS {
                let (s, d) = (layer.row(&layer.sum, row), layer.row(&d, row));
                let want = backward(&s, &gamma, &d);
                let (hat, rstd) = hat(&s);
                let got = &d_in[row * n..(row + 1) * n];
                assert_close(&format!("{} n={n}", kernels.name()), got, &want, |_, _| 3e-6 * rstd);
                for i in 0..n {
                    want_gamma[i] += d[i] * hat[i];
                    want_beta[i] += d[i];
                }
            }
            assert_close("d_gamma", &d_gamma, &want_gamma, |_, _| 1e-5);
            assert_close("d_beta", &d_beta, &want_beta, |_, _| 2e-6);
        }
    });
}

#[test]
fn tangents_agree_with_central_differences() {
    let step = 1e-4;
    let moved = |x: &[f64], t: &[f64], step: f64| -> Vec<f64> { x.iter().zip(t).map(|(x, t)| x + step * t).collect() };
    let slope = |plus: &[f64], minus: &[f64]| -> Vec<f64> {
        plus.iter().zip(minus).map(|(plus, minus)| (plus - minus) / (2.0 * step)).collect()
    };
    for_every_kernel(|kernels| {
        for n in [2, 16, 17, 65, 384] {
            let layer = Layer::forward(kernels, n, 0.0, None);
            let [st, d, dt] = [5, 6, 7].map(|seed| noise(ROWS * n, seed, 1.0));
            let (mut out, mut back) = (vec![0.0; ROWS * n], vec![0.0; ROWS * n]);
            kernels.layer_norm_forward_tangent(&layer.gamma, layer.saved(), &st, &mut out);
            let tangents = LayerNormTangents { sum_tangent: &st, d_out: &d, d_out_tangent: &dt };
            kernels.layer_norm_backward_tangent(&layer.gamma, layer.saved(), tangents, &mut back);
            let (gamma, beta) = (wide(&layer.gamma), wide(&layer.beta));
            for row in 0..ROWS {
                let [s, st, d, dt] = [&layer.sum, &st, &d, &dt].map(|data| layer.row(data, row));
                let at = |step: f64| forward(&moved(&s, &st, step), &gamma, &beta);
                let want = slope(&at(step), &at(-step));
                let size = want.iter().fold(1.0_f64, |size, x| size.max(x.abs()));
                let part = row * n..(row + 1) * n;
                assert_close("forward tangent", &out[part.clone()], &want, |_, _| 2e-5 * size);
                let at = |step: f64| backward(&moved(&s, &st, step), &gamma, &moved(&d, &dt, step));
                let want = slope(&at(step), &at(-step));
                let size = want.iter().fold(1.0_f64, |size, x| size.max(x.abs()));
                assert_close("backward tangent", &back[part], &want, |_, _| 2e-5 * size);
            }
        }
    });
}

#[test]
#[should_panic(expected = "6 elements where 2 rows of 4 were expected")]
fn shapes_that_differ_are_named() {
    let saved = Normalized { sum: &[0.0; 8], mean: &[0.0; 2], rstd: &[0.0; 2] };
    Kernels::best().layer_norm_forward_tangent(&[1.0; 4], saved, &[0.0; 6], &mut [0.0; 8]);
}
