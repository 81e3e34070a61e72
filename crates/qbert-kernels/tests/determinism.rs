//! The same bytes with 1, 2, 3 and 7 threads and on every instruction set, for every operation of `Compute`.
//!
//! Unit tests (`src/tests/same_bits.rs`) compare the instruction sets on all lengths and on special values.

mod common;

use common::{for_every_kernel, noise};
use qbert_kernels::{
    AdamW, CHUNK, Compute, DropoutKey, Kernels, LayerNorm, LayerNormGradients, LayerNormTangents, MatMut, MatRef,
    Normalized, NormalizedMut, Start, Threads,
};

/// Runs everything once and returns every result's bits.
fn everything(compute: &Compute) -> Vec<(&'static str, Vec<u32>)> {
    let mut results: Vec<(&'static str, Vec<f32>)> = Vec::new();
    products(compute, &mut results);
    vectors(compute, &mut results);
    norms(compute, &mut results);
    results.into_iter().map(|(name, values)| (name, values.iter().map(|value| value.to_bits()).collect())).collect()
}

fn products(compute: &Compute, results: &mut Vec<(&'static str, Vec<f32>)>) {
    let (tokens, input, output) = (301, 390, 401);
    let x = noise(tokens * input, 1, 1.0);
    let w = noise(output * input, 2, 1.0);
    let d_y = noise(tokens * output, 3, 1.0);
    let bias = noise(output, 4, 1.0);
    let x = MatRef::new(&x, tokens, input);
    let w = MatRef::new(&w, output, input);
    let d_y = MatRef::new(&d_y, tokens, output);
    let mut y = vec![0.0; tokens * output];
    compute.gemm_nt(x, w, Start::Bias(&bias), MatMut::new(&mut y, tokens, output));
    results.push(("gemm_nt", y));
    let mut d_x = vec![0.5; tokens * input];
    compute.gemm_nn(d_y, w, Start::Scaled(0.5), MatMut::new(&mut d_x, tokens, input));
    results.push(("gemm_nn", d_x));
    let mut d_w = vec![0.5; output * input];
    compute.gemm_tn(d_y, x, Start::ACCUMULATE, MatMut::new(&mut d_w, output, input));
    results.push(("gemm_tn", d_w));
    let mut sums = vec![0.0; output];
    compute.add_column_sums(d_y, &mut sums);
    results.push(("add_column_sums", sums));
}

fn vectors(compute: &Compute, results: &mut Vec<(&'static str, Vec<f32>)>) {
    let length = 5 * CHUNK + 77;
    let [x, d, xt, dt] = [1, 2, 3, 4].map(|seed| noise(length, seed, 2.0));
    let (mut out, mut slope) = (vec![0.0; length], vec![0.0; length]);
    compute.gelu(&x, &mut out);
    results.push(("gelu", out.clone()));
    compute.gelu_and_slope(&x, &mut out, &mut slope);
    results.push(("gelu_and_slope", slope.clone()));
    compute.gelu_backward(&x, &d, &mut out);
    results.push(("gelu_backward", out.clone()));
    compute.gelu_backward_tangent(&x, &xt, &d, &dt, &mut out);
    results.push(("gelu_backward_tangent", out.clone()));
    compute.add_scaled(0.3, &x, &mut out);
    compute.scale(0.7, &mut out);
    compute.dropout(&mut out, DropoutKey::new(1, 2, 3), 0.1);
    results.push(("add_scaled, scale, dropout", out.clone()));
    let squares = compute.sum_of_squares(&x).to_bits();
    let dot = compute.dot(&x, &d).to_bits();
    let halves = [squares, dot].map(|bits| [(bits >> 32) as u32, bits as u32]);
    results.push(("sums", halves.as_flattened().iter().map(|&bits| f32::from_bits(bits)).collect()));
    let step = AdamW {
        learning_rate: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.1,
        correction1: 0.1,
        correction2: 0.01,
        gradient_scale: 1.0,
    };
    let (mut p, mut m, mut v) = (x.clone(), vec![0.0; length], vec![0.0; length]);
    compute.adamw(&step, &mut p, &d, &mut m, &mut v);
    results.extend([("adamw p", p), ("adamw m", m), ("adamw v", v)]);
}

fn norms(compute: &Compute, results: &mut Vec<(&'static str, Vec<f32>)>) {
    let (rows, n) = (333, 50);
    let [mut sum, residual, st, d, dt] = [1, 2, 3, 4, 5].map(|seed| noise(rows * n, seed, 1.0));
    let (gamma, beta) = (noise(n, 6, 1.0), noise(n, 7, 1.0));
    let (mut mean, mut rstd) = (vec![0.0; rows], vec![0.0; rows]);
    let mut out = vec![0.0; rows * n];
    let norm = LayerNorm { gamma: &gamma, beta: &beta, epsilon: 1e-12 };
    let target = NormalizedMut { sum: &mut sum, mean: &mut mean, rstd: &mut rstd, out: &mut out };
    compute.layer_norm_forward(norm, Some(&residual), target);
    results.push(("layer_norm_forward", out.clone()));
    let saved = Normalized { sum: &sum, mean: &mean, rstd: &rstd };
    let (mut d_gamma, mut d_beta) = (vec![0.1; n], vec![0.2; n]);
    let gradients = LayerNormGradients { gamma: &mut d_gamma, beta: &mut d_beta };
    compute.layer_norm_backward(&gamma, saved, &d, &mut out, gradients);
    results.push(("layer_norm_backward", out.clone()));
    compute.layer_norm_forward_tangent(&gamma, saved, &st, &mut out);
    results.push(("layer_norm_forward_tangent", out.clone()));
    let tangents = LayerNormTangents { sum_tangent: &st, d_out: &d, d_out_tangent: &dt };
    compute.layer_norm_backward_tangent(&gamma, saved, tangents, &mut out);
    results.extend([("backward_tangent", out), ("d_gamma", d_gamma), ("d_beta", d_beta)]);
}

#[test]
fn one_two_three_and_seven_threads_give_the_same_bytes() {
    for_every_kernel(|kernels| {
        let one = everything(&Compute::new(kernels, Threads::single()));
        assert!(one.iter().all(|(_, bits)| bits.iter().any(|&bits| bits != 0)));
        for count in [2, 3, 7] {
            let compute = Compute::new(kernels, Threads::new(count).expect("threads"));
            // Twice: the second time scratch memory is reused and holds old numbers.
            for _ in 0..2 {
                for (one, many) in one.iter().zip(everything(&compute)) {
                    assert!(*one == many, "{} {} with {count} threads", kernels.name(), one.0);
                }
            }
        }
    });
}

#[test]
fn every_instruction_set_gives_the_same_bytes() {
    let portable = Kernels::by_name("portable").expect("it runs everywhere");
    let expected = everything(&Compute::new(portable, Threads::single()));
    for_every_kernel(|kernels| {
        for (found, expected) in everything(&Compute::new(kernels, Threads::single())).iter().zip(&expected) {
            assert!(found == expected, "{} {}", kernels.name(), expected.0);
        }
    });
}
