//! The speed of the packed model compared with the same model in f32: a few seconds for an impression, not a benchmark like
//! `qbert bench infer`. Both compute the same batches of the dev data in turns.

use std::time::{Duration, Instant};

use qbert_documents::{BeforeAfter, Document, Header, Speed};
use qbert_kernels::{Compute, Machine};
use qbert_runtime::{Scope, Session, Tokens};
use qbert_train::Batch;
use qbert_train::bert::{Activations, Mode};
use qbert_train::evaluate::BATCH_TOKENS;
use qbert_train::features::Features;
use qbert_train::loading::Loaded;
use serde::{Deserialize, Serialize};

use super::{Job, read_document};
use crate::error::Result;

pub(super) const FILE: &str = "speed.json";

/// Batches to measure on.
const BATCHES: usize = 4;
/// Rounds continue until both limits are reached.
const ROUNDS: usize = 3;
const TIME: Duration = Duration::from_secs(2);

/// What was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Measured {
    /// In batches.
    #[serde(flatten)]
    pub(super) speed: Speed,
    /// Milliseconds for one sequence of median length on its own.
    pub(super) alone_ms: BeforeAfter,
    /// How it was measured, for readers.
    pub(super) note: String,
}

impl Document for Measured {
    const HEADER: Option<Header> = Some(Header { format: "qbert-speed", version: 1 });
}

impl Measured {
    pub(super) fn read(job: &Job) -> Result<Self> {
        read_document(&job.path(FILE))
    }
}

/// Measures both models on the data of the one in full precision.
pub(super) fn measure(job: &Job, loaded: &Loaded, session: &Session, compute: &Compute) -> Result<Measured> {
    let features = &loaded.data.features;
    let batches = sample(features)?;
    let sequences: usize = batches.iter().map(|batch| batch.offsets.len() - 1).sum();
    let tokens: usize = batches.iter().map(Batch::tokens).sum();
    let mut engines = Engines { loaded, session, compute, activations: Activations::for_evaluation() };
    let together = engines.best(&batches)?;
    let alone = engines.best(std::slice::from_ref(&middling(features)?))?;
    let per_second = |time: f64| sequences as f64 / time;
    let alone_ms = BeforeAfter { full: 1e3 * alone.full, quantized: 1e3 * alone.quantized };
    let profile = job.data.task.kind().profile();
    let (one, unit) = (profile.sequence, format!("{}/s", profile.sequences));
    let threads = compute.threads().count();
    let setting = format!(
        "{threads} {} on {} with {}, {:.0} tokens to a {one}",
        if threads == 1 { "thread" } else { "threads" },
        Machine::here().name(),
        compute.kernels(),
        tokens as f64 / sequences.max(1) as f64,
    );
    let note = format!(
        "Speed is an impression of a few seconds on {sequences} sequences of the dev data, {BATCH_TOKENS} tokens at a time. One \
         {one} of middling length on its own takes {:.2} ms, and {:.2} ms in f32 by the training engine.",
        alone_ms.quantized, alone_ms.full
    );
    let (full, quantized) = (Some(per_second(together.full)), per_second(together.quantized));
    Ok(Measured { speed: Speed { unit, full, quantized, setting }, alone_ms, note })
}

/// Batches from long sequences to short ones.
fn sample(features: &Features) -> Result<Vec<Batch>> {
    let all = features.evaluation_batches(BATCH_TOKENS);
    let count = all.len().min(BATCHES);
    let place = |index: usize| if count < 2 { 0 } else { index * (all.len() - 1) / (count - 1) };
    Ok((0..count).map(|index| features.batch(&all[place(index)], false)).collect::<qbert_tasks::Result<_>>()?)
}

fn middling(features: &Features) -> Result<Batch> {
    let mut order: Vec<usize> = (0..features.len()).collect();
    order.sort_by_key(|&index| (features.length(index), index));
    Ok(features.batch(&order[order.len() / 2..=order.len() / 2], false)?)
}

struct Engines<'a> {
    loaded: &'a Loaded,
    session: &'a Session,
    compute: &'a Compute,
    activations: Activations,
}

impl Engines<'_> {
    /// The best time of several rounds over these batches, in seconds. The first round warms up.
    fn best(&mut self, batches: &[Batch]) -> Result<BeforeAfter> {
        let mut best = BeforeAfter { full: f64::INFINITY, quantized: f64::INFINITY };
        let begun = Instant::now();
        let mut rounds = 0;
        while rounds <= ROUNDS || (begun.elapsed() < TIME && rounds < 100) {
            let (full, quantized) = (self.full(batches)?, self.quantized(batches)?);
            if rounds > 0 {
                best = BeforeAfter { full: best.full.min(full), quantized: best.quantized.min(quantized) };
            }
            rounds += 1;
        }
        Ok(best)
    }

    fn full(&mut self, batches: &[Batch]) -> Result<f64> {
        let begun = Instant::now();
        let weights = self.loaded.weights.values();
        for batch in batches {
            self.loaded.bert.check(batch)?;
            self.loaded.bert.forward(self.compute, weights, batch, Mode::Evaluate, &mut self.activations);
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    fn quantized(&self, batches: &[Batch]) -> Result<f64> {
        let begun = Instant::now();
        for batch in batches {
            let tokens = Tokens { ids: &batch.input_ids, segments: &batch.segments, offsets: &batch.offsets };
            self.session.forward(tokens, Scope::Scores)?;
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}
