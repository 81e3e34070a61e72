//! The same bytes on every instruction set and with any number of threads, with used buffers as with fresh ones, and in
//! both kinds of buffers.
//!
//! The model has the proportions of MiniLM and is large enough that its matrix products, its elementwise operations and
//! every LayerNorm are split into several tasks, which is where an order of summation could depend on the threads.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;
use std::sync::Arc;

use qbert_kernels::{Compute, KERNEL_NAMES, Kernels, Threads};
use qbert_model::{Config, Head, ParameterLayout};
use qbert_train::bert::{Activations, BackwardBuffers, HessianPass, Mode, Pass, Point};
use qbert_train::random::Stream;
use qbert_train::{Batch, Bert, Targets};

const LABELS: usize = 7;
const VOCABULARY: usize = 500;
const TRAIN: Mode = Mode::Train { seed: 42, step: 7 };
/// Lengths of the ragged batch: 299 tokens.
const RAGGED: [usize; 9] = [1, 64, 17, 33, 2, 90, 41, 48, 3];

fn config() -> Config {
    let text = format!(
        r#"{{"model_type": "bert", "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3,
            "intermediate_size": 512, "vocab_size": {VOCABULARY}, "max_position_embeddings": 100,
            "type_vocab_size": 2, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}}"#
    );
    Config::parse(text.as_bytes(), Path::new("config.json")).unwrap()
}

struct Model {
    bert: Bert,
    weights: Vec<f32>,
}

impl Model {
    /// Random weights with signals of order 1 in every layer, so that nothing is hidden by being tiny.
    fn random(head: Head) -> Self {
        let config = config();
        let outputs = if head == Head::QuestionAnswering { 2 } else { LABELS };
        let layout = Arc::new(ParameterLayout::new(&config, head, outputs, false));
        let mut weights = vec![0.0; layout.len()];
        for (index, parameter) in layout.parameters().iter().enumerate() {
            let values = &mut weights[parameter.span.clone()];
            Stream::new(3, "weights", index as u64).fill_normal(values, 0.08);
            if parameter.name.ends_with("LayerNorm.weight") {
                values.iter_mut().for_each(|gamma| *gamma += 1.0);
            }
        }
        Self { bert: Bert::new(&config, layout).unwrap(), weights }
    }

    fn batch(&self, name: &str, lengths: &[usize]) -> Batch {
        let mut stream = Stream::new(4, name, 0);
        let mut batch = Batch::new();
        for &length in lengths {
            let ids: Vec<u32> = (0..length).map(|_| stream.below(VOCABULARY) as u32).collect();
            let segments: Vec<u8> = (0..length).map(|t| u8::from(2 * t > length)).collect();
            batch.push(&ids, &segments);
        }
        let mut label = || stream.below(LABELS) as u32;
        batch.targets = match self.bert.layout().head() {
            Head::SequenceClassification => Targets::Sequences(lengths.iter().map(|_| label()).collect()),
            Head::TokenClassification => {
                Targets::Tokens((0..batch.tokens()).map(|t| (t % 3 != 0).then(&mut label)).collect())
            }
            _ => Targets::Spans(lengths.iter().map(|&n| (stream.below(n) as u32, stream.below(n) as u32)).collect()),
        };
        self.bert.check(&batch).unwrap();
        batch
    }

    fn run(&self, compute: &Compute, batch: &Batch, memory: &mut Memory) -> Output {
        let Memory { activations, buffers } = memory;
        let mut gradients = vec![0.0; self.weights.len()];
        self.bert.forward(compute, &self.weights, batch, TRAIN, activations);
        let loss = self.bert.loss(batch, activations, 1.0, buffers).mean;
        self.bert.backward(
            Pass { compute, weights: &self.weights, batch, mode: TRAIN },
            activations,
            buffers,
            &mut gradients,
        );
        assert!(loss.is_finite() && loss > 0.1, "a loss of {loss} shows nothing");
        Output { logits: bits(&activations.logits), loss: loss.to_bits(), gradients: bits(&gradients) }
    }
}

struct Memory {
    activations: Activations,
    buffers: BackwardBuffers,
}

impl Memory {
    fn fresh() -> Self {
        Self { activations: Activations::for_training(), buffers: BackwardBuffers::default() }
    }
}

/// Everything a step of training sees, as bits: equal means equal to the last one.
#[derive(PartialEq, Eq)]
struct Output {
    logits: Vec<u32>,
    loss: u64,
    gradients: Vec<u32>,
}

impl Output {
    fn assert_equals(&self, other: &Self, model: &Model, what: &str) {
        assert_eq!(self.logits, other.logits, "logits differ {what}");
        assert_eq!(self.loss, other.loss, "losses differ {what}");
        for parameter in model.bert.layout().parameters() {
            let (a, b) = (&self.gradients[parameter.span.clone()], &other.gradients[parameter.span.clone()]);
            let differing = a.iter().zip(b).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 0, "{differing} of {} gradients of {} differ {what}", a.len(), parameter.name);
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn compute(kernels: Kernels, threads: usize) -> Compute {
    Compute::new(kernels, Threads::new(threads).unwrap())
}

/// All of them for the kernels that people use. Others are slow, and `qbert-kernels` tests them with any number.
fn thread_counts(kernels: Kernels) -> &'static [usize] {
    if kernels == Kernels::best() { &[1, 2, 3] } else { &[2] }
}

#[test]
fn every_instruction_set_and_number_of_threads_gives_the_same_bytes() {
    assert!(Kernels::supported().iter().all(|kernels| KERNEL_NAMES.contains(&kernels.name())));
    for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
        let model = Model::random(head);
        let batch = model.batch("threads", &RAGGED);
        let single = model.run(&compute(Kernels::best(), 1), &batch, &mut Memory::fresh());
        for kernels in Kernels::supported() {
            for &threads in thread_counts(kernels) {
                let compute = compute(kernels, threads);
                for repetition in 0..2 {
                    let several = model.run(&compute, &batch, &mut Memory::fresh());
                    let what = format!("with {threads} threads of {}, {head:?}, run {repetition}", kernels.name());
                    several.assert_equals(&single, &model, &what);
                }
            }
        }
    }
}

