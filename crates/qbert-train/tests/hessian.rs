//! Hessian-vector products: against the PyTorch twin's double backward in f64, against differences of our own gradient,
//! symmetric, the same bytes with any number of threads, and good enough for eigenvalues.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use common::derivative::{norm, normal, weighted_sum};
use common::{Golden, compute, goldens};
use qbert_hessian::{Basis, Lanczos, PowerIteration, Stop, SymmetricOperator};
use qbert_kernels::Compute;
use qbert_model::{Checkpoint, ParameterLayout};
use qbert_train::bert::{Activations, BackwardBuffers, HessianPass, Mode, Pass, Point};
use qbert_train::{Batch, Bert, Targets};

/// Of H·v, relative to its norm: we measured 1.3e-6 against the twin in f64.
const PRODUCT_TOLERANCE: f64 = 1e-5;

struct Model {
    compute: Compute,
    bert: Bert,
    weights: Vec<f32>,
    batch: Batch,
}

impl Model {
    fn tiny(name: &str) -> Self {
        let checkpoint = Checkpoint::open(&goldens().join(format!("tiny-{name}"))).unwrap();
        let weights = checkpoint.load().unwrap();
        let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout())).unwrap();
        let batch = Golden::open(&format!("tiny_{name}.safetensors")).batch();
        bert.check(&batch).unwrap();
        Self { compute: compute(2), bert, weights: weights.values().to_vec(), batch }
    }

    fn layers(&self) -> usize {
        self.bert.config().layers
    }

    fn point(&self) -> Point<'_> {
        Point { bert: &self.bert, compute: &self.compute, weights: &self.weights, batch: &self.batch }
    }

    fn size(&self, layer: usize) -> usize {
        self.bert.layout().layers()[layer].len()
    }

    fn product(&self, layer: usize, v: &[f32]) -> Vec<f32> {
        let mut pass = HessianPass::new();
        pass.prepare(self.point(), layer, 1.0);
        let mut product = vec![0.0; v.len()];
        pass.product(self.point(), layer, v, &mut product);
        product
    }

    fn gradient(&self, weights: &[f32], layer: usize) -> Vec<f32> {
        let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
        let mut gradient = vec![0.0; weights.len()];
        self.bert.forward(&self.compute, weights, &self.batch, Mode::Evaluate, &mut activations);
        self.bert.loss(&self.batch, &activations, 1.0, &mut buffers);
        self.bert.backward(
            Pass { compute: &self.compute, weights, batch: &self.batch, mode: Mode::Evaluate },
            &activations,
            &mut buffers,
            &mut gradient,
        );
        gradient[self.bert.layout().layers()[layer].clone()].to_vec()
    }

    /// `(∇L(w + h·v) − ∇L(w − h·v)) / 2h` for two steps, extrapolated: exact up to `h⁴` and to rounding over `h`.
    fn difference(&self, layer: usize, v: &[f32], step: f32) -> Vec<f64> {
        let span = self.bert.layout().layers()[layer].clone();
        let [whole, half] = [step, step / 2.0].map(|step| {
            let shifted = |by: f32| {
                let mut weights = self.weights.clone();
                weights[span.clone()].iter_mut().zip(v).for_each(|(w, v)| *w += by * v);
                self.gradient(&weights, layer)
            };
            let (above, below) = (shifted(step), shifted(-step));
            let slope = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)) / (2.0 * f64::from(step));
            above.iter().zip(&below).map(slope).collect::<Vec<_>>()
        });
        half.iter().zip(&whole).map(|(half, whole)| (4.0 * half - whole) / 3.0).collect()
    }
}

/// A layer's parameters: name and place within the layer.
fn parts(layout: &ParameterLayout, layer: usize) -> Vec<(String, Range<usize>)> {
    let prefix = format!("encoder.layer.{layer}.");
    let start = layout.layers()[layer].start;
    let own = layout.parameters().iter().filter(|p| p.name.starts_with(&prefix));
    own.map(|p| (p.name[prefix.len()..].to_owned(), p.span.start - start..p.span.end - start)).collect()
}

/// A whole layer of a golden, in the layout's order.
fn golden_layer(golden: &Golden, layout: &ParameterLayout, layer: usize, kind: &str) -> Vec<f64> {
    let mut flat = vec![0.0; layout.layers()[layer].len()];
    for (part, span) in parts(layout, layer) {
        flat[span].copy_from_slice(&golden.floats(&format!("layer.{layer}/{kind}/{part}")));
    }
    flat
}

