//! Every family against `transformers`: hidden states, logits, loss, every gradient, Hessian-vector products and ten
//! steps of the optimizer. The goldens are tiny random models in f16, computed in f64 (`reference/train/families.py`).

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Golden, compute, distance, largest};
use qbert_kernels::Compute;
use qbert_model::family::{LayerSharing, RelativeBias};
use qbert_model::{Checkpoint, Family, Head, Module, Parameters};
use qbert_quant::{Matrix, Site};
use qbert_train::bert::{Activations, BackwardBuffers, HessianPass, Mode, Pass, Point};
use qbert_train::optimizer::{Optimizer, OptimizerSettings, Schedule};
use qbert_train::{Batch, Bert, Targets};

const ACTIVATION_TOLERANCE: f64 = 4e-6;
const GRADIENT_TOLERANCE: f64 = 2e-5;
const PRODUCT_TOLERANCE: f64 = 2e-5;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens-families")
}

struct Model {
    name: String,
    golden: Golden,
    compute: Compute,
    bert: Bert,
    weights: Parameters,
    batch: Batch,
}

impl Model {
    fn open(name: &str) -> Self {
        let golden = Golden::at(&directory().join(format!("{name}.safetensors")));
        let checkpoint = Checkpoint::open(&directory().join(name)).unwrap();
        assert_eq!(checkpoint.unsupported_head(), None, "{name}");
        let weights = checkpoint.load().unwrap();
        assert_eq!(checkpoint.unused(weights.layout()), Vec::<String>::new(), "{name}: nothing is left over");
        let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout())).unwrap();
        let batch = golden.batch();
        bert.check(&batch).unwrap();
        Self { name: name.to_owned(), golden, compute: compute(2), bert, weights, batch }
    }

    fn all() -> Vec<Self> {
        let names: BTreeSet<String> = std::fs::read_dir(directory())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| !name.ends_with(".safetensors"))
            .collect();
        assert!(names.len() >= 29, "{names:?}");
        names.iter().map(|name| Self::open(name)).collect()
    }

    fn pass<'a>(&'a self, weights: &'a [f32]) -> Pass<'a> {
        Pass { compute: &self.compute, weights, batch: &self.batch, mode: Mode::Evaluate }
    }

    /// Both passes: the loss, and the gradient of every parameter.
    fn gradients(&self, weights: &[f32], activations: &mut Activations) -> (f64, Vec<f32>) {
        let mut buffers = BackwardBuffers::default();
        let mut gradients = vec![0.0; weights.len()];
        self.bert.forward(&self.compute, weights, &self.batch, Mode::Evaluate, activations);
        let loss = self.bert.loss(&self.batch, activations, 1.0, &mut buffers);
        self.bert.backward(self.pass(weights), activations, &mut buffers, &mut gradients);
        (loss.mean, gradients)
    }

    fn close(&self, what: &str, ours: &[f32], tolerance: f64, least: f64) {
        let theirs = self.golden.floats(what);
        let error = distance(ours, &theirs);
        let bound = (tolerance * largest(&theirs)).max(least);
        assert!(error < bound, "{} {what}: off by {error:e}, allowed {bound:e}", self.name);
    }

    /// The goldens' names of a layer's parameters, with their places in the layer.
    fn parts(&self, layer: usize) -> Vec<(String, std::ops::Range<usize>)> {
        let layout = self.weights.layout();
        let span = layout.layers()[layer].clone();
        let own = layout.parameters().iter().filter(|p| span.start <= p.span.start && p.span.end <= span.end);
        own.map(|p| (layout.file_name(p), p.span.start - span.start..p.span.end - span.start)).collect()
    }

    /// The direction of a layer's product: a wave over each tensor, all together of norm 1.
    fn direction(&self, layer: usize) -> Vec<f32> {
        let mut waves = vec![0.0_f64; self.weights.layout().layers()[layer].len()];
        for (_, span) in self.parts(layer) {
            waves[span].iter_mut().enumerate().for_each(|(k, wave)| *wave = (1.0 + 0.37 * k as f64).sin());
        }
        let norm = waves.iter().map(|wave| wave * wave).sum::<f64>().sqrt();
        waves.iter().map(|wave| (wave / norm) as f32).collect()
    }
}

/// The key bias has no gradient in exact arithmetic, because softmax does not see a shift.
fn is_key_bias(parameter: &qbert_model::Parameter) -> bool {
    matches!(parameter.role.module, Module::Site(Site::Layer(_, Matrix::Key))) && parameter.shape.len() == 1
}

#[test]
fn every_family_has_a_model_for_every_head() {
    let models = Model::all();
    for family in Family::ALL.into_iter().skip(1) {
        for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
            let is_there = |model: &&Model| model.bert.config().family == family && model.bert.layout().head() == head;
            assert!(models.iter().any(|model| is_there(&model)), "{} {head:?}", family.model_type);
        }
    }
}

#[test]
fn states_logits_and_gradients_equal_the_twin() {
    for model in Model::all() {
        let mut activations = Activations::for_training();
        let weights = model.weights.values();
        let (loss, gradients) = model.gradients(weights, &mut activations);
        let config = model.bert.config();
        for layer in 0..=config.layers {
            if model.golden.has("hidden.0") {
                let is_last = layer == config.layers;
                let states = if is_last { activations.last_hidden(config) } else { &activations.hidden[layer] };
                model.close(&format!("hidden.{layer}"), states, ACTIVATION_TOLERANCE, 4e-6);
            }
        }
        model.close("logits", &activations.logits, ACTIVATION_TOLERANCE, 4e-6);
        let expected = model.golden.floats("loss")[0];
        assert!((loss - expected).abs() < 1e-6, "{}: loss {loss} instead of {expected}", model.name);
        for parameter in model.weights.layout().parameters() {
            let name = format!("grad/{}", model.weights.layout().file_name(parameter));
            model.close(&name, &gradients[parameter.span.clone()], GRADIENT_TOLERANCE, 3e-7);
        }
        let mut lean = Activations::for_evaluation();
        model.bert.forward(&model.compute, weights, &model.batch, Mode::Evaluate, &mut lean);
        assert_eq!(lean.logits, activations.logits, "{}: evaluation reuses buffers", model.name);
    }
}