/// One preparation serves the products of all layers, in whatever order and buffers.
#[test]
fn hessian_vector_products_give_the_same_bytes_everywhere() {
    for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
        let model = Model::random(head);
        let (batch, other) = (model.batch("curvature", &RAGGED), model.batch("larger", &[100, 80, 7]));
        let mut first = vec![Vec::new(); model.bert.config().layers];
        for kernels in Kernels::supported() {
            let mut pass = HessianPass::new();
            for &threads in thread_counts(kernels) {
                let compute = &compute(kernels, threads);
                let point = Point { bert: &model.bert, compute, weights: &model.weights, batch: &batch };
                pass.prepare(Point { batch: &other, ..point }, 1, 1.0);
                pass.prepare(point, 0, 1.0);
                for (layer, span) in model.bert.layout().layers().iter().enumerate().rev() {
                    let (mut vector, mut product) = (vec![0.0; span.len()], vec![0.0; span.len()]);
                    Stream::new(5, "direction", layer as u64).fill_normal(&mut vector, 0.01);
                    pass.product(point, layer, &vector, &mut product);
                    assert!(product.iter().any(|value| value.abs() > 1e-6), "a product of nothing");
                    if first[layer].is_empty() {
                        first[layer] = bits(&product);
                    }
                    let what = format!("layer {layer}, {threads} threads of {}, {head:?}", kernels.name());
                    assert!(bits(&product) == first[layer], "{what}");
                }
            }
        }
    }
}

#[test]
fn used_buffers_give_the_same_bytes_as_fresh_ones() {
    let compute = common::compute(2);
    for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
        let model = Model::random(head);
        let batch = model.batch("ragged", &RAGGED);
        let larger = model.batch("larger", &[100, 80, 100, 99, 7, 60]);
        let smaller = model.batch("smaller", &[5, 1, 12]);
        let expected = model.run(&compute, &batch, &mut Memory::fresh());
        let expected_smaller = model.run(&compute, &smaller, &mut Memory::fresh());
        let mut memory = Memory::fresh();
        for (batch, expected, what) in [
            (&batch, Some(&expected), "in fresh buffers"),
            (&larger, None, ""),
            (&smaller, Some(&expected_smaller), "in buffers of a larger batch"),
            (&batch, Some(&expected), "in buffers of a smaller batch"),
            (&batch, Some(&expected), "in buffers of the same batch"),
        ] {
            let output = model.run(&compute, batch, &mut memory);
            if let Some(expected) = expected {
                output.assert_equals(expected, &model, &format!("{what}, {head:?}"));
            }
        }
    }
}

/// Evaluation keeps one layer's activations in place of all, and its GELU has no slope: the numbers are the same.
#[test]
fn evaluation_buffers_give_the_same_bytes_as_training_buffers() {
    let compute = common::compute(2);
    for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
        let model = Model::random(head);
        let (mut kept, mut lean) = (Activations::for_training(), Activations::for_evaluation());
        // From large to small, so that the lean buffers are used ones too.
        for lengths in [&[100, 80, 100, 99, 7, 60][..], &RAGGED, &[1], &[5, 1, 12]] {
            let batch = model.batch("evaluation", lengths);
            for mode in [Mode::Evaluate, TRAIN] {
                model.bert.forward(&compute, &model.weights, &batch, mode, &mut kept);
                model.bert.forward(&compute, &model.weights, &batch, mode, &mut lean);
                let layers = model.bert.config().layers;
                let last = |a: &Activations| bits(&a.hidden[a.hidden_index(layers)]);
                assert_eq!(last(&kept), last(&lean), "hidden states, {head:?}, {mode:?}, {lengths:?}");
                assert_eq!(bits(&kept.pooled), bits(&lean.pooled), "pooled, {head:?}, {mode:?}, {lengths:?}");
                assert_eq!(bits(&kept.logits), bits(&lean.logits), "logits, {head:?}, {mode:?}, {lengths:?}");
                assert!(lean.layers.len() == 1 && lean.layers[0].slope.is_empty(), "evaluation keeps nothing");
            }
        }
    }
}

/// A sequence's answer does not depend on what else is in its batch: there is no padding and no batch statistic.
#[test]
fn a_sequence_alone_gives_the_answer_it_gives_in_a_batch() {
    let compute = common::compute(2);
    let model = Model::random(Head::SequenceClassification);
    let batch = model.batch("company", &RAGGED);
    let mut activations = Activations::for_evaluation();
    model.bert.forward(&compute, &model.weights, &batch, Mode::Evaluate, &mut activations);
    let together = activations.logits.clone();
    for (sequence, range) in batch.ranges().enumerate() {
        let mut alone = Batch::new();
        alone.push(&batch.input_ids[range.clone()], &batch.segments[range]);
        model.bert.forward(&compute, &model.weights, &alone, Mode::Evaluate, &mut activations);
        let pairs = activations.logits.iter().zip(&together[sequence * LABELS..(sequence + 1) * LABELS]);
        // Not to the bit: a product of few rows may take another kernel.
        let error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < 2e-5, "sequence {sequence}: off by {error:e}");
    }
}