fn relative_error(ours: &[f32], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    square(&mut ours.iter().zip(theirs).map(|(a, b)| f64::from(*a) - b)) / square(&mut theirs.iter().copied())
}

fn unit(name: &str, length: usize) -> Vec<f32> {
    let mut v = normal(name, length);
    let length = norm(&v) as f32;
    v.iter_mut().for_each(|v| *v /= length);
    v
}

#[test]
fn products_equal_the_twin() {
    let model = Model::tiny("sequence");
    let (golden, layout) = (Golden::open("tiny_hessian.safetensors"), model.bert.layout());
    for layer in 0..model.layers() {
        let v: Vec<f32> = golden_layer(&golden, layout, layer, "v").into_iter().map(|v| v as f32).collect();
        let theirs = golden_layer(&golden, layout, layer, "hv");
        let ours = model.product(layer, &v);
        let error = relative_error(&ours, &theirs);
        assert!(error < PRODUCT_TOLERANCE, "layer {layer}: off by {error:e}");
        let (vhv, expected) = (weighted_sum(&v, &ours), golden.floats(&format!("layer.{layer}/vhv"))[0]);
        assert!((vhv - expected).abs() < PRODUCT_TOLERANCE * norm(&ours), "layer {layer}: vᵀHv {vhv}, not {expected}");
        // Every parameter's own share, so that a wrong LayerNorm cannot hide behind the matrices.
        for (part, span) in parts(layout, layer) {
            let scale = theirs[span.clone()].iter().map(|t| t * t).sum::<f64>().sqrt();
            let own = &ours[span.clone()];
            if part.ends_with("key.bias") {
                assert!(
                    norm(own) < 1e-6 * norm(&ours),
                    "layer {layer} {part}: {} where softmax sees nothing",
                    norm(own)
                );
            } else {
                let error = relative_error(own, &theirs[span]);
                assert!(error < 5.0 * PRODUCT_TOLERANCE, "layer {layer} {part}: off by {error:e} of {scale:e}");
            }
        }
    }
}

/// Measured: within 1.2e-4, which is what rounding leaves of a difference of f32 gradients.
#[test]
fn products_equal_differences_of_the_gradient() {
    for name in ["sequence", "token", "span"] {
        let model = Model::tiny(name);
        for layer in 0..model.layers() {
            let v = unit(&format!("{name} {layer}"), model.size(layer));
            let ours = model.product(layer, &v);
            let error = relative_error(&ours, &model.difference(layer, &v, 0.05));
            assert!(error < 1e-3, "{name} layer {layer}: off by {error:e}");
        }
    }
}

/// Every column of a whole block, and with them every entry of it: one coordinate moves at a time, so that no error can
/// hide in a sum. The trace is the twin's. Measured: 9e-5 of the block's norm.
#[test]
fn the_dense_block_equals_differences_of_the_gradient() {
    let (mut model, layer) = (Model::tiny("sequence"), 1);
    model.compute = compute(1);
    let size = model.size(layer);
    let mut pass = HessianPass::new();
    pass.prepare(model.point(), layer, 1.0);
    let (mut trace, mut error, mut whole) = (0.0, 0.0, 0.0);
    for column in 0..size {
        let (mut v, mut product) = (vec![0.0; size], vec![0.0; size]);
        v[column] = 1.0;
        pass.product(model.point(), layer, &v, &mut product);
        trace += f64::from(product[column]);
        let difference = model.difference(layer, &v, 0.05);
        error += product.iter().zip(&difference).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>();
        whole += difference.iter().map(|b| b * b).sum::<f64>();
    }
    let error = (error / whole).sqrt();
    assert!(error < 1e-3, "{size} columns: off by {error:e} of the block's norm");
    let expected = Golden::open("tiny_hessian.safetensors").floats(&format!("layer.{layer}/trace"))[0];
    assert!((trace - expected).abs() < 1e-5 * whole.sqrt(), "trace {trace}, not {expected}");
}

/// Measured: within 1e-8 of the norm.
#[test]
fn the_hessian_is_symmetric() {
    for name in ["sequence", "token", "span"] {
        let model = Model::tiny(name);
        for layer in 0..model.layers() {
            let (u, v) = (unit("u", model.size(layer)), unit("v", model.size(layer)));
            let (hu, hv) = (model.product(layer, &u), model.product(layer, &v));
            let (uhv, vhu) = (weighted_sum(&u, &hv), weighted_sum(&v, &hu));
            let error = (uhv - vhu).abs() / norm(&hv).max(norm(&hu));
            assert!(uhv.abs() > 1e-4 * norm(&hv), "{name} layer {layer}: two vectors that show nothing");
            assert!(error < 1e-7, "{name} layer {layer}: {uhv} and {vhu}");
        }
    }
}

