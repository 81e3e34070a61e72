//! Attention on codes and the LayerNorm that writes codes: code for code what the documented formulas give with the
//! instruction set's own softmax and LayerNorm, for odd head sizes and sequence lengths, any number of threads.

mod common;

use common::{for_every_multiplier, noise};
use proptest::prelude::*;
use qbert_kernels::int::{
    AttentionInput, Codes, LinearInput, LinearLayer, LinearOutput, LinearParams, NormOutput, PackedWeights, Quantizer,
    pack,
};
use qbert_kernels::{BiasRows, Compute, DistanceBias, Kernels, LayerNorm, MatMut, NormalizedMut, Threads, Window};

fn random_codes(length: usize, seed: u32) -> Vec<u8> {
    noise(length, seed, 1.0).iter().map(|value| ((value + 1.0) * 127.9) as u8).collect()
}

fn code(quantizer: Quantizer, value: f32) -> u8 {
    let rounded = (value * (1.0 / quantizer.step())).round_ties_even() + f32::from(quantizer.zero_point());
    rounded.clamp(0.0, 255.0) as u8
}

struct Case {
    heads: usize,
    head_size: usize,
    lengths: Vec<usize>,
    codes: [Vec<u8>; 3],
    quantizers: [Quantizer; 3],
    output: Quantizer,
    bias: Option<DistanceBias>,
    window: Option<Window>,
}

impl Case {
    fn new(heads: usize, head_size: usize, lengths: &[usize]) -> Self {
        let elements = lengths.iter().sum::<usize>() * heads * head_size;
        Self {
            heads,
            head_size,
            lengths: lengths.to_vec(),
            codes: [1, 2, 3].map(|seed| random_codes(elements, seed)),
            quantizers: [Quantizer::new(0.021, 130), Quantizer::new(0.017, 101), Quantizer::new(0.03, 77)],
            output: Quantizer::new(0.013, 140),
            bias: None,
            window: None,
        }
    }

    /// The same with a bias for somewhat longer sequences.
    fn with_bias(mut self) -> Self {
        let longest = self.lengths.iter().max().unwrap_or(&0) + 3;
        let table = noise(2 * longest, 4, 2.0);
        let place = |distance: isize| (distance + longest as isize) as usize;
        self.bias =
            Some(DistanceBias::new(self.heads, longest, |head, distance| table[place(distance)] * (1.0 + head as f32)));
        self
    }

