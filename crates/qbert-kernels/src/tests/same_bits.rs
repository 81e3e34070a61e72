//! Every float kernel gives the same bits on every instruction set: those of this CPU, and the two that exist for tests
//! only, with vectors of 4 and of 16.
//!
//! A NaN counts as equal to any NaN: CPUs differ in its sign and payload, which no kernel looks at.

use super::{codes, noise};
use crate::int::{
    AttentionInput, Codes, EmbeddingRows, EmbeddingTable, LinearInput, LinearLayer, LinearOutput, LinearParams,
    NormOutput, PackedWeights, Quantizer, pack,
};
use crate::{
    Activation, ActivationTangent, AdamW, BiasRows, Compute, DistanceBias, DropoutKey, Kernels, LayerNorm,
    LayerNormGradients, LayerNormTangents, MatMut, MatRef, Normalized, NormalizedMut, SoftmaxTangent, Start, Threads,
};

/// Results by name, in the order they were computed.
type Results = Vec<(&'static str, Vec<u64>)>;

fn bits(values: &[f32]) -> Vec<u64> {
    values.iter().map(|value| if value.is_nan() { u64::MAX } else { value.to_bits().into() }).collect()
}

fn bits_of_sum(value: f64) -> Vec<u64> {
    vec![if value.is_nan() { u64::MAX } else { value.to_bits() }]
}

/// What the numbers are like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Numbers {
    /// Between -3 and 3.
    Usual,
    /// Of every size that a float can have: products overflow and underflow.
    AnySize,
    /// Usual ones with a special value here and there.
    Special,
}

const SPECIAL: [f32; 12] = [
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    0.0,
    -0.0,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    -1e-40,
    1.5e-45,
    -87.336_54,
    88.4,
];

impl Numbers {
    pub(super) const ALL: [Self; 3] = [Self::Usual, Self::AnySize, Self::Special];

    pub(super) fn take(self, length: usize, seed: u32) -> Vec<f32> {
        let mut values = noise(length, seed);
        let choice: Vec<u32> = noise(length, seed + 1000).iter().map(|value| ((value + 1.0) * 1e6) as u32).collect();
        for (value, choice) in values.iter_mut().zip(choice) {
            *value = match self {
                Self::AnySize => *value * f32::from_bits((choice % 254 + 1) << 23),
                Self::Special if choice.is_multiple_of(37) => SPECIAL[(choice / 37) as usize % SPECIAL.len()],
                _ => *value * 3.0,
            };
        }
        values
    }
}

fn elementwise(kernels: Kernels, numbers: Numbers, length: usize, results: &mut Results) {
    let [x, d, xt, dt] = [1, 2, 3, 4].map(|seed| numbers.take(length, seed));
    let mut out = vec![0.0; length];
    let mut slope = vec![0.0; length];
    kernels.gelu(&x, &mut out);
    results.push(("gelu", bits(&out)));
    kernels.gelu_and_slope(&x, &mut out, &mut slope);
    results.push(("gelu_and_slope", bits(&[&out[..], &slope].concat())));
    kernels.gelu_backward(&x, &d, &mut out);
    results.push(("gelu_backward", bits(&out)));
    kernels.gelu_backward_tangent(&x, &xt, &d, &dt, &mut out);
    results.push(("gelu_backward_tangent", bits(&out)));
    for activation in Activation::ALL {
        kernels.activate(activation, &x, &mut out);
        results.push(("activate", bits(&out)));
        kernels.activate_and_slope(activation, &x, &mut out, &mut slope);
        results.push(("activate_and_slope", bits(&[&out[..], &slope].concat())));
        let given = ActivationTangent { x: &x, x_tangent: &xt, d_out: &d, d_out_tangent: &dt };
        kernels.activation_backward_tangent(activation, given, &mut out);
        results.push(("activation_backward_tangent", bits(&out)));
    }
    kernels.tanh(&x, &mut out);
    results.push(("tanh", bits(&out)));
    kernels.tanh_in_place(&mut out);
    results.push(("tanh_in_place", bits(&out)));
    kernels.tanh_backward(&x, &d, &mut out);
    results.push(("tanh_backward", bits(&out)));
    out.copy_from_slice(&d);
    kernels.add_scaled(0.37, &x, &mut out);
    results.push(("add_scaled", bits(&out)));
    kernels.scale(0.7, &mut out);
    results.push(("scale", bits(&out)));
    kernels.add(&x, &d, &mut out);
    results.push(("add", bits(&out)));
    kernels.add_product(&xt, &dt, &mut out);
    results.push(("add_product", bits(&out)));
    kernels.multiply(&x, &mut out);
    results.push(("multiply", bits(&out)));
    kernels.dropout(&mut out, DropoutKey::new(1, 2, 3), 17, 0.3);
    results.push(("dropout", bits(&out)));
    let step = AdamW {
        learning_rate: 0.01,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.1,
        correction1: 0.271,
        correction2: 0.003,
        gradient_scale: 0.9,
    };
    let (mut p, mut m, mut v) = (x.clone(), xt.clone(), dt.iter().map(|v| v.abs()).collect::<Vec<_>>());
    kernels.adamw(&step, &mut p, &d, &mut m, &mut v);
    results.push(("adamw", bits(&[p, m, v].concat())));
}

