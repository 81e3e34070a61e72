//! One exact Hessian-vector product for every encoder layer over real SST-2 batches, all layers in lock step.

use std::path::Path;
use std::time::Duration;

use qbert_kernels::Compute;

use qbert_train::Result;
use qbert_train::bert::{HessianPass, Point};
use qbert_train::random::Stream;

use super::classifier::{Budget, Classifier, Measurement, sst2_batches};

/// As many batches as the PyTorch script takes.
const BATCHES: usize = 4;

/// Measures the products of all layers.
pub(super) fn hvp(model: &Path, sst2: &Path, compute: &Compute) -> Result<Vec<Measurement>> {
    let classifier = Classifier::load(model, compute)?;
    let batches = sst2_batches(model, sst2, BATCHES, 32)?;
    let layers = classifier.bert.layout().layers();
    let vector = |(layer, span): (usize, &std::ops::Range<usize>)| {
        let mut vector = vec![0.0; span.len()];
        Stream::new(0, "bench hvp", layer as u64).fill_normal(&mut vector, 1.0);
        vector
    };
    let vectors: Vec<Vec<f32>> = layers.iter().enumerate().map(vector).collect();
    let mut products: Vec<Vec<f32>> = vectors.iter().map(|vector| vec![0.0; vector.len()]).collect();
    let mut pass = HessianPass::new();
    let work = format!("HVP of each of {} layers over {BATCHES} SST-2 batches of 32", layers.len());
    let budget = Budget { time: Duration::from_secs(6), at_least: 3, warm: 1 };
    let found = classifier.measure(&work, &batches, budget, |batch| {
        let weights = classifier.weights.values();
        let point = Point { bert: &classifier.bert, compute, weights, batch };
        pass.prepare(point, 0, 1.0 / BATCHES as f64);
        for (layer, (vector, product)) in vectors.iter().zip(&mut products).enumerate() {
            pass.product(point, layer, vector, product);
        }
    })?;
    Ok(vec![found])
}
