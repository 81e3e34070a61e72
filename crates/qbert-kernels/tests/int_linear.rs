//! Integer linear layers: sums exactly equal to a naive i64 loop, for every width, instruction set, odd shape and
//! extreme code; results and codes bit for bit as the documented formula says.

mod common;

use common::{for_every_multiplier, name, noise};
use proptest::prelude::*;
use qbert_kernels::int::{
    Codes, Coding, LayoutError, LinearInput, LinearLayer, LinearOutput, LinearParams, MOST_INPUTS, Multiplier, Neurons,
    PackedWeights, Quantizer, WideWeights, pack, packed_len,
};
use qbert_kernels::{Activation, Compute, Kernels, MatMut, Threads};

/// Codes without a pattern, below `levels`.
fn random_codes(length: usize, seed: u32, levels: u32) -> Vec<u8> {
    noise(length, seed, 1.0).iter().map(|value| ((value + 1.0) * 4e6) as u32 % levels).map(|code| code as u8).collect()
}

/// Tokens, inputs and neurons.
type Shape = (usize, usize, usize);

/// Every way to store codes.
fn codings() -> impl Iterator<Item = Coding> {
    (1..=8).map(Coding::Bits).chain([Coding::Ternary])
}

/// How many values a code has.
fn levels(coding: Coding) -> u32 {
    match coding {
        Coding::Bits(bits) => 1 << bits,
        Coding::Ternary => 3,
    }
}

/// A layer with everything that goes into it.
struct Case {
    coding: Coding,
    tokens: usize,
    inputs: usize,
    neurons: usize,
    weights: Vec<u8>,
    codes: Vec<u8>,
    quantizer: Quantizer,
}

impl Case {
    fn random(coding: impl Into<Coding>, shape: Shape, zero_point: u8) -> Self {
        let coding = coding.into();
        let (tokens, inputs, neurons) = shape;
        let weights = random_codes(neurons * inputs, 1 + levels(coding), levels(coding));
        let codes = random_codes(tokens * inputs, 77, 256);
        Self { coding, tokens, inputs, neurons, weights, codes, quantizer: Quantizer::new(0.037, zero_point) }
    }

    /// The same with one weight code and one activation code everywhere.
    fn filled_with(mut self, weight: u8, code: u8) -> Self {
        self.weights.fill(weight);
        self.codes.fill(code);
        self
    }

    /// `Σ (A - z)·W` in i64.
    fn sums(&self) -> Vec<i64> {
        let zero = i64::from(self.quantizer.zero_point());
        let mut sums = Vec::with_capacity(self.tokens * self.neurons);
        for token in self.codes.chunks_exact(self.inputs) {
            for neuron in self.weights.chunks_exact(self.inputs) {
                let terms = token.iter().zip(neuron).map(|(&a, &w)| (i64::from(a) - zero) * i64::from(w));
                sums.push(terms.sum());
            }
        }
        sums
    }

    fn packed(&self) -> Vec<u8> {
        pack(&self.weights, self.coding, self.neurons, self.inputs).expect("a good matrix")
    }

    /// Steps, offsets and biases of the neurons.
    fn numbers(&self) -> [Vec<f32>; 3] {
        let steps = noise(self.neurons, 5, 0.02).iter().map(|step| step.abs()).collect();
        [steps, noise(self.neurons, 6, 0.3), noise(self.neurons, 7, 1.0)]
    }

    /// `y` by the formula, operation by operation.
    fn results(&self) -> Vec<f32> {
        let [steps, lows, biases] = self.numbers();
        let zero = i64::from(self.quantizer.zero_point());
        let sums = self.sums();
        let mut results = Vec::new();
        for (token, codes) in self.codes.chunks_exact(self.inputs).enumerate() {
            let row: i64 = codes.iter().map(|&a| i64::from(a) - zero).sum();
            for n in 0..self.neurons {
                let (step, low) = (self.quantizer.step() * steps[n], self.quantizer.step() * lows[n]);
                let offset = low.mul_add(row as f32, biases[n]);
                results.push(step.mul_add(sums[token * self.neurons + n] as f32, offset));
            }
        }
        results
    }

    fn run(&self, compute: &Compute, output: LinearOutput<'_>) {
        let packed = self.packed();
        let weights = PackedWeights::new(self.coding, self.neurons, self.inputs, &packed).expect("just packed");
        let [steps, lows, biases] = self.numbers();
        let params = LinearParams::new(compute.kernels(), &weights, &steps, &lows, &biases);
        let codes =
            if self.tokens == 0 { Codes::new(self.inputs) } else { Codes::from_codes(&self.codes, self.inputs) };
        let input = LinearInput { codes: &codes, quantizer: self.quantizer };
        compute.linear(input, [LinearLayer { weights, params: &params, output }]);
    }

