//! The instruction sets and the multiplier that exist for tests only: four lanes with a tile taller than a vector, sixteen
//! lanes, and codes in another order. Whatever gives the right results on them does not rely on the length of vectors or
//! on one layout.
//!
//! The kernels of this CPU are tested from outside, in `tests/`.

mod bf16;
mod same_bits;

use crate::int::{
    AttentionInput, Codes, LinearInput, LinearLayer, LinearOutput, LinearParams, Multiplier, PackedWeights, Quantizer,
    pack,
};
use crate::{Compute, Kernels, MatMut, MatRef, Start, Threads};

/// Numbers in -1..1 without a pattern.
pub(crate) fn noise(length: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..length).map(|_| next()).collect()
}

pub(crate) fn codes(length: usize, seed: u32, levels: u32) -> Vec<u8> {
    noise(length, seed).iter().map(|value| (((value + 1.0) * 4e6) as u32 % levels) as u8).collect()
}

pub(crate) fn compute(kernels: &str, threads: usize) -> Compute {
    Compute::new(Kernels::by_name(kernels).expect("made for tests"), Threads::new(threads).expect("threads"))
}

#[test]
fn products_on_narrow_vectors_equal_the_portable_ones() {
    // Small products, and large ones with edges in every direction: blocks of 256 deep and 384 wide.
    for (m, n, k) in [(3, 5, 7), (13, 9, 300), (130, 70, 64), (97, 401, 270), (411, 390, 259)] {
        for threads in [1, 2] {
            let results = ["portable", "narrow"].map(|kernels| {
                let compute = compute(kernels, threads);
                let (a, b, bias) = (noise(m * k, 1), noise(n * k, 2), noise(n, 3));
                let mut c = [vec![0.5; m * n], vec![0.5; m * n], vec![0.5; m * n]];
                let [nt, nn, tn] = &mut c;
                let (row_a, column_a) = (MatRef::new(&a, m, k), MatRef::new(&a, k, m));
                let (row_b, column_b) = (MatRef::new(&b, k, n), MatRef::new(&b, n, k));
                compute.gemm_nt(row_a, column_b, Start::Bias(&bias), MatMut::new(nt, m, n));
                compute.gemm_nn(row_a, row_b, Start::ZERO, MatMut::new(nn, m, n));
                compute.gemm_tn(column_a, row_b, Start::ACCUMULATE, MatMut::new(tn, m, n));
                c.concat()
            });
            // Both add the same terms in the same order.
            assert!(results[0] == results[1], "{m}×{n}×{k} on {threads} threads");
        }
    }
}

/// Tokens, inputs and neurons.
type Shape = (usize, usize, usize);

/// Sums of a linear layer.
pub(crate) fn sums(compute: &Compute, bits: u8, (tokens, inputs, neurons): Shape) -> Vec<i32> {
    let weights = codes(neurons * inputs, 7, 1 << bits);
    let packed = pack(&weights, bits, neurons, inputs).expect("a good matrix");
    let weights = PackedWeights::new(bits, neurons, inputs, &packed).expect("just packed");
    let zeros = vec![0.0; neurons];
    let params = LinearParams::new(compute.kernels(), &weights, &zeros, &zeros, &zeros);
    let codes = Codes::from_codes(&codes(tokens * inputs, 8, 256), inputs);
    let mut sums = vec![0; tokens * neurons];
    let output = LinearOutput::Sums(&mut sums);
    let input = LinearInput { codes: &codes, quantizer: Quantizer::new(0.01, 99) };
    compute.linear(input, [LinearLayer { weights, params: &params, output }]);
    sums
}

/// The context of an attention, as codes, for sequences of these lengths.
pub(crate) fn context(compute: &Compute, heads: usize, head_size: usize, lengths: &[usize]) -> Vec<u8> {
    let width = heads * head_size;
    let starts: Vec<usize> = (0..=lengths.len()).map(|count| lengths[..count].iter().sum()).collect();
    let tokens = starts[lengths.len()];
    let [query, key, value] = [9, 10, 11].map(|seed| Codes::from_codes(&codes(tokens * width, seed, 256), width));
    let quantizer = Quantizer::new(0.01, 99);
    let input = AttentionInput {
        query: (&query, quantizer),
        key: (&key, quantizer),
        value: (&value, quantizer),
        heads,
        starts: &starts,
        bias: None,
        window: None,
    };
    let mut context = Codes::new(width);
    context.resize(tokens);
    compute.attention(&input, &mut context, quantizer);
    context.to_codes()
}

#[test]
fn a_multiplier_may_have_its_own_order_and_height() {
    // Those that may be emulated take long, and have tests of their own.
    let names = Multiplier::NAMES.iter().filter(|name| !name.ends_with("-trapped"));
    for multiplier in names.filter(|name| Multiplier::by_name(name).is_ok()) {
        let (portable, other) = (compute("portable", 1), compute(&format!("portable+{multiplier}"), 2));
        for shape in [(1, 1, 1), (5, 33, 17), (40, 70, 50), (70, 96, 64)] {
            for bits in 1..=8 {
                let expected = sums(&portable, bits, shape);
                assert!(sums(&other, bits, shape) == expected, "{multiplier}: {bits} bits, {shape:?}");
            }
            let (tokens, inputs, _) = shape;
            let lengths = [tokens / 3, tokens - tokens / 3];
            let expected = context(&portable, 1, inputs, &lengths);
            assert!(context(&other, 1, inputs, &lengths) == expected, "{multiplier}: attention, {shape:?}");
        }
    }
}

#[test]
fn integer_layers_on_narrow_vectors_equal_the_portable_ones() {
    for shape in [(1, 1, 1), (5, 33, 17), (40, 70, 50), (70, 96, 64)] {
        let expected = sums(&compute("portable", 1), 3, shape);
        assert!(sums(&compute("narrow", 2), 3, shape) == expected, "{shape:?}");
    }
}