#[test]
fn hessian_vector_products_equal_the_twin() {
    for model in Model::all().iter().filter(|model| model.golden.has("hidden.0")) {
        let point =
            Point { bert: &model.bert, compute: &model.compute, weights: model.weights.values(), batch: &model.batch };
        for layer in 0..model.bert.config().distinct_layers() {
            let direction = model.direction(layer);
            let mut theirs = vec![0.0; direction.len()];
            for (name, span) in model.parts(layer) {
                theirs[span].copy_from_slice(&model.golden.floats(&format!("hv/{name}")));
            }
            let mut pass = HessianPass::new();
            pass.prepare(point, layer, 1.0);
            let mut ours = vec![0.0; direction.len()];
            pass.product(point, layer, &direction, &mut ours);
            let norm = theirs.iter().map(|t| t * t).sum::<f64>().sqrt();
            let difference = ours.iter().zip(&theirs).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
            let error = difference / norm;
            assert!(error < PRODUCT_TOLERANCE, "{} layer {layer}: off by {error:e}", model.name);
            for (name, span) in model.parts(layer) {
                let error = distance(&ours[span.clone()], &theirs[span]);
                assert!(error < 1e-4 * norm, "{} {name}: off by {error:e} of {norm:e}", model.name);
            }
        }
    }
}

#[test]
fn ten_steps_equal_the_twins() {
    for mut model in Model::all() {
        if !model.golden.has("adamw/loss") {
            continue;
        }
        let settings = OptimizerSettings { learning_rate: 0.02, ..OptimizerSettings::default() };
        let mut optimizer = Optimizer::new(settings, model.weights.layout());
        let schedule = Schedule { peak: 0.02, warmup: 3, total: 10 };
        let (losses, norms) = (model.golden.floats("adamw/loss"), model.golden.floats("adamw/norm"));
        let mut activations = Activations::for_training();
        for step in 0..10 {
            let (loss, gradients) = model.gradients(model.weights.values(), &mut activations);
            let rate = schedule.rate(step);
            let norm = optimizer.step(&model.compute, rate, model.weights.values_mut(), &gradients);
            assert!((loss - losses[step]).abs() < 2e-5, "{}: loss of step {step}: {loss}", model.name);
            let expected = norms[step];
            assert!((norm / expected - 1.0).abs() < 1e-3, "{}: norm of step {step}: {norm}, {expected}", model.name);
            if step + 1 == 2 {
                let layout = Arc::clone(model.weights.layout());
                for parameter in layout.parameters().iter().filter(|parameter| !is_key_bias(parameter)) {
                    let name = format!("after_step_2/{}", layout.file_name(parameter));
                    model.close(&name, model.weights.get(parameter), 0.0, 4e-4);
                }
            }
        }
    }
}

#[test]
fn a_padding_token_is_not_counted_where_positions_follow_it() {
    let mut found = 0;
    for model in Model::all() {
        if !model.golden.has("padding/logits") {
            continue;
        }
        found += 1;
        let input_ids: Vec<u32> = model.golden.integers("padding/input_ids").iter().map(|&id| id as u32).collect();
        let offsets = vec![0, input_ids.len()];
        let batch =
            Batch { segments: vec![0; input_ids.len()], input_ids, offsets, targets: Targets::None, part: None };
        let mut activations = Activations::for_evaluation();
        model.bert.forward(&model.compute, model.weights.values(), &batch, Mode::Evaluate, &mut activations);
        model.close("padding/logits", &activations.logits, ACTIVATION_TOLERANCE, 4e-6);
    }
    assert_eq!(found, 4);
}

#[test]
fn distances_have_the_twins_buckets() {
    let model = Model::open("mpnet-sequence");
    let bias = model.bert.config().family.relative_bias;
    assert_ne!(bias, RelativeBias::None);
    let theirs = model.golden.integers("buckets");
    let ours: Vec<i64> = (-600..=600).map(|distance| bias.bucket(distance) as i64).collect();
    assert_eq!(ours, theirs);
}

/// Threads must not change a bit, also of sums over sequences and over layers that share weights.
#[test]
fn gradients_have_the_same_bits_for_any_number_of_threads() {
    for mut model in Model::all() {
        let mut activations = Activations::for_training();
        let mut bits = Vec::new();
        for threads in [1, 2, 3] {
            model.compute = compute(threads);
            let (_, gradients) = model.gradients(model.weights.values(), &mut activations);
            bits.push(gradients.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
        }
        assert!(bits[0] == bits[1] && bits[0] == bits[2], "{}", model.name);
    }
}

#[test]
fn shared_layers_are_stored_once() {
    let model = Model::open("albert-groups-sequence");
    let config = model.bert.config();
    assert!(matches!(config.family.sharing, LayerSharing::Groups { .. }));
    let weights: Vec<usize> = (0..config.layers).map(|layer| config.weights_of(layer)).collect();
    assert_eq!((config.distinct_layers(), weights), (2, vec![0, 0, 1]));
    assert_eq!(model.weights.layout().layers().len(), 2);
}