    fn check_sums(&self, compute: &Compute) {
        let mut sums = vec![i32::MIN; self.tokens * self.neurons];
        self.run(compute, LinearOutput::Sums(&mut sums));
        let sums: Vec<i64> = sums.into_iter().map(i64::from).collect();
        let (coding, tokens, inputs, neurons) = (self.coding, self.tokens, self.inputs, self.neurons);
        let what = format!("{} {coding} {tokens}×{inputs}→{neurons}", name(compute.kernels()));
        assert!(sums == self.sums(), "{what}");
    }
}

/// Shapes around every edge: cells of 4 and blocks of 32 inputs, tiles of 16 and panels of 32 neurons, every tile height.
const SHAPES: [Shape; 15] = [
    (0, 32, 16),
    (1, 1, 1),
    (1, 384, 384),
    (2, 3, 17),
    (3, 31, 15),
    (4, 32, 16),
    (5, 33, 33),
    (6, 64, 32),
    (7, 65, 31),
    (11, 100, 48),
    (12, 63, 49),
    (13, 127, 64),
    (25, 96, 65),
    (32, 128, 80),
    (200, 40, 33),
];

fn computes(kernels: Kernels) -> [Compute; 2] {
    [Threads::single(), Threads::new(3).expect("threads")].map(|threads| Compute::new(kernels, threads))
}

#[test]
fn sums_are_exact_for_every_width_and_shape() {
    for_every_multiplier(|kernels| {
        for compute in computes(kernels) {
            for coding in codings() {
                for shape in SHAPES {
                    Case::random(coding, shape, 111).check_sums(&compute);
                }
            }
        }
    });
}

/// The largest sums of either sign, where saturating arithmetic would show.
#[test]
fn sums_are_exact_at_extreme_codes() {
    for_every_multiplier(|kernels| {
        let compute = Compute::new(kernels, Threads::single());
        for coding in codings() {
            let top = (levels(coding) - 1) as u8;
            for (weight, code, zero_point) in [(top, 255, 0), (top, 0, 255), (top, 255, 255), (0, 255, 0), (top, 0, 0)]
            {
                for shape in [(1, 4096, 16), (3, 129, 18), (13, 1536, 32)] {
                    Case::random(coding, shape, zero_point).filled_with(weight, code).check_sums(&compute);
                }
            }
        }
        for (code, zero_point) in [(255, 0), (0, 255)] {
            Case::random(8, (2, MOST_INPUTS, 17), zero_point).filled_with(255, code).check_sums(&compute);
        }
    });
}

fn code(quantizer: Quantizer, value: f32) -> u8 {
    let inverse = 1.0 / quantizer.step();
    let rounded = (value * inverse).round_ties_even() + f32::from(quantizer.zero_point());
    rounded.clamp(0.0, 255.0) as u8
}

/// Every output but GELU has the same bits everywhere: those of the formula.
#[test]
fn results_follow_the_formula_to_the_last_bit() {
    for_every_multiplier(|kernels| {
        for compute in computes(kernels) {
            for coding in codings() {
                for shape in [(1, 33, 17), (14, 384, 48), (5, 96, 40)] {
                    let case = Case::random(coding, shape, 97);
                    let (tokens, _, neurons) = shape;
                    let want = case.results();
                    let mut got = vec![0.0; tokens * neurons];
                    case.run(&compute, LinearOutput::Float(MatMut::new(&mut got, tokens, neurons)));
                    assert_eq!(got, want);
                    let before = noise(tokens * neurons, 9, 3.0);
                    let mut got = before.clone();
                    case.run(&compute, LinearOutput::Add(MatMut::new(&mut got, tokens, neurons)));
                    let sums: Vec<f32> = want.iter().zip(&before).map(|(y, before)| y + before).collect();
                    assert_eq!(got, sums);
                    let quantizer = Quantizer::new(0.05, 140);
                    let mut got = Codes::new(neurons);
                    got.resize(tokens);
                    case.run(&compute, LinearOutput::Codes(&mut got, quantizer));
                    let codes: Vec<u8> = want.iter().map(|&y| code(quantizer, y)).collect();
                    assert_eq!(got.to_codes(), codes);
                    for activation in Activation::ALL {
                        let mut values = vec![0.0; want.len()];
                        kernels.activate(activation, &want, &mut values);
                        case.run(&compute, LinearOutput::Activated(activation, &mut got, quantizer));
                        let codes: Vec<u8> = values.iter().map(|&y| code(quantizer, y)).collect();
                        assert_eq!(got.to_codes(), codes, "the {activation:?} of this instruction set");
                    }
                }
            }
        }
    });
}

