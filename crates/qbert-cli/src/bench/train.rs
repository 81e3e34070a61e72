//! Forward and backward pass without an optimizer step: 32 sequences of 64 random tokens, and 24 real batches of 32 SST-2
//! sentences in a random order.

use std::path::Path;
use std::time::Duration;

use qbert_kernels::Compute;

use qbert_train::bert::{Activations, BackwardBuffers, Mode, Pass, zero};
use qbert_train::random::Stream;
use qbert_train::{Batch, Result, Targets};

use super::classifier::{Budget, Classifier, Measurement, sst2_batches};

/// Measures both works; the second needs an SST-2 file.
pub(super) fn train(model: &Path, sst2: Option<&Path>, compute: &Compute) -> Result<Vec<Measurement>> {
    let classifier = Classifier::load(model, compute)?;
    let mut pass = TrainingPass::new(&classifier);
    let equal = [equal_lengths(classifier.bert.config().vocab_size)];
    let budget = Budget { time: Duration::from_secs(4), at_least: 5, warm: 2 };
    let mut found = vec![classifier.measure("train step, 32 x 64 tokens", &equal, budget, |batch| pass.step(batch))?];
    if let Some(path) = sst2 {
        let batches = sst2_batches(model, path, 24, 32)?;
        let budget = Budget { time: Duration::from_secs(10), at_least: 3, warm: 1 };
        let work = "train, 24 random SST-2 batches of 32";
        found.push(classifier.measure(work, &batches, budget, |batch| pass.step(batch))?);
    }
    Ok(found)
}

struct TrainingPass<'a> {
    classifier: &'a Classifier<'a>,
    gradients: Vec<f32>,
    activations: Activations,
    buffers: BackwardBuffers,
}

impl<'a> TrainingPass<'a> {
    fn new(classifier: &'a Classifier<'a>) -> Self {
        Self {
            classifier,
            gradients: vec![0.0; classifier.weights.values().len()],
            activations: Activations::for_training(),
            buffers: BackwardBuffers::default(),
        }
    }

    fn step(&mut self, batch: &Batch) {
        let Classifier { bert, compute, weights } = self.classifier;
        zero(compute, &mut self.gradients);
        bert.forward(compute, weights.values(), batch, Mode::Evaluate, &mut self.activations);
        bert.loss(batch, &self.activations, 1.0, &mut self.buffers);
        let pass = Pass { compute, weights: weights.values(), batch, mode: Mode::Evaluate };
        bert.backward(pass, &self.activations, &mut self.buffers, &mut self.gradients);
    }
}

/// 32 sequences of 64 random tokens.
fn equal_lengths(vocabulary: usize) -> Batch {
    let mut stream = Stream::new(0, "bench", 0);
    let mut batch = Batch::new();
    for _ in 0..32 {
        let ids: Vec<u32> = (0..64).map(|_| stream.below(vocabulary) as u32).collect();
        batch.push(&ids, &[0; 64]);
    }
    batch.targets = Targets::Sequences((0..32).map(|_| stream.below(2) as u32).collect());
    batch
}