fn sums(kernels: Kernels, numbers: Numbers, length: usize, results: &mut Results) {
    let (a, b) = (numbers.take(length, 5), numbers.take(length, 6));
    results.push(("dot", bits_of_sum(kernels.dot(&a, &b))));
    results.push(("sum_of_squares", bits_of_sum(kernels.sum_of_squares(&a))));
    results.push(("squared_distance", bits_of_sum(kernels.squared_distance(&a, &b))));
    results.push(("divergence", bits_of_sum(kernels.divergence(&a, &b))));
    results.push(("sum", bits_of_sum(kernels.sum(&a))));
    results.push(("log_sum_exp", bits(&[kernels.log_sum_exp(&a)])));
    for rows in [1, 2, 7] {
        let matrix = numbers.take(rows * length, 7);
        let mut out = noise(length, 8);
        kernels.add_column_sums(MatRef::new(&matrix, rows, length), &mut out);
        results.push(("add_column_sums", bits(&out)));
    }
}

fn rows(kernels: Kernels, numbers: Numbers, n: usize, results: &mut Results) {
    let rows = 5;
    let [x, residual, xt, d, dt] = [9, 10, 11, 12, 13].map(|seed| numbers.take(rows * n, seed));
    let mut p = x.clone();
    kernels.softmax(&mut p, n, 0.31);
    results.push(("softmax", bits(&p)));
    let table = noise(2 * n + 4, 37);
    let bias = DistanceBias::new(1, p.len() / n + n, |_, distance| table[distance.unsigned_abs() % table.len()]);
    let mut biased = p.clone();
    kernels.softmax_biased(&mut biased, n, 0.31, BiasRows { bias: &bias, head: 0, first: 0 });
    results.push(("softmax_biased", bits(&biased)));
    let mut out = d.clone();
    kernels.softmax_backward(&p, &mut out, n, 0.31);
    results.push(("softmax_backward", bits(&out)));
    let mut out = dt.clone();
    let tangent = SoftmaxTangent { p: &p, p_tangent: &xt, d_p: &d, d_p_tangent: &mut out };
    kernels.softmax_backward_tangent(tangent, n, 0.31);
    results.push(("softmax_backward_tangent", bits(&out)));

    let (gamma, beta) = (noise(n, 14), noise(n, 15));
    let (mut sum, mut mean, mut rstd, mut out) = (x, vec![0.0; rows], vec![0.0; rows], vec![0.0; rows * n]);
    let target = NormalizedMut { sum: &mut sum, mean: &mut mean, rstd: &mut rstd, out: &mut out };
    kernels.layer_norm_forward(LayerNorm { gamma: &gamma, beta: &beta, epsilon: 1e-5 }, Some(&residual), target);
    results.push(("layer_norm_forward", bits(&[&sum[..], &mean, &rstd, &out].concat())));
    let saved = Normalized { sum: &sum, mean: &mean, rstd: &rstd };
    let (mut d_gamma, mut d_beta) = (vec![0.1; n], vec![0.2; n]);
    let gradients = LayerNormGradients { gamma: &mut d_gamma, beta: &mut d_beta };
    kernels.layer_norm_backward(&gamma, saved, &d, &mut out, gradients);
    results.push(("layer_norm_backward", bits(&[&out[..], &d_gamma, &d_beta].concat())));
    kernels.layer_norm_forward_tangent(&gamma, saved, &xt, &mut out);
    results.push(("layer_norm_forward_tangent", bits(&out)));
    let tangents = LayerNormTangents { sum_tangent: &xt, d_out: &d, d_out_tangent: &dt };
    kernels.layer_norm_backward_tangent(&gamma, saved, tangents, &mut out);
    results.push(("layer_norm_backward_tangent", bits(&out)));
}