#[test]
fn layers_that_share_an_input_run_together() {
    for_every_multiplier(|kernels| {
        for compute in computes(kernels) {
            let cases = [Coding::Bits(2), Coding::Ternary, Coding::Bits(8)]
                .map(|coding| Case::random(coding, (50, 64, 96), 80));
            let mut results = [const { Vec::new() }; 3];
            let codes = Codes::from_codes(&cases[0].codes, 64);
            let packed = cases.each_ref().map(Case::packed);
            let weights: [PackedWeights<'_>; 3] =
                std::array::from_fn(|i| PackedWeights::new(cases[i].coding, 96, 64, &packed[i]).expect("just packed"));
            let [steps, lows, biases] = cases[0].numbers();
            let params = weights.map(|weights| LinearParams::new(kernels, &weights, &steps, &lows, &biases));
            let mut layers = results.iter_mut().zip(weights).zip(&params).map(|((result, weights), params)| {
                *result = vec![0; 50 * 96];
                LinearLayer { weights, params, output: LinearOutput::Sums(result) }
            });
            let layers = [(); 3].map(|()| layers.next().expect("three"));
            compute.linear(LinearInput { codes: &codes, quantizer: cases[0].quantizer }, layers);
            for (case, result) in cases.iter().zip(results) {
                let codes_equal = case.codes == cases[0].codes;
                assert!(codes_equal && result.into_iter().map(i64::from).collect::<Vec<_>>() == case.sums());
            }
        }
    });
}

#[test]
fn infinite_and_undefined_results_become_the_codes_at_the_ends() {
    for_every_multiplier(|kernels| {
        let compute = Compute::new(kernels, Threads::single());
        let packed = pack(&[1; 20], 1, 20, 1).expect("a good matrix");
        let weights = PackedWeights::new(1, 20, 1, &packed).expect("just packed");
        let zeros = [0.0; 20];
        let mut biases = [0.0; 20];
        (biases[0], biases[1], biases[2], biases[19]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30);
        let params = LinearParams::new(kernels, &weights, &zeros, &zeros, &biases);
        let codes = Codes::from_codes(&[5], 1);
        let mut got = Codes::new(20);
        got.resize(1);
        let output = LinearOutput::Codes(&mut got, Quantizer::new(0.1, 9));
        let input = LinearInput { codes: &codes, quantizer: Quantizer::new(1.0, 0) };
        compute.linear(input, [LinearLayer { weights, params: &params, output }]);
        assert_eq!([0, 1, 2, 3, 19].map(|col| got.code(0, col)), [255, 0, 0, 9, 255]);
    });
}

#[test]
fn packing_takes_exactly_its_bits_and_refuses_what_is_no_matrix() {
    for bits in 1..=8 {
        assert_eq!(packed_len(bits, 384, 1536), Ok(384 * 1536 / 8 * usize::from(bits)));
        assert_eq!(packed_len(bits, 1, 1), Ok(64 * usize::from(bits)));
        for (neurons, inputs) in [(0, 4), (4, 0), (4, MOST_INPUTS + 1), (usize::MAX, 32)] {
            assert_eq!(packed_len(bits, neurons, inputs), Err(LayoutError::Shape { neurons, inputs }));
        }
    }
    // Five cells of four inputs share a byte of each place.
    assert_eq!(packed_len(Coding::Ternary, 384, 1600), Ok(384 * 1600 / 5));
    assert_eq!(packed_len(Coding::Ternary, 384, 1536), Ok(384 / 16 * 77 * 64));
    assert_eq!(packed_len(Coding::Ternary, 1, 1), Ok(2 * 64));
    let error = pack(&[0, 3], Coding::Ternary, 1, 2).expect_err("3 is no ternary code");
    assert_eq!(error, LayoutError::Code { neuron: 0, input: 1, code: 3, coding: Coding::Ternary });
    // Place 3 is input 3 of neuron 0; 2 stands for codes 0, 0, 0, 0, 1, so for 1 at input 19. Cells 8 and 9 fill up a byte.
    for (byte, value, error) in [
        (3, 20, LayoutError::TernaryByte { byte: 3, value: 20 }),
        (3, 2, LayoutError::Padding { neuron: 0, input: 19 }),
        (64 + 5, 2, LayoutError::Padding { neuron: 1, input: 37 }),
    ] {
        let mut packed = pack(&[0, 2, 1, 0], Coding::Ternary, 2, 2).expect("a good matrix");
        packed[byte] = value;
        let view = PackedWeights::new(Coding::Ternary, 2, 2, &packed).expect("packed");
        assert_eq!(view.check_padding(), Err(error));
    }
    assert_eq!(packed_len(9, 4, 4), Err(LayoutError::Bits { bits: 9 }));
    assert!(matches!(pack(&[0; 5], 2, 2, 3), Err(LayoutError::Length { expected: 6, found: 5, .. })));
    let error = pack(&[1, 2, 3, 4], 2, 2, 2).expect_err("4 does not fit");
    assert_eq!(error, LayoutError::Code { neuron: 1, input: 1, code: 4, coding: Coding::Bits(2) });
    assert!(matches!(PackedWeights::new(2, 16, 32, &[0; 127]), Err(LayoutError::Length { expected: 128, .. })));
    let mut packed = pack(&[3; 15 * 32], 2, 15, 32).expect("a good matrix");
    assert!(PackedWeights::new(2, 15, 32, &packed).expect("packed").check_padding().is_ok());
    packed[60] = 1;
    let padding = PackedWeights::new(2, 15, 32, &packed).expect("packed").check_padding();
    assert_eq!(padding, Err(LayoutError::Padding { neuron: 15, input: 0 }));
}

/// The layout bit by bit, as its documentation says: a file written today must be read for ever.
#[test]
fn the_layout_is_as_documented() {
    let (neurons, inputs) = (18, 40);
    for bits in 1..=8_u8 {
        let codes = random_codes(neurons * inputs, 4, 1 << bits);
        let packed = pack(&codes, bits, neurons, inputs).expect("a good matrix");
        let widths: &[usize] = match bits {
            3 => &[2, 1],
            5 => &[4, 1],
            6 => &[4, 2],
            7 => &[4, 2, 1],
            1 => &[1],
            2 => &[2],
            4 => &[4],
            _ => &[8],
        };
        let mut set = 0;
        for neuron in 0..neurons {
            for input in 0..inputs {
                let code = usize::from(codes[neuron * inputs + input]);
                let block = (neuron / 16 * inputs.div_ceil(32) + input / 32) * 64 * usize::from(bits);
                let (cell, place) = (input % 32 / 4, neuron % 16 * 4 + input % 4);
                let (mut plane_start, mut low_bit) = (0, 0);
                for &width in widths {
                    let byte = packed[block + plane_start + cell / (8 / width) * 64 + place];
                    let part = usize::from(byte) >> (cell % (8 / width) * width) & ((1 << width) - 1);
                    assert_eq!(part, code >> low_bit & ((1 << width) - 1), "{bits} bits, {neuron}, {input}");
                    (plane_start, low_bit) = (plane_start + 64 * width, low_bit + width);
                }
                set += code.count_ones();
            }
        }
        assert_eq!(set, packed.iter().map(|byte| byte.count_ones()).sum::<u32>(), "padding is 0");
    }
}

#[test]
fn the_layout_of_ternary_codes_is_as_documented() {
    let (neurons, inputs) = (18, 44);
    let codes = random_codes(neurons * inputs, 4, 3);
    let packed = pack(&codes, Coding::Ternary, neurons, inputs).expect("a good matrix");
    let bytes_of_tile = packed.len() / 2;
    assert_eq!(bytes_of_tile, 4 * 64, "16 cells of 64 inputs, five to a byte");
    for (index, &byte) in packed.iter().enumerate() {
        let (tile, group, place) = (index / bytes_of_tile, index % bytes_of_tile / 64, index % 64);
        let value = (0..5).fold(0, |value, cell| {
            let (neuron, input) = (16 * tile + place / 4, 4 * (5 * group + cell) + place % 4);
            let inside = neuron < neurons && input < inputs;
            3 * value + if inside { u32::from(codes[neuron * inputs + input]) } else { 0 }
        });
        assert_eq!(u32::from(byte), (256 * value).div_ceil(243), "byte {index}");
    }
}

#[test]
#[should_panic(expected = "33 codes a token for 32 inputs")]
fn an_input_of_another_width_is_refused() {
    let mut case = Case::random(2, (2, 32, 16), 0);
    (case.codes, case.inputs) = (vec![0; 66], 32);
    let packed = case.packed();
    let weights = PackedWeights::new(2, 16, 32, &packed).expect("just packed");
    let [steps, lows, biases] = case.numbers();
    let compute = Compute::new(Kernels::best(), Threads::single());
    let params = LinearParams::new(compute.kernels(), &weights, &steps, &lows, &biases);
    let codes = Codes::from_codes(&case.codes, 33);
    let input = LinearInput { codes: &codes, quantizer: case.quantizer };
    compute.linear(input, [LinearLayer { weights, params: &params, output: LinearOutput::Sums(&mut [0; 32]) }]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_codes_multiply_exactly(
        coding in prop::sample::select(codings().collect::<Vec<_>>()), tokens in 1_usize..30, inputs in 1_usize..140, neurons in 1_usize..70,
        zero_point in any::<u8>(), seed in any::<u32>()
    ) {
        let weights = random_codes(neurons * inputs, seed, levels(coding));
        let codes = random_codes(tokens * inputs, seed ^ 1, 256);
        let quantizer = Quantizer::new(1.0, zero_point);
        let case = Case { coding, tokens, inputs, neurons, weights, codes, quantizer };
        let packed = case.packed();
        let view = PackedWeights::new(coding, neurons, inputs, &packed).expect("just packed");
        prop_assert_eq!(view.codes(), case.weights.clone());
        for multiplier in Multiplier::supported() {
            let kernels = Kernels::best().with_multiplier(multiplier);
            let params = LinearParams::new(kernels, &view, &vec![0.0; neurons], &vec![0.0; neurons], &vec![0.0; neurons]);
            let sums: Vec<i32> = case.weights.chunks(inputs).map(|row| row.iter().map(|&w| i32::from(w)).sum()).collect();
            prop_assert_eq!(params.code_sums(), &sums[..]);
            case.check_sums(&Compute::new(kernels, Threads::single()));
        }
    }
}

/// Codes a byte each give the bits of the same codes packed at their own width, also when they replace others.
#[test]
fn wide_codes_give_the_bits_of_packed_ones() {
    for_every_multiplier(|kernels| {
        for threads in [1, 3] {
            let compute = Compute::new(kernels, Threads::new(threads).expect("some threads"));
            for (inputs, neurons) in [(1, 1), (3, 17), (32, 16), (70, 50), (384, 96)] {
                let mut wide = WideWeights::new(neurons, inputs).expect("a good shape");
                for coding in [Coding::Bits(8), Coding::Ternary, Coding::Bits(1), Coding::Bits(4)] {
                    let case = Case::random(coding, (13, inputs, neurons), 99);
                    let [steps, lows, biases] = case.numbers();
                    let numbers = Neurons { steps: &steps, lows: &lows, biases: &biases };
                    let written = wide.write(&compute, numbers, |rows, codes| {
                        codes.copy_from_slice(&case.weights[rows.start * inputs..rows.end * inputs]);
                        Ok::<(), ()>(())
                    });
                    assert_eq!((written, wide.neurons(), wide.inputs()), (Ok(()), neurons, inputs));
                    assert_eq!(wide.weights().codes(), case.weights);
                    wide.weights().check_padding().expect("nothing outside of the matrix");
                    let codes = Codes::from_codes(&case.codes, inputs);
                    let mut found = vec![0.0; 13 * neurons];
                    let output = LinearOutput::Float(MatMut::new(&mut found, 13, neurons));
                    let layer = LinearLayer { weights: wide.weights(), params: wide.params(), output };
                    compute.linear(LinearInput { codes: &codes, quantizer: case.quantizer }, [layer]);
                    let expected = case.results();
                    let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{coding}, {neurons}×{inputs}, {} {threads}", name(kernels));
                }
            }
        }
    });
    let mut wide = WideWeights::new(40, 5).expect("a good shape");
    let zeros = [0.0; 40];
    let numbers = Neurons { steps: &zeros, lows: &zeros, biases: &zeros };
    let compute = Compute::new(Kernels::best(), Threads::new(2).expect("some threads"));
    let refused = wide.write(&compute, numbers, |rows, _| if rows.start > 0 { Err(rows.start) } else { Ok(()) });
    assert_eq!(refused, Err(16), "the first error of all");
    assert!(WideWeights::new(1, MOST_INPUTS + 1).is_err() && WideWeights::new(0, 3).is_err());
}
