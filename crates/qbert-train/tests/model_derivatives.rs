//! The gradient of the whole model against central differences of its loss, for the three heads, in evaluation and with
//! dropout: the masks of one seed and step are the same in every pass, so the loss is a smooth function of the weights.
//!
//! The goldens compare evaluation mode with PyTorch; dropout's way back through the model is shown only here.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::derivative::{Differences, check_gradient, norm};
use common::{Golden, compute, goldens};
use qbert_kernels::Compute;
use qbert_model::Checkpoint;
use qbert_train::bert::{Activations, BackwardBuffers, Mode, Pass};
use qbert_train::{Batch, Bert};

struct Model {
    compute: Compute,
    bert: Bert,
    batch: Batch,
    weights: Vec<f32>,
}

impl Model {
    fn tiny(name: &str) -> Self {
        let checkpoint = Checkpoint::open(&goldens().join(format!("tiny-{name}"))).unwrap();
        let weights = checkpoint.load().unwrap();
        let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout())).unwrap();
        let batch = Golden::open(&format!("tiny_{name}.safetensors")).batch();
        bert.check(&batch).unwrap();
        Self { compute: compute(2), bert, batch, weights: weights.values().to_vec() }
    }

    fn loss(&self, weights: &[f32], mode: Mode) -> f64 {
        let mut activations = Activations::for_evaluation();
        self.bert.forward(&self.compute, weights, &self.batch, mode, &mut activations);
        self.bert.loss(&self.batch, &activations, 1.0, &mut BackwardBuffers::default()).mean
    }

    fn gradient(&self, mode: Mode, scale: f64) -> Vec<f32> {
        let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
        let mut gradient = vec![0.0; self.weights.len()];
        self.bert.forward(&self.compute, &self.weights, &self.batch, mode, &mut activations);
        self.bert.loss(&self.batch, &activations, scale, &mut buffers);
        self.bert.backward(
            Pass { compute: &self.compute, weights: &self.weights, batch: &self.batch, mode },
            &activations,
            &mut buffers,
            &mut gradient,
        );
        gradient
    }
}

const EVALUATE: Mode = Mode::Evaluate;
const TRAIN: Mode = Mode::Train { seed: 11, step: 3 };

/// The loss is one number made of f32 logits: it is rounded by about 1e-7, and it bends more than a single operation.
/// The step therefore follows the gradient: such that the loss changes by about 2e-3, ten thousand times its rounding,
/// but all weights together move by 0.5 at most (they are 0.25 each, on average). Measured: within 6e-4
/// with every instruction set.
fn differences(gradient: &[f32]) -> Differences {
    let step = (1e-3 / norm(gradient)).min(0.5 / (gradient.len() as f64).sqrt());
    Differences { step: step as f32, tolerance: 1e-3 }
}

/// The largest norm of a gradient that is zero in exact arithmetic.
const ROUNDING: f64 = 1e-6;

/// All weights at once, then every parameter alone: a wrong bias gradient may not drown in the embeddings.
fn check_head(name: &str) {
    let model = Model::tiny(name);
    for mode in [EVALUATE, TRAIN] {
        let gradient = model.gradient(mode, 1.0);
        let what = format!("{name}, {mode:?}");
        check_gradient(&what, differences(&gradient), &model.weights, &gradient, |w| model.loss(w, mode));
        for parameter in model.bert.layout().parameters() {
            let span = parameter.span.clone();
            let own = &gradient[span.clone()];
            let what = format!("{name}, {mode:?}, {}", parameter.name);
            if vanishes(name, &parameter.name) {
                let length = norm(own);
                assert!(length < ROUNDING, "{what}: a gradient of {length:e} where a softmax sees no difference");
                continue;
            }
            let mut weights = model.weights.clone();
            check_gradient(&what, differences(own), &model.weights[span.clone()], own, |part| {
                weights[span.clone()].copy_from_slice(part);
                model.loss(&weights, mode)
            });
        }
    }
}

/// Whether the loss does not depend on a parameter because a softmax does not see a shift of all its inputs.
fn vanishes(head: &str, parameter: &str) -> bool {
    parameter.ends_with("attention.self.key.bias")
        || head == "span" && ["qa_outputs.bias", "encoder.layer.2.output.LayerNorm.bias"].contains(&parameter)
}

#[test]
fn sequence_classifier() {
    check_head("sequence");
}

#[test]
fn token_classifier() {
    check_head("token");
}

#[test]
fn span_head() {
    check_head("span");
}

#[test]
fn dropout_changes_with_the_step_and_only_with_it() {
    for name in ["sequence", "token", "span"] {
        let model = Model::tiny(name);
        let losses = [EVALUATE, TRAIN, TRAIN, Mode::Train { seed: 11, step: 4 }, Mode::Train { seed: 12, step: 3 }]
            .map(|mode| model.loss(&model.weights, mode));
        assert_eq!(losses[1], losses[2], "{name}: the same masks twice");
        let distinct: BTreeSet<u64> = losses.iter().map(|loss| loss.to_bits()).collect();
        assert_eq!(distinct.len(), 4, "{name}: {losses:?}");
    }
}

/// Gradient accumulation: two halves of a mean, added by [`Bert::backward`] itself, are the whole.
#[test]
fn gradients_of_micro_batches_add_up() {
    let model = Model::tiny("sequence");
    let whole = model.gradient(TRAIN, 1.0);
    let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
    let mut sum = vec![0.0; whole.len()];
    for _ in 0..2 {
        model.bert.forward(&model.compute, &model.weights, &model.batch, TRAIN, &mut activations);
        model.bert.loss(&model.batch, &activations, 0.5, &mut buffers);
        model.bert.backward(
            Pass { compute: &model.compute, weights: &model.weights, batch: &model.batch, mode: TRAIN },
            &activations,
            &mut buffers,
            &mut sum,
        );
    }
    let difference: Vec<f32> = sum.iter().zip(&whole).map(|(a, b)| a - b).collect();
    let error = norm(&difference) / norm(&whole);
    assert!(error < 1e-6, "off by {error:e} of the gradient, which is only rounding when it is below 1e-6");
}