fn products(compute: &Compute, numbers: Numbers, (m, n, k): (usize, usize, usize), results: &mut Results) {
    let (a, b, bias) = (numbers.take(m * k, 16), numbers.take(n * k, 17), numbers.take(n, 18));
    let (row_a, column_a) = (MatRef::new(&a, m, k), MatRef::new(&a, k, m));
    let (row_b, column_b) = (MatRef::new(&b, k, n), MatRef::new(&b, n, k));
    for (name, start) in [
        ("product on zeros", Start::ZERO),
        ("product on a bias", Start::Bias(&bias)),
        ("product on C", Start::ACCUMULATE),
        ("product on scaled C", Start::Scaled(0.3)),
    ] {
        let c = noise(m * n, 19);
        for small in [true, false] {
            let mut c = [c.clone(), c.clone(), c.clone()];
            let [nt, nn, tn] = c.each_mut().map(|c| MatMut::new(c, m, n));
            if small {
                let kernels = compute.kernels();
                kernels.gemm_nt(row_a, column_b, start, nt);
                kernels.gemm_nn(row_a, row_b, start, nn);
                kernels.gemm_tn(column_a, row_b, start, tn);
            } else {
                compute.gemm_nt(row_a, column_b, start, nt);
                compute.gemm_nn(row_a, row_b, start, nn);
                compute.gemm_tn(column_a, row_b, start, tn);
            }
            results.push((name, bits(&c.concat())));
        }
    }
}

/// The float parts of integer inference.
fn integer_layers(compute: &Compute, tokens: usize, inputs: usize, neurons: usize, results: &mut Results) {
    let kernels = compute.kernels();
    let numbers = |codes: &Codes| codes.to_codes().into_iter().map(u64::from).collect::<Vec<_>>();
    let sized = |cols| {
        let mut codes = Codes::new(cols);
        codes.resize(tokens);
        codes
    };
    let weights = codes(neurons * inputs, 20, 8);
    let packed = pack(&weights, 3, neurons, inputs).expect("a good matrix");
    let weights = PackedWeights::new(3, neurons, inputs, &packed).expect("just packed");
    let scaled = |seed, factor: f32| noise(neurons, seed).iter().map(|value| value * factor).collect::<Vec<_>>();
    let params = LinearParams::new(kernels, &weights, &scaled(21, 0.03), &scaled(22, 0.1), &scaled(23, 1.0));
    let matrix = Codes::from_codes(&codes(tokens * inputs, 24, 256), inputs);
    let input = LinearInput { codes: &matrix, quantizer: Quantizer::new(0.02, 117) };
    let quantizer = Quantizer::new(0.031, 99);

    let (mut float, mut sum) = (vec![0.0; tokens * neurons], noise(tokens * neurons, 25));
    let (mut plain, mut gelu) = (sized(neurons), sized(neurons));
    for activation in Activation::ALL {
        let mut codes = sized(neurons);
        let output = LinearOutput::Activated(activation, &mut codes, quantizer);
        compute.linear(input, [LinearLayer { weights, params: &params, output }]);
        results.push(("linear with an activation", numbers(&codes)));
    }
    for (name, output) in [
        ("linear to f32", LinearOutput::Float(MatMut::new(&mut float, tokens, neurons))),
        ("linear added", LinearOutput::Add(MatMut::new(&mut sum, tokens, neurons))),
        ("linear to codes", LinearOutput::Codes(&mut plain, quantizer)),
        ("linear with GELU", LinearOutput::Activated(Activation::Gelu, &mut gelu, quantizer)),
    ] {
        compute.linear(input, [LinearLayer { weights, params: &params, output }]);
        results.push((name, Vec::new()));
    }
    let place = results.len() - 4;
    let found = [bits(&float), bits(&sum), numbers(&plain), numbers(&gelu)];
    results[place..].iter_mut().zip(found).for_each(|(result, found)| result.1 = found);

    let (gamma, beta) = (noise(neurons, 26), noise(neurons, 27));
    let norm = LayerNorm { gamma: &gamma, beta: &beta, epsilon: 1e-12 };
    let (mut hidden, mut after) = (noise(tokens * neurons, 28), sized(neurons));
    let output = NormOutput { norm, hidden: &mut hidden, codes: Some((&mut after, quantizer)) };
    compute.linear_norm(input, weights, &params, output);
    results.push(("linear, residual, LayerNorm", [bits(&hidden), numbers(&after)].concat()));
    let output = NormOutput { norm, hidden: &mut hidden, codes: Some((&mut after, quantizer)) };
    compute.norm_to_codes(output);
    results.push(("LayerNorm to codes", [bits(&hidden), numbers(&after)].concat()));

    let [query, key, value] = [29, 30, 31].map(|seed| Codes::from_codes(&codes(tokens * inputs, seed, 256), inputs));
    let table = noise(2 * tokens, 36);
    let bias = DistanceBias::new(1, tokens, |_, distance| table[distance.unsigned_abs() + usize::from(distance < 0)]);
    for (step, bias) in [0.002, 0.02, 3e38].into_iter().flat_map(|step| [(step, None), (step, Some(&bias))]) {
        let quantizers = Quantizer::new(step, 120);
        let input = AttentionInput {
            query: (&query, quantizers),
            key: (&key, quantizers),
            value: (&value, quantizer),
            heads: 1,
            starts: &[0, tokens / 3, tokens],
            bias,
            window: None,
        };
        let mut context = sized(inputs);
        compute.attention(&input, &mut context, Quantizer::new(0.004, 128));
        results.push(("attention", numbers(&context)));
    }

    let values = Numbers::Special.take(tokens * inputs, 32);
    let mut quantized = sized(inputs);
    compute.quantize(&values, &mut quantized, quantizer);
    results.push(("quantize", numbers(&quantized)));
    let mut values = vec![0.0; tokens * inputs];
    compute.dequantize(&quantized, quantizer, &mut values);
    results.push(("dequantize", bits(&values)));
    let rows = EmbeddingRows::pack(&codes(2 * inputs, 33, 32), 5, 2, inputs).expect("a good table");
    let rows = EmbeddingRows::new(5, 2, inputs, &rows).expect("just packed");
    let (steps, lows) = (noise(inputs, 34), noise(inputs, 35));
    let table = EmbeddingTable { rows, by_row: false, steps: &steps, lows: &lows };
    let mut out = vec![0.0; inputs];
    kernels.write_embedding(table, 0, &mut out);
    kernels.add_embedding(table, 1, &mut out);
    results.push(("embedding", bits(&out)));
}

