//! How fast the kernels are: one JSON line per kernel, shape, instruction set and thread count.
//!
//! `cargo run --release -p qbert-kernels --example kernel_speed -- [FILTER…]` runs everything whose line contains every
//! FILTER (`gemm_nt`, `avx512`, `"threads":1`…). `best` and `median` are over repeated runs, in the given `unit`.
//! `gemm-crate` is the `gemm` crate on the same product, one sequential call per 128 rows, for comparison.

use std::io::Write;
use std::time::Instant;

use qbert_kernels::{
    AdamW, Compute, DropoutKey, Kernels, LayerNorm, LayerNormGradients, MatMut, MatRef, Normalized, NormalizedMut,
    Start, Threads,
};

const REPEATS: usize = 15;

struct Report {
    filters: Vec<String>,
}

/// What runs the kernel.
#[derive(Clone, Copy)]
struct Runner<'a> {
    kernels: &'a str,
    threads: usize,
}

/// How much one run of a kernel does.
#[derive(Clone, Copy)]
enum Work {
    Flops(usize),
    Bytes(usize),
}

impl Report {
    fn measure(&self, kernel: &str, shape: &str, compute: &Compute, work: Work, run: impl FnMut()) {
        let runner = Runner { kernels: compute.kernels().name(), threads: compute.threads().count() };
        self.measure_as(kernel, shape, runner, work, run);
    }