/// One preparation serves all layers; used buffers, other batches in between and other thread counts change nothing.
#[test]
fn threads_and_used_buffers_change_no_byte() {
    for name in ["sequence", "token", "span"] {
        let mut model = Model::tiny(name);
        let expected: Vec<_> = (0..model.layers()).map(|l| model.product(l, &unit("bytes", model.size(l)))).collect();
        let mut pass = HessianPass::new();
        for threads in [1, 2, 3] {
            model.compute = compute(threads);
            let mut small = Batch::new();
            small.push(&model.batch.input_ids[..2], &model.batch.segments[..2]);
            let loss = pass.prepare(Point { batch: &small, ..model.point() }, 1, 1.0);
            assert_eq!(loss.terms, 0, "a batch without targets");
            pass.prepare(model.point(), 0, 1.0);
            for layer in (0..model.layers()).rev() {
                let mut product = vec![0.0; model.size(layer)];
                pass.product(model.point(), layer, &unit("bytes", model.size(layer)), &mut product);
                let same = product.iter().zip(&expected[layer]).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{name} layer {layer}, {threads} threads");
            }
        }
    }
}

/// Without targets there is no loss, and without a loss no curvature.
#[test]
fn no_targets_no_curvature() {
    let mut model = Model::tiny("sequence");
    model.batch.targets = Targets::None;
    let product = model.product(1, &unit("nothing", model.size(1)));
    assert!(product.iter().all(|&value| value == 0.0));
}

/// Two halves of a mean, added by the product itself, are the whole.
#[test]
fn products_of_batches_add_up() {
    let model = Model::tiny("token");
    let v = unit("halves", model.size(0));
    let whole: Vec<f64> = model.product(0, &v).into_iter().map(f64::from).collect();
    let (mut pass, mut sum) = (HessianPass::new(), vec![0.0; v.len()]);
    for scale in [0.25, 0.75] {
        pass.prepare(model.point(), 0, scale);
        pass.product(model.point(), 0, &v, &mut sum);
    }
    let error = relative_error(&sum, &whole);
    assert!(error < 1e-6, "off by {error:e}, which is more than rounding");
}

/// The Hessian block of one layer as the eigenvalue methods see it.
struct LayerHessian<'a> {
    model: &'a Model,
    pass: HessianPass,
    layer: usize,
}

impl SymmetricOperator for LayerHessian<'_> {
    type Error = Infallible;

    fn dimension(&self) -> usize {
        self.model.size(self.layer)
    }

    fn multiply(&mut self, vector: &[f32], product: &mut [f32]) -> Result<(), Infallible> {
        product.fill(0.0);
        self.pass.product(self.model.point(), self.layer, vector, product);
        Ok(())
    }
}

/// Measured: power iteration within 7e-7, Lanczos within 9e-7.
#[test]
fn eigenvalues_equal_those_of_the_dense_hessian() {
    let model = Model::tiny("sequence");
    let golden = Golden::open("tiny_hessian.safetensors");
    for layer in 0..model.layers() {
        let expected = golden.floats(&format!("layer.{layer}/eigenvalue_dominant"))[0];
        let mut operator = LayerHessian { model: &model, pass: HessianPass::new(), layer };
        operator.pass.prepare(model.point(), layer, 1.0);
        let start = normal("start", model.size(layer));

        let mut power = PowerIteration::new(&start, Stop { iterations: 2000, tolerance: 1e-8 });
        let Ok(()) = qbert_hessian::run(&mut power, &mut operator);
        let (found, error) = (power.found(), (power.found().value - expected).abs() / expected.abs());
        assert!(error < 1e-5, "layer {layer}: power iteration {found:?}, not {expected}");

        let mut lanczos = Lanczos::new(&start, Stop { iterations: 200, tolerance: 1e-6 }, Basis::Kept);
        let Ok(()) = qbert_hessian::run(&mut lanczos, &mut operator);
        let spectrum = lanczos.spectrum();
        let error = (spectrum.dominant().0 - expected).abs() / expected.abs();
        assert!(error < 1e-5, "layer {layer}: Lanczos {spectrum:?}, not {expected}");
    }
}