/// Compares all instruction sets with the portable one.
#[track_caller]
fn assert_same(what: &str, results: impl Fn(Kernels) -> Results) {
    let sets = Kernels::supported();
    let (portable, others) = sets.split_last().expect("portable is always there");
    assert!(others.len() >= 2, "the sets that exist for tests run everywhere");
    let expected = results(*portable);
    assert!(!expected.is_empty());
    for &kernels in others {
        for ((name, expected), (_, found)) in expected.iter().zip(results(kernels)) {
            let differing = expected.iter().zip(&found).position(|(expected, found)| expected != found);
            assert!(
                expected.len() == found.len() && differing.is_none(),
                "{}: {name}, {what}: {differing:?}",
                kernels.name()
            );
        }
    }
}

/// Every tail of a vector and of a group of four, and the edges of longer blocks.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=70).chain([96, 127, 128, 129, 250, 1023, 1024, 1025, 1100])
}

#[test]
fn vector_kernels() {
    for numbers in Numbers::ALL {
        for length in lengths() {
            assert_same(&format!("{length} {numbers:?} numbers"), |kernels| {
                let mut results = Results::new();
                elementwise(kernels, numbers, length, &mut results);
                sums(kernels, numbers, length, &mut results);
                rows(kernels, numbers, length, &mut results);
                results
            });
        }
    }
}

#[test]
fn matrix_products() {
    // Small ones, and large ones with edges in every direction: blocks of 256 deep and 384 wide.
    for shape in [(1, 1, 1), (3, 5, 7), (13, 9, 300), (2, 33, 17), (67, 70, 64), (50, 401, 270)] {
        for numbers in Numbers::ALL {
            assert_same(&format!("{shape:?} {numbers:?}"), |kernels| {
                let mut results = Results::new();
                products(&Compute::new(kernels, Threads::single()), numbers, shape, &mut results);
                results
            });
        }
    }
}

#[test]
fn layers_on_codes() {
    for (tokens, inputs, neurons) in [(1, 1, 1), (3, 7, 5), (5, 33, 17), (17, 15, 31), (40, 70, 50), (70, 96, 65)] {
        assert_same(&format!("{tokens} tokens, {inputs} → {neurons}"), |kernels| {
            let mut results = Results::new();
            let compute = Compute::new(kernels, Threads::new(2).expect("threads"));
            integer_layers(&compute, tokens, inputs, neurons, &mut results);
            results
        });
    }
}
