//! What `bench train` and `bench hvp` share: a checkpoint with a new head, SST-2 batches and the stopwatch.
//!
//! The work is the same as in the PyTorch scripts it is compared with. Real sentences come in the order of Python's
//! `random.Random(0).shuffle`, so that both sides compute on the same ones.

use std::path::Path;
use std::time::{Duration, Instant};

use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Head, Module, Parameters};
use qbert_tasks::{Dataset, ReadOptions, Task, Tokenizer, classify, read};
use qbert_train::bert::Bert;
use qbert_train::random::Stream;
use qbert_train::{Batch, Error, Result, Targets};
use serde::Serialize;

use super::python_random;
use crate::machine::Computer;

/// One measurement, in the fields that the PyTorch scripts print.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measurement {
    /// The program that was measured.
    pub(super) peer: String,
    /// The work it did.
    pub(super) work: String,
    pub(super) threads: usize,
    /// Tokens of all batches.
    pub(super) real_tokens: usize,
    /// Median milliseconds.
    pub(super) ms: f64,
    /// Shortest milliseconds.
    pub(super) best_ms: f64,
    /// Number of measured runs.
    pub(super) n: usize,
    /// Peak memory use of the process so far.
    pub(super) peak_rss_mib: Option<f64>,
    #[serde(flatten)]
    pub(super) computer: Computer,
}

/// How long a benchmark repeats its work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) time: Duration,
    pub(super) at_least: usize,
    /// Runs before the first measured one.
    pub(super) warm: usize,
}

/// A checkpoint with a new head of two classes, as the PyTorch scripts build it.
pub(super) struct Classifier<'a> {
    pub(super) bert: Bert,
    pub(super) compute: &'a Compute,
    pub(super) weights: Parameters,
}

impl<'a> Classifier<'a> {
    pub(super) fn load(model: &Path, compute: &'a Compute) -> Result<Self> {
        let checkpoint = Checkpoint::open(model)?;
        let mut weights = checkpoint.load_for(Head::SequenceClassification, 2)?.parameters;
        if let Some(head) = weights.role_mut(Module::Head.weight()) {
            Stream::new(0, "head", 0).fill_normal(head, 0.02);
        }
        let bert = Bert::new(checkpoint.config(), std::sync::Arc::clone(weights.layout()))?;
        Ok(Self { bert, compute, weights })
    }

    /// Times `step` over all batches until the budget is spent.
    pub(super) fn measure(
        &self,
        work: &str,
        batches: &[Batch],
        budget: Budget,
        mut step: impl FnMut(&Batch),
    ) -> Result<Measurement> {
        batches.iter().try_for_each(|batch| self.bert.check(batch))?;
        for _ in 0..budget.warm {
            batches.iter().for_each(&mut step);
        }
        let mut times = Vec::new();
        let end = Instant::now() + budget.time;
        while times.len() < budget.at_least || Instant::now() < end {
            let start = Instant::now();
            batches.iter().for_each(&mut step);
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(Measurement {
            peer: format!("qbert-{}", self.compute.kernels().name()),
            work: work.to_owned(),
            threads: self.compute.threads().count(),
            real_tokens: batches.iter().map(Batch::tokens).sum(),
            ms: times[times.len() / 2],
            best_ms: times[0],
            n: times.len(),
            peak_rss_mib: peak_rss_mib(),
            computer: Computer::with(self.compute.kernels()),
        })
    }
}

/// The first batches of an SST-2 file, in the random order of the PyTorch scripts.
pub(super) fn sst2_batches(model: &Path, path: &Path, count: usize, size: usize) -> Result<Vec<Batch>> {
    let tokenizer = Tokenizer::from_directory(model)?;
    let Dataset::Classify(mut data) = read(Task::Sst2, &[path], &ReadOptions::default())? else {
        return Err(Error::Batch { problem: "SST-2 is a classification task".to_owned() });
    };
    python_random::shuffle(&mut data.examples, 0);
    data.examples.truncate(count * size);
    let features = classify::encode_all(&tokenizer, &data.examples, 128)?;
    let batch = |part: &[classify::ClassifyFeature]| {
        let mut batch = Batch::new();
        part.iter().for_each(|feature| batch.push(&feature.encoded.input_ids, &feature.encoded.segments));
        let labels = part.iter().map(|feature| feature.label.unwrap_or(0) as u32);
        batch.targets = Targets::Sequences(labels.collect());
        batch
    };
    Ok(features.chunks(size).map(batch).collect())
}

/// The peak memory use of this process, where the system reports it.
pub(super) fn peak_rss_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some((kib / 102.4).round() / 10.0)
}
