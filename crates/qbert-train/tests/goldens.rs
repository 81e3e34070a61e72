//! Hidden states, logits, loss and every gradient against the PyTorch twin in f64.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::sync::Arc;

use common::{Golden, compute, distance, goldens, largest};
use qbert_model::Checkpoint;
use qbert_train::bert::{Activations, BackwardBuffers, Mode, Pass};
use qbert_train::{Bert, Targets};

/// Our f32 against f64: PyTorch's own f32 is within 4e-7 for activations and 3.5e-6 of a tensor's largest gradient.
const ACTIVATION_TOLERANCE: f64 = 4e-6;
const GRADIENT_TOLERANCE: f64 = 2e-5;

fn check_head(name: &str) {
    let golden = Golden::open(&format!("tiny_{name}.safetensors"));
    let checkpoint = Checkpoint::open(&goldens().join(format!("tiny-{name}"))).unwrap();
    let weights = checkpoint.load().unwrap();
    let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout())).unwrap();
    let batch = golden.batch();
    bert.check(&batch).unwrap();
    let compute = compute(2);
    let mut activations = Activations::for_training();
    bert.forward(&compute, weights.values(), &batch, Mode::Evaluate, &mut activations);

    let close = |what: &str, ours: &[f32]| {
        let theirs = golden.floats(&format!("f64/{what}"));
        let error = distance(ours, &theirs);
        let bound = ACTIVATION_TOLERANCE * largest(&theirs).max(1.0);
        assert!(error < bound, "{name} {what}: off by {error:e}, allowed {bound:e}");
    };
    close("embeddings", &activations.hidden[0]);
    for layer in 0..checkpoint.config().layers {
        close(&format!("hidden.{layer}"), &activations.hidden[layer + 1]);
    }
    close("attention.0", &activations.layers[0].probabilities);
    if matches!(batch.targets, Targets::Sequences(_)) {
        close("pooled", &activations.pooled);
    }
    close("logits", &activations.logits);

    let mut buffers = BackwardBuffers::default();
    let mut gradients = vec![0.0; weights.values().len()];
    let loss = bert.loss(&batch, &activations, 1.0, &mut buffers);
    let expected = golden.floats("f64/loss")[0];
    assert!((loss.mean - expected).abs() < 1e-6, "{name} loss {} instead of {expected}", loss.mean);
    bert.backward(
        Pass { compute: &compute, weights: weights.values(), batch: &batch, mode: Mode::Evaluate },
        &activations,
        &mut buffers,
        &mut gradients,
    );
    for parameter in weights.layout().parameters() {
        let theirs = golden.floats(&format!("f64/grad/{}", weights.layout().file_name(parameter)));
        let error = distance(&gradients[parameter.span.clone()], &theirs);
        // Some gradients are zero in exact arithmetic (a shift that softmax does not see); there only noise is left.
        let bound = (GRADIENT_TOLERANCE * largest(&theirs)).max(2e-7);
        assert!(error < bound, "{name} gradient of {}: off by {error:e}, allowed {bound:e}", parameter.name);
    }

    // Evaluation reuses two buffers for all layers and must say the same, to the last bit.
    let mut lean = Activations::for_evaluation();
    bert.forward(&compute, weights.values(), &batch, Mode::Evaluate, &mut lean);
    assert_eq!(lean.logits, activations.logits);
}

#[test]
fn the_sequence_classifier_equals_its_twin() {
    check_head("sequence");
}

#[test]
fn the_token_classifier_equals_its_twin() {
    check_head("token");
}

#[test]
fn the_span_head_equals_its_twin() {
    check_head("span");
}
