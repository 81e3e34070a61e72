//! How fast the integer kernels are: one JSON line per operation, shape, width, instruction set and thread count.
//!
//! `cargo run --release -p qbert-kernels --example int_kernel_speed -- [FILTER…]` runs what contains every FILTER in its
//! line (`linear`, `"bits":2`, `avx512`, `"threads":1`…). GOP/s counts two operations per multiply-add. `best` and
//! `median` are over repeated runs. `encoder` is all layers of a MiniLM- or BERT-base-shaped encoder with random weights
//! on the works of the peers' benchmark: A one sequence of 32 tokens, B of 128, C of 384, D 32 sequences of 128.

use std::io::Write;
use std::time::Instant;

use qbert_kernels::int::{
    AttentionInput, Codes, LinearInput, LinearLayer, LinearOutput, LinearParams, NormOutput, PackedWeights, Quantizer,
    pack,
};
use qbert_kernels::{Activation, Compute, Kernels, LayerNorm, MatMut, Threads};

struct Report {
    filters: Vec<String>,
}

impl Report {
    fn includes(&self, head: &str) -> bool {
        self.filters.iter().all(|filter| head.contains(filter))
    }

    /// Runs for at least a tenth of a second and seven times.
    fn measure(&self, head: &str, operations: usize, mut run: impl FnMut()) {
        run();
        let (mut seconds, begin) = (Vec::new(), Instant::now());
        while seconds.len() < 7 || (begin.elapsed().as_secs_f64() < 0.1 && seconds.len() < 2000) {
            let start = Instant::now();
            run();
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        let rate = |seconds: f64| operations as f64 / seconds * 1e-9;
        let median = seconds[seconds.len() / 2];
        let line = format!(
            "{head},\"best\":{:.0},\"median\":{:.0},\"best_us\":{:.1}}}\n",
            rate(seconds[0]),
            rate(median),
            seconds[0] * 1e6
        );
        // A closed pipe is not an error.
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
}

fn noise(length: usize, seed: u32, levels: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) % levels) as u8
        })
        .collect()
}

/// A layer's weights, in a buffer that is aligned as a mapped file's.
struct Layer {
    bytes: Vec<u8>,
    params: LinearParams,
    bits: u8,
    neurons: usize,
    inputs: usize,
}

const LINE: usize = 64;

impl Layer {
    fn new(kernels: Kernels, bits: u8, neurons: usize, inputs: usize) -> Self {
        let codes = noise(neurons * inputs, 7, 1 << bits);
        let packed = pack(&codes, bits, neurons, inputs).expect("a shape of BERT");
        let mut bytes = vec![0; packed.len() + LINE];
        let start = bytes.as_ptr().align_offset(LINE);
        bytes[start..start + packed.len()].copy_from_slice(&packed);
        bytes.truncate(start + packed.len());
        let weights = PackedWeights::new(bits, neurons, inputs, &bytes[start..]).expect("just packed");
        let numbers = vec![0.01; neurons];
        let params = LinearParams::new(kernels, &weights, &numbers, &numbers, &numbers);
        Self { bytes, params, bits, neurons, inputs }
    }

    fn job<'a>(&'a self, output: LinearOutput<'a>) -> LinearLayer<'a> {
        LinearLayer { weights: self.weights(), params: &self.params, output }
    }

    fn weights(&self) -> PackedWeights<'_> {
        let start = self.bytes.as_ptr().align_offset(LINE);
        PackedWeights::new(self.bits, self.neurons, self.inputs, &self.bytes[start..]).expect("packed before")
    }
}

fn linear_layers(report: &Report, compute: &Compute) {
    let kernels = compute.kernels().multiplier().name();
    let threads = compute.threads().count();
    for (inputs, neurons) in [(384, 384), (384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768)] {
        for tokens in [1, 32, 128, 384, 4096] {
            for bits in [1, 2, 3, 4, 8] {
                for output in ["codes", "gelu", "add"] {
                    if (output == "gelu") != (neurons > inputs) || (output == "add") != (neurons < inputs) {
                        continue;
                    }
                    let head = format!(
                        "{{\"operation\":\"linear\",\"tokens\":{tokens},\"inputs\":{inputs},\"neurons\":{neurons},\"output\":\"{output}\",\"bits\":{bits},\"kernels\":\"{kernels}\",\"threads\":{threads}"
                    );
                    if !report.includes(&head) {
                        continue;
                    }
                    let layer = Layer::new(compute.kernels(), bits, neurons, inputs);
                    let codes = Codes::from_codes(&noise(tokens * inputs, 3, 256), inputs);
                    let input = LinearInput { codes: &codes, quantizer: Quantizer::new(0.02, 120) };
                    let mut result = Codes::new(neurons);
                    result.resize(tokens);
                    let mut floats = vec![0.0; if output == "add" { tokens * neurons } else { 0 }];
                    let quantizer = Quantizer::new(0.1, 100);
                    report.measure(&head, 2 * tokens * inputs * neurons, || {
                        let output = match output {
                            "codes" => LinearOutput::Codes(&mut result, quantizer),
                            "gelu" => LinearOutput::Activated(Activation::Gelu, &mut result, quantizer),
                            _ => LinearOutput::Add(MatMut::new(&mut floats, tokens, neurons)),
                        };
                        compute
                            .linear(input, [LinearLayer { weights: layer.weights(), params: &layer.params, output }]);
                    });
                }
            }
        }
    }
}

