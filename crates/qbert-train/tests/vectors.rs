//! Models of vectors: the gradient and the curvature of the distance from a model's own vectors, against differences.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::sync::Arc;

use common::derivative::{norm, normal};
use common::{Golden, compute, goldens};
use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Embedder, Head, Pooling};
use qbert_train::bert::{Activations, BackwardBuffers, HessianPass, Mode, Pass, Point};
use qbert_train::ops::distill;
use qbert_train::{Batch, Bert, Targets};

struct Model {
    compute: Compute,
    bert: Bert,
    weights: Vec<f32>,
    batch: Batch,
    own: Vec<f32>,
}

impl Model {
    fn new(embedder: Embedder) -> Self {
        let checkpoint = Checkpoint::open(&goldens().join("tiny-sequence")).unwrap();
        let weights = checkpoint.load_for(Head::None, 0).unwrap().parameters;
        let mut config = checkpoint.config().clone();
        config.embedder = Some(embedder);
        let bert = Bert::new(&config, Arc::clone(weights.layout())).unwrap();
        let mut batch = Golden::open("tiny_sequence.safetensors").batch();
        batch.targets = Targets::Vectors { count: batch.sequences(), pairs: Vec::new() };
        bert.check(&batch).unwrap();
        let weights = weights.values().to_vec();
        let mut model = Self { compute: compute(2), bert, weights, batch, own: Vec::new() };
        model.own = model.forward(&model.weights).logits;
        model
    }

    fn forward(&self, weights: &[f32]) -> Activations {
        let mut activations = Activations::for_training();
        self.bert.forward(&self.compute, weights, &self.batch, Mode::Evaluate, &mut activations);
        activations
    }

    /// Distance and similarities, and the gradient of a layer.
    fn gradient(&self, weights: &[f32], layer: usize, (answers, similarities): (f64, f64)) -> (f64, Vec<f32>) {
        let activations = self.forward(weights);
        let mut buffers = BackwardBuffers::default();
        self.bert.loss(&self.batch, &activations, 1.0, &mut buffers);
        let (vectors, width) = ((&activations.logits[..], &self.own[..]), self.bert.outputs());
        let mut loss = answers * distill::answers(vectors, &self.batch, width, (1.0, answers), &mut buffers.d_logits);
        loss += similarities * distill::similarities(vectors, width, similarities, &mut buffers.d_logits);
        let mut gradient = vec![0.0; weights.len()];
        let pass = Pass { compute: &self.compute, weights, batch: &self.batch, mode: Mode::Evaluate };
        self.bert.backward(pass, &activations, &mut buffers, &mut gradient);
        (loss, gradient[self.bert.layout().layers()[layer].clone()].to_vec())
    }

    fn shifted(&self, layer: usize, v: &[f32], by: f32) -> Vec<f32> {
        let mut weights = self.weights.clone();
        let span = self.bert.layout().layers()[layer].clone();
        weights[span].iter_mut().zip(v).for_each(|(w, v)| *w += by * v);
        weights
    }

    fn direction(&self, layer: usize) -> Vec<f32> {
        let mut v = normal("direction", self.bert.layout().layers()[layer].len());
        let length = norm(&v) as f32;
        v.iter_mut().for_each(|v| *v /= length);
        v
    }
}

fn embedders() -> [Embedder; 4] {
    let cut = Embedder { dimensions: Some(5), ..Embedder::new(Pooling::Mean, true) };
    [Embedder::new(Pooling::Mean, true), Embedder::new(Pooling::Mean, false), Embedder::new(Pooling::Last, true), cut]
}

#[test]
fn curvature_is_that_of_the_distance_from_the_own_vectors() {
    for embedder in embedders() {
        let model = Model::new(embedder.clone());
        for layer in 0..model.bert.config().layers {
            let v = model.direction(layer);
            let point =
                Point { bert: &model.bert, compute: &model.compute, weights: &model.weights, batch: &model.batch };
            let mut pass = HessianPass::new();
            assert_eq!(pass.prepare(point, layer, 1.0).mean, 0.0);
            let mut product = vec![0.0; v.len()];
            pass.product(point, layer, &v, &mut product);
            let step = 1e-2;
            let [above, below] =
                [step, -step].map(|by| model.gradient(&model.shifted(layer, &v, by), layer, (1.0, 0.0)).1);
            let expected: Vec<f32> = above.iter().zip(&below).map(|(a, b)| (a - b) / (2.0 * step)).collect();
            let error: Vec<f32> = product.iter().zip(&expected).map(|(a, b)| a - b).collect();
            let relative = norm(&error) / norm(&expected);
            assert!(relative < 2e-2, "{embedder:?}, layer {layer}: {relative}");
        }
    }
}

#[test]
fn gradients_are_those_of_the_terms() {
    for embedder in embedders() {
        for weights in [(1.0, 0.0), (0.0, 1.0), (0.5, 2.0)] {
            let model = Model::new(embedder.clone());
            let layer = 1;
            let v = model.direction(layer);
            // Away from the own vectors, where the gradient is zero.
            let away = |by: f32| model.shifted(layer, &v, 1.0 + by);
            let (_, gradient) = model.gradient(&away(0.0), layer, weights);
            let along: f64 = gradient.iter().zip(&v).map(|(g, v)| f64::from(*g) * f64::from(*v)).sum();
            let step = 2e-2;
            let [above, below] = [step, -step].map(|by| model.gradient(&away(by), layer, weights).0);
            let expected = (above - below) / (2.0 * f64::from(step));
            let relative = (along - expected).abs() / expected.abs();
            assert!(relative < 2e-2, "{embedder:?} {weights:?}: {along} {expected}");
        }
    }
}