    fn starts(&self) -> Vec<usize> {
        let ends = self.lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    fn width(&self) -> usize {
        self.heads * self.head_size
    }

    /// The formulas, one after the other.
    fn expected(&self, kernels: Kernels) -> Vec<u8> {
        let (width, size) = (self.width(), self.head_size);
        let mut context = vec![0; self.codes[0].len()];
        let at = |which: usize, token: usize, column: usize| {
            i64::from(self.codes[which][token * width + column]) - i64::from(self.quantizers[which].zero_point())
        };
        let scale = self.quantizers[0].step() * self.quantizers[1].step() / (size as f32).sqrt();
        for range in self.starts().windows(2) {
            for first in (0..self.heads).map(|head| head * size) {
                for i in range[0]..range[1] {
                    let product = |j| (first..first + size).map(|d| at(0, i, d) * at(1, j, d)).sum::<i64>();
                    let mut row: Vec<f32> = (range[0]..range[1]).map(|j| product(j) as f32).collect();
                    let cols = row.len();
                    match &self.bias {
                        None => {
                            let reach = self.window.map_or(usize::MAX, |window| window.reach);
                            let unseen = |(j, _): &(usize, &mut f32)| j.abs_diff(i - range[0]) > reach;
                            row.iter_mut().enumerate().filter(unseen).for_each(|(_, score)| *score = f32::NEG_INFINITY);
                            kernels.softmax(&mut row, cols, scale);
                        }
                        Some(bias) => {
                            let rows = BiasRows { bias, head: first / size, first: i - range[0] };
                            kernels.softmax_biased(&mut row, cols, scale, rows);
                        }
                    }
                    let codes: Vec<i64> = row.iter().map(|p| (p * 255.0).round_ties_even() as i64).collect();
                    for d in first..first + size {
                        let sum: i64 = codes.iter().zip(range[0]..).map(|(p, j)| p * at(2, j, d)).sum();
                        let value = sum as f32 * (self.quantizers[2].step() / 255.0);
                        context[i * width + d] = code(self.output, value);
                    }
                }
            }
        }
        context
    }

    fn run(&self, compute: &Compute) -> Vec<u8> {
        let [query, key, value] = self.codes.each_ref().map(|codes| Codes::from_codes(codes, self.width()));
        let [q, k, v] = self.quantizers;
        let starts = self.starts();
        let input = AttentionInput {
            query: (&query, q),
            key: (&key, k),
            value: (&value, v),
            heads: self.heads,
            starts: &starts,
            bias: self.bias.as_ref(),
            window: self.window,
        };
        let mut context = Codes::new(self.width());
        context.resize(query.rows());
        compute.attention(&input, &mut context, self.output);
        context.to_codes()
    }

    fn check(&self, kernels: Kernels) {
        let want = self.expected(kernels);
        for threads in [1, 3] {
            let got = self.run(&Compute::new(kernels, Threads::new(threads).expect("threads")));
            let (heads, size, lengths) = (self.heads, self.head_size, &self.lengths);
            assert!(got == want, "{} {heads} heads of {size}, lengths {lengths:?}", kernels.name());
        }
    }
}

#[test]
fn every_code_is_as_the_formulas_say() {
    for_every_multiplier(|kernels| {
        for (heads, size) in [(1, 1), (2, 3), (3, 16), (12, 32), (2, 33), (4, 64), (64, 3), (1, 130)] {
            for lengths in [&[1][..], &[5, 0, 16], &[31, 2, 33], &[64, 65]] {
                Case::new(heads, size, lengths).check(kernels);
                Case::new(heads, size, lengths).with_bias().check(kernels);
            }
        }
        Case::new(2, 32, &[384]).check(kernels);
        Case::new(2, 32, &[]).check(kernels);
    });
}

#[test]
fn within_a_window_every_code_is_that_of_the_whole_row() {
    for_every_multiplier(|kernels| {
        for reach in [0, 1, 3, 20, 64] {
            for (heads, size, lengths) in [(2, 8, &[1, 70, 0, 5, 130][..]), (3, 33, &[40, 200]), (1, 64, &[257])] {
                let mut case = Case::new(heads, size, lengths);
                case.window = Some(Window { reach });
                case.check(kernels);
            }
        }
        // With steps so small that every exponential is 1, keys that are not seen would show at once.
        let mut case = Case::new(1, 8, &[100]);
        case.window = Some(Window { reach: 5 });
        case.quantizers[0] = Quantizer::new(1e-30, 128);
        case.check(kernels);
    });
}

/// The largest scores and sums of either sign, one probability of 255 and rows where all are equal.
#[test]
fn extreme_codes_are_exact() {
    for_every_multiplier(|kernels| {
        for (query, key, value) in [(255, 255, 255), (0, 255, 0), (0, 0, 255), (255, 0, 128)] {
            for (q, k, v) in [(0, 0, 0), (255, 255, 255), (0, 255, 128)] {
                let mut case = Case::new(2, 64, &[20, 40]);
                case.codes[0].fill(query);
                case.codes[1].fill(key);
                case.codes[2].fill(value);
                case.codes[1][7] = 99;
                case.quantizers = [Quantizer::new(0.5, q), Quantizer::new(0.5, k), Quantizer::new(0.5, v)];
                case.check(kernels);
            }
        }
    });
}

/// With steps so small that every exponential is 1, places beyond a row's end would show at once.
#[test]
fn what_fills_up_a_vector_gets_no_probability() {
    for_every_multiplier(|kernels| {
        let mut case = Case::new(1, 8, &[3, 17, 35]);
        case.quantizers[0] = Quantizer::new(1e-30, 128);
        case.check(kernels);
    });
}

#[test]
fn layer_norm_writes_the_training_kernels_values_and_their_codes() {
    for_every_multiplier(|kernels| {
        for (rows, width) in [(1, 1), (3, 17), (40, 384), (5, 100)] {
            let (gamma, beta) = (noise(width, 1, 1.0), noise(width, 2, 1.0));
            let norm = LayerNorm { gamma: &gamma, beta: &beta, epsilon: 1e-12 };
            let input = noise(rows * width, 3, 2.0);
            let (mut sum, mut want) = (input.clone(), vec![0.0; rows * width]);
            let (mut mean, mut rstd) = (vec![0.0; rows], vec![0.0; rows]);
            let target = NormalizedMut { sum: &mut sum, mean: &mut mean, rstd: &mut rstd, out: &mut want };
            kernels.layer_norm_forward(norm, None, target);
            let quantizer = Quantizer::new(0.02, 128);
            for threads in [1, 2] {
                let compute = Compute::new(kernels, Threads::new(threads).expect("threads"));
                let (mut hidden, mut codes) = (input.clone(), Codes::new(width));
                codes.resize(rows);
                compute.norm_to_codes(NormOutput { norm, hidden: &mut hidden, codes: Some((&mut codes, quantizer)) });
                assert_eq!(hidden, want);
                let expected: Vec<u8> = want.iter().map(|&value| code(quantizer, value)).collect();
                assert_eq!(codes.to_codes(), expected);
                let mut hidden = input.clone();
                compute.norm_to_codes(NormOutput { norm, hidden: &mut hidden, codes: None });
                assert_eq!(hidden, want);
            }
        }
    });
}

#[test]
fn a_linear_layer_with_residual_and_norm_is_the_three_in_turn() {
    for_every_multiplier(|kernels| {
        for (tokens, inputs, width) in [(1, 32, 17), (30, 96, 64), (400, 64, 48)] {
            let weights = random_codes(width * inputs, 5).iter().map(|code| code % 8).collect::<Vec<u8>>();
            let packed = pack(&weights, 3, width, inputs).expect("a good matrix");
            let weights = PackedWeights::new(3, width, inputs, &packed).expect("just packed");
            let params =
                LinearParams::new(kernels, &weights, &vec![0.1; width], &noise(width, 4, 1.0), &noise(width, 6, 1.0));
            let codes = Codes::from_codes(&random_codes(tokens * inputs, 8), inputs);
            let input = LinearInput { codes: &codes, quantizer: Quantizer::new(0.02, 90) };
            let (gamma, beta) = (noise(width, 1, 1.0), noise(width, 2, 1.0));
            let norm = LayerNorm { gamma: &gamma, beta: &beta, epsilon: 1e-5 };
            let residual = noise(tokens * width, 9, 1.0);
            let single = Compute::new(kernels, Threads::single());
            let mut want = residual.clone();
            let output = LinearOutput::Add(MatMut::new(&mut want, tokens, width));
            single.linear(input, [LinearLayer { weights, params: &params, output }]);
            single.norm_to_codes(NormOutput { norm, hidden: &mut want, codes: None });
            for threads in [1, 2, 5] {
                let compute = Compute::new(kernels, Threads::new(threads).expect("threads"));
                let (mut hidden, mut result) = (residual.clone(), Codes::new(width));
                result.resize(tokens);
                let quantizer = Quantizer::new(0.03, 120);
                let codes = Some((&mut result, quantizer));
                compute.linear_norm(input, weights, &params, NormOutput { norm, hidden: &mut hidden, codes });
                assert_eq!(hidden, want);
                let expected: Vec<u8> = want.iter().map(|&value| code(quantizer, value)).collect();
                assert_eq!(result.to_codes(), expected);
            }
        }
    });
}

#[test]
#[should_panic(expected = "sequences from Some(0) to Some(3) of 4 tokens")]
fn sequences_that_do_not_cover_the_tokens_are_refused() {
    let codes = Codes::from_codes(&[0; 32], 8);
    let part = (&codes, Quantizer::new(1.0, 0));
    let input =
        AttentionInput { query: part, key: part, value: part, heads: 1, starts: &[0, 3], bias: None, window: None };
    let mut context = Codes::new(8);
    context.resize(4);
    Compute::new(Kernels::best(), Threads::single()).attention(&input, &mut context, Quantizer::new(1.0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_heads_and_lengths(
        heads in 1_usize..5, size in 1_usize..70, lengths in prop::collection::vec(0_usize..50, 1..4),
        zeros in any::<[u8; 3]>()
    ) {
        let mut case = Case::new(heads, size, &lengths);
        for (quantizer, zero) in case.quantizers.iter_mut().zip(zeros) {
            *quantizer = Quantizer::new(quantizer.step(), zero);
        }
        for_every_multiplier(|kernels| case.check(kernels));
    }
}