fn attention(report: &Report, compute: &Compute) {
    let (kernels, threads) = (compute.kernels().multiplier().name(), compute.threads().count());
    for (heads, size) in [(12, 32), (12, 64)] {
        for length in [32, 128, 384] {
            let head = format!(
                "{{\"operation\":\"attention\",\"tokens\":{length},\"heads\":{heads},\"head_size\":{size},\"kernels\":\"{kernels}\",\"threads\":{threads}"
            );
            if !report.includes(&head) {
                continue;
            }
            let width = heads * size;
            let [query, key, value] = [1, 2, 3].map(|seed| Codes::from_codes(&noise(length * width, seed, 256), width));
            let quantizer = Quantizer::new(0.01, 128);
            let input = AttentionInput {
                query: (&query, quantizer),
                key: (&key, quantizer),
                value: (&value, quantizer),
                heads,
                starts: &[0, length],
                bias: None,
                window: None,
            };
            let mut context = Codes::new(width);
            context.resize(length);
            report.measure(&head, 4 * length * length * width, || {
                compute.attention(&input, &mut context, quantizer);
            });
        }
    }
}

/// The matrices of an encoder layer, in the order of the data.
struct EncoderLayer {
    query: Layer,
    key: Layer,
    value: Layer,
    attention_output: Layer,
    intermediate: Layer,
    output: Layer,
}

/// All that a forward pass writes to; grows once.
struct State {
    hidden: Vec<f32>,
    input: Codes,
    query: Codes,
    key: Codes,
    value: Codes,
    context: Codes,
    middle: Codes,
    inner: Codes,
}

fn encoder_forward(compute: &Compute, layers: &[EncoderLayer], heads: usize, starts: &[usize], state: &mut State) {
    let quantizer = Quantizer::new(0.02, 128);
    let State { hidden, input, query, key, value, context, middle, inner } = state;
    let ones = vec![1.0; input.cols()];
    let zeros = vec![0.0; input.cols()];
    let norm = LayerNorm { gamma: &ones, beta: &zeros, epsilon: 1e-12 };
    for layer in layers {
        compute.linear(
            LinearInput { codes: input, quantizer },
            [
                layer.query.job(LinearOutput::Codes(query, quantizer)),
                layer.key.job(LinearOutput::Codes(key, quantizer)),
                layer.value.job(LinearOutput::Codes(value, quantizer)),
            ],
        );
        let attention = AttentionInput {
            query: (query, quantizer),
            key: (key, quantizer),
            value: (value, quantizer),
            heads,
            starts,
            bias: None,
            window: None,
        };
        compute.attention(&attention, context, quantizer);
        let projection = &layer.attention_output;
        let output = NormOutput { norm, hidden, codes: Some((middle, quantizer)) };
        compute.linear_norm(
            LinearInput { codes: context, quantizer },
            projection.weights(),
            &projection.params,
            output,
        );
        let output = LinearOutput::Activated(Activation::Gelu, inner, quantizer);
        compute.linear(LinearInput { codes: middle, quantizer }, [layer.intermediate.job(output)]);
        let output = NormOutput { norm, hidden, codes: Some((input, quantizer)) };
        let last = &layer.output;
        compute.linear_norm(LinearInput { codes: inner, quantizer }, last.weights(), &last.params, output);
    }
}

fn encoders(report: &Report, compute: &Compute) {
    let (kernels, threads) = (compute.kernels().multiplier().name(), compute.threads().count());
    for (model, layers, hidden, inner, heads) in [("minilm", 6, 384, 1536, 12), ("bert-base", 12, 768, 3072, 12)] {
        for (work, sequences, length) in [("A", 1, 32), ("B", 1, 128), ("C", 1, 384), ("D", 32, 128)] {
            for bits in [2, 3, 4, 8] {
                let head = format!(
                    "{{\"operation\":\"encoder\",\"model\":\"{model}\",\"work\":\"{work}\",\"bits\":{bits},\"kernels\":\"{kernels}\",\"threads\":{threads}"
                );
                if !report.includes(&head) {
                    continue;
                }
                let layer = |neurons, inputs| Layer::new(compute.kernels(), bits, neurons, inputs);
                let all: Vec<EncoderLayer> = (0..layers)
                    .map(|_| EncoderLayer {
                        query: layer(hidden, hidden),
                        key: layer(hidden, hidden),
                        value: layer(hidden, hidden),
                        attention_output: layer(hidden, hidden),
                        intermediate: layer(inner, hidden),
                        output: layer(hidden, inner),
                    })
                    .collect();
                let tokens = sequences * length;
                let codes = |width| {
                    let mut codes = Codes::new(width);
                    codes.resize(tokens);
                    codes
                };
                let mut state = State {
                    hidden: vec![0.5; tokens * hidden],
                    input: Codes::from_codes(&noise(tokens * hidden, 3, 256), hidden),
                    query: codes(hidden),
                    key: codes(hidden),
                    value: codes(hidden),
                    context: codes(hidden),
                    middle: codes(hidden),
                    inner: codes(inner),
                };
                let starts: Vec<usize> = (0..=sequences).map(|sequence| sequence * length).collect();
                let products = tokens * (4 * hidden * hidden + 2 * hidden * inner) + 2 * tokens * length * hidden;
                report.measure(&head, 2 * layers * products, || {
                    encoder_forward(compute, &all, heads, &starts, &mut state);
                });
            }
        }
    }
}

fn main() {
    let report = Report { filters: std::env::args().skip(1).collect() };
    for kernels in Kernels::supported() {
        for threads in [1, 2] {
            let Ok(threads) = Threads::new(threads) else { continue };
            let compute = Compute::new(kernels, threads);
            encoders(&report, &compute);
            attention(&report, &compute);
            linear_layers(&report, &compute);
        }
    }
}