    fn measure_as(&self, kernel: &str, shape: &str, runner: Runner<'_>, work: Work, mut run: impl FnMut()) {
        let Runner { kernels, threads } = runner;
        let head =
            format!("{{\"kernel\":\"{kernel}\",\"shape\":\"{shape}\",\"kernels\":\"{kernels}\",\"threads\":{threads}");
        if !self.filters.iter().all(|filter| head.contains(filter)) {
            return;
        }
        run();
        let mut seconds: Vec<f64> = (0..REPEATS)
            .map(|_| {
                let start = Instant::now();
                run();
                start.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        let (amount, unit) = match work {
            Work::Flops(flops) => (flops as f64, "GFLOP/s"),
            Work::Bytes(bytes) => (bytes as f64, "GB/s"),
        };
        let rate = |seconds: f64| amount / seconds * 1e-9;
        let line = format!(
            "{head},\"unit\":\"{unit}\",\"best\":{:.1},\"median\":{:.1},\"median_us\":{:.1}}}\n",
            rate(seconds[0]),
            rate(seconds[REPEATS / 2]),
            seconds[REPEATS / 2] * 1e6,
        );
        // A closed pipe is not an error.
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
}

/// Numbers in -1..1 without a pattern.
fn noise(length: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn linear_layers(report: &Report, compute: &Compute) {
    for tokens in [300, 662, 1024, 2048] {
        for (input, output) in [(384, 384), (384, 1536), (1536, 384)] {
            let shape = format!("{tokens}x{input}->{output}");
            let work = Work::Flops(2 * tokens * input * output);
            let (x, w, d_y) = (noise(tokens * input, 1), noise(output * input, 2), noise(tokens * output, 3));
            let bias = noise(output, 4);
            let (mut y, mut d_x) = (vec![0.0; tokens * output], vec![0.0; tokens * input]);
            let mut d_w = vec![0.0; output * input];
            let x = MatRef::new(&x, tokens, input);
            let w = MatRef::new(&w, output, input);
            let d_y = MatRef::new(&d_y, tokens, output);
            report.measure("gemm_nt", &shape, compute, work, || {
                compute.gemm_nt(x, w, Start::Bias(&bias), MatMut::new(&mut y, tokens, output));
            });
            report.measure("gemm_nn", &shape, compute, work, || {
                compute.gemm_nn(d_y, w, Start::ZERO, MatMut::new(&mut d_x, tokens, input));
            });
            report.measure("gemm_tn", &shape, compute, work, || {
                compute.gemm_tn(d_y, x, Start::ACCUMULATE, MatMut::new(&mut d_w, output, input));
            });
        }
    }
}

/// The same products through the `gemm` crate.
fn gemm_crate(report: &Report, threads: &Threads) {
    const ROWS: usize = 128;
    for tokens in [300, 662, 1024, 2048] {
        for (input, output) in [(384, 384), (384, 1536), (1536, 384)] {
            let shape = format!("{tokens}x{input}->{output}");
            let work = Work::Flops(2 * tokens * input * output);
            let (x, w, d_y) = (noise(tokens * input, 1), noise(output * input, 2), noise(tokens * output, 3));
            let (mut y, mut d_x) = (vec![0.0; tokens * output], vec![0.0; tokens * input]);
            let mut d_w = vec![0.0; output * input];
            let runner = Runner { kernels: "gemm-crate", threads: threads.count() };
            report.measure_as("gemm_nt", &shape, runner, work, || {
                threads.for_each_chunk([&mut y], [ROWS * output], |chunk, [y]| {
                    let (m, n, k) = (y.len() / output, output, input);
                    // SAFETY: all three are dense row-major matrices of the shapes given.
                    unsafe {
                        gemm::gemm(
                            m,
                            n,
                            k,
                            y.as_mut_ptr(),
                            1,
                            n as isize,
                            false,
                            x[chunk * ROWS * k..].as_ptr(),
                            1,
                            k as isize,
                            w.as_ptr(),
                            k as isize,
                            1,
                            0.0,
                            1.0,
                            false,
                            false,
                            false,
                            gemm::Parallelism::None,
                        );
                    }
                });
            });
            report.measure_as("gemm_nn", &shape, runner, work, || {
                threads.for_each_chunk([&mut d_x], [ROWS * input], |chunk, [d_x]| {
                    let (m, n, k) = (d_x.len() / input, input, output);
                    // SAFETY: all three are dense row-major matrices of the shapes given.
                    unsafe {
                        gemm::gemm(
                            m,
                            n,
                            k,
                            d_x.as_mut_ptr(),
                            1,
                            n as isize,
                            false,
                            d_y[chunk * ROWS * k..].as_ptr(),
                            1,
                            k as isize,
                            w.as_ptr(),
                            1,
                            n as isize,
                            0.0,
                            1.0,
                            false,
                            false,
                            false,
                            gemm::Parallelism::None,
                        );
                    }
                });
            });
            report.measure_as("gemm_tn", &shape, runner, work, || {
                threads.for_each_chunk([&mut d_w], [ROWS * input], |chunk, [d_w]| {
                    let (m, n, k) = (d_w.len() / input, input, tokens);
                    // SAFETY: all three are dense row-major matrices of the shapes given.
                    unsafe {
                        gemm::gemm(
                            m,
                            n,
                            k,
                            d_w.as_mut_ptr(),
                            1,
                            n as isize,
                            true,
                            d_y[chunk * ROWS..].as_ptr(),
                            output as isize,
                            1,
                            x.as_ptr(),
                            1,
                            n as isize,
                            1.0,
                            1.0,
                            false,
                            false,
                            false,
                            gemm::Parallelism::None,
                        );
                    }
                });
            });
        }
    }
}

/// Attention's products for one sequence, all heads, in the strided views a model uses.
fn attention(report: &Report, compute: &Compute) {
    let (hidden, head) = (384, 32);
    let kernels = compute.kernels();
    for n in [5, 24, 64, 128, 384] {
        let (q, k) = (noise(n * hidden, 1), noise(n * hidden, 2));
        let mut out = vec![0.0; n * hidden];
        let mut scores = noise(n * n, 3);
        let (q, k) = (MatRef::new(&q, n, hidden), MatRef::new(&k, n, hidden));
        let work = Work::Flops(2 * n * n * hidden);
        let columns = |index: usize| index * head..(index + 1) * head;
        report.measure("attention_nt", &format!("{n}x{n} d{head}"), compute, work, || {
            for index in 0..hidden / head {
                let (q, k) = (q.block(0..n, columns(index)), k.block(0..n, columns(index)));
                kernels.gemm_nt(q, k, Start::ZERO, MatMut::new(&mut scores, n, n));
            }
        });
        report.measure("attention_nn", &format!("{n}x{n} d{head}"), compute, work, || {
            for index in 0..hidden / head {
                let p = MatRef::new(&scores, n, n);
                let mut out = MatMut::new(&mut out, n, hidden);
                kernels.gemm_nn(p, k.block(0..n, columns(index)), Start::ZERO, out.block(0..n, columns(index)));
            }
        });
        report.measure("attention_tn", &format!("{n}x{n} d{head}"), compute, work, || {
            for index in 0..hidden / head {
                let p = MatRef::new(&scores, n, n);
                let mut out = MatMut::new(&mut out, n, hidden);
                kernels.gemm_tn(p, k.block(0..n, columns(index)), Start::ZERO, out.block(0..n, columns(index)));
            }
        });
        let rows = hidden / head * n;
        let mut p = noise(rows * n, 4);
        report.measure("softmax", &format!("{rows}x{n}"), compute, Work::Bytes(8 * rows * n), || {
            kernels.softmax(&mut p, n, 0.18);
        });
        let mut d_p = noise(rows * n, 5);
        report.measure("softmax_backward", &format!("{rows}x{n}"), compute, Work::Bytes(12 * rows * n), || {
            kernels.softmax_backward(&p, &mut d_p, n, 0.18);
        });
    }
}

fn vectors(report: &Report, compute: &Compute) {
    for length in [1 << 16, 2048 * 1536] {
        let shape = length.to_string();
        let (x, d) = (noise(length, 1), noise(length, 2));
        let (mut a, mut b, mut c) = (vec![0.0; length], vec![0.0; length], vec![0.0; length]);
        let bytes = |streams: usize| Work::Bytes(4 * streams * length);
        report.measure("gelu", &shape, compute, bytes(2), || compute.gelu(&x, &mut a));
        report.measure("gelu_and_slope", &shape, compute, bytes(3), || compute.gelu_and_slope(&x, &mut a, &mut b));
        report.measure("gelu_backward", &shape, compute, bytes(3), || compute.gelu_backward(&x, &d, &mut a));
        report.measure("dropout", &shape, compute, bytes(2), || {
            compute.dropout(&mut a, DropoutKey::new(1, 2, 3), 0.1);
        });
        let step = AdamW {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            correction1: 0.1,
            correction2: 0.001,
            gradient_scale: 1.0,
        };
        report.measure("adamw", &shape, compute, bytes(7), || {
            compute.adamw(&step, &mut a, &d, &mut b, &mut c);
        });
        report.measure("sum_of_squares", &shape, compute, bytes(1), || {
            std::hint::black_box(compute.sum_of_squares(&x));
        });
    }
}

fn rows(report: &Report, compute: &Compute) {
    let (rows, n) = (2048, 384);
    let shape = format!("{rows}x{n}");
    let bytes = |streams: usize| Work::Bytes(4 * streams * rows * n);
    let (residual, d_out) = (noise(rows * n, 1), noise(rows * n, 2));
    let (mut sum, mut out) = (noise(rows * n, 3), vec![0.0; rows * n]);
    let (mut mean, mut rstd) = (vec![0.0; rows], vec![0.0; rows]);
    let (gamma, beta) = (noise(n, 4), noise(n, 5));
    report.measure("layer_norm_forward", &shape, compute, bytes(4), || {
        let norm = LayerNorm { gamma: &gamma, beta: &beta, epsilon: 1e-12 };
        let target = NormalizedMut { sum: &mut sum, mean: &mut mean, rstd: &mut rstd, out: &mut out };
        compute.layer_norm_forward(norm, Some(&residual), target);
    });
    let (mut d_gamma, mut d_beta) = (vec![0.0; n], vec![0.0; n]);
    report.measure("layer_norm_backward", &shape, compute, bytes(3), || {
        let saved = Normalized { sum: &sum, mean: &mean, rstd: &rstd };
        let gradients = LayerNormGradients { gamma: &mut d_gamma, beta: &mut d_beta };
        compute.layer_norm_backward(&gamma, saved, &d_out, &mut out, gradients);
    });
    report.measure("add_column_sums", &shape, compute, bytes(1), || {
        compute.add_column_sums(MatRef::new(&d_out, rows, n), &mut d_beta);
    });
    let wide = noise(rows * 1536, 6);
    let mut sums = vec![0.0; 1536];
    report.measure("add_column_sums", "2048x1536", compute, Work::Bytes(wide.len() * 4), || {
        compute.add_column_sums(MatRef::new(&wide, rows, 1536), &mut sums);
    });
    report.measure("empty_region", "8 tasks", compute, Work::Bytes(0), || {
        compute.threads().for_each(8, |task| {
            std::hint::black_box(task);
        });
    });
}

fn main() -> Result<(), qbert_kernels::KernelError> {
    let report = Report { filters: std::env::args().skip(1).collect() };
    for count in [1, 2] {
        let threads = Threads::new(count)?;
        for kernels in Kernels::supported() {
            let compute = Compute::new(kernels, threads.clone());
            linear_layers(&report, &compute);
            attention(&report, &compute);
            vectors(&report, &compute);
            rows(&report, &compute);
        }
        gemm_crate(&report, &threads);
    }
    Ok(())
}
