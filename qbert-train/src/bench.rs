//! The training benchmark: the same work as the PyTorch script it is set beside.
//!
//! Forward and backward pass without an optimizer step: 32 sequences of 64 random tokens, and 24 real batches of 32
//! SST-2 sentences in a random order. The order is Python's `random.Random(0).shuffle`, so that both sides compute on
//! the same sentences.

use std::path::Path;
use std::time::{Duration, Instant};

use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Head};
use qbert_tasks::features::classify;
use qbert_tasks::{Dataset, ReadOptions, Task, Tokenizer, read};
use serde::Serialize;

use crate::batch::{Batch, Targets};
use crate::bert::{Activations, BackwardBuffers, Bert, Mode, zero};
use crate::error::{Error, Result};
use crate::random::Stream;

/// One measurement, in the fields of the peers' scripts.
#[derive(Debug, Clone, Serialize)]
pub struct Measurement {
    /// Who.
    pub peer: String,
    /// What.
    pub work: String,
    /// On how many threads.
    pub threads: usize,
    /// Tokens of all batches.
    pub real_tokens: usize,
    /// Median milliseconds.
    pub ms: f64,
    /// Shortest milliseconds.
    pub best_ms: f64,
    /// Number of runs.
    pub n: usize,
    /// Highest memory use of the process so far.
    pub peak_rss_mib: Option<f64>,
}

/// How long a work is repeated.
#[derive(Debug, Clone, Copy)]
struct Budget {
    time: Duration,
    at_least: usize,
    warm: usize,
}

/// Measures both works (the second where an SST-2 file is given).
pub fn train(model: &Path, sst2: Option<&Path>, compute: &Compute) -> Result<Vec<Measurement>> {
    let checkpoint = Checkpoint::open(model)?;
    let mut weights = checkpoint.load_for(Head::SequenceClassification, 2)?.parameters;
    if let Some(classifier) = weights.named_mut("classifier.weight") {
        Stream::new(0, "head", 0).fill_normal(classifier, 0.02);
    }
    let bert = Bert::new(checkpoint.config(), std::sync::Arc::clone(weights.layout()))?;
    let mut bench = Bench {
        bert: &bert,
        compute,
        weights: weights.values(),
        gradients: vec![0.0; weights.values().len()],
        activations: Activations::for_training(),
        buffers: BackwardBuffers::default(),
    };
    let equal = [equal_lengths(checkpoint.config().vocab_size)];
    let budget = Budget { time: Duration::from_secs(4), at_least: 5, warm: 2 };
    let mut found = vec![bench.measure("train step, 32 x 64 tokens", &equal, budget)?];
    if let Some(path) = sst2 {
        let batches = sst2_batches(model, path, 24, 32)?;
        let budget = Budget { time: Duration::from_secs(10), at_least: 3, warm: 1 };
        found.push(bench.measure("train, 24 random SST-2 batches of 32", &batches, budget)?);
    }
    Ok(found)
}

struct Bench<'a> {
    bert: &'a Bert,
    compute: &'a Compute,
    weights: &'a [f32],
    gradients: Vec<f32>,
    activations: Activations,
    buffers: BackwardBuffers,
}

impl Bench<'_> {
    fn step(&mut self, batch: &Batch) {
        zero(self.compute, &mut self.gradients);
        self.bert.forward(self.compute, self.weights, batch, Mode::Evaluate, &mut self.activations);
        self.bert.loss(batch, &self.activations, 1.0, &mut self.buffers);
        let targets = (&mut self.buffers, &mut self.gradients[..]);
        self.bert.backward(self.compute, self.weights, batch, Mode::Evaluate, &self.activations, targets);
    }

    fn measure(&mut self, work: &str, batches: &[Batch], budget: Budget) -> Result<Measurement> {
        batches.iter().try_for_each(|batch| self.bert.check(batch))?;
        for _ in 0..budget.warm {
            batches.iter().for_each(|batch| self.step(batch));
        }
        let mut times = Vec::new();
        let end = Instant::now() + budget.time;
        while times.len() < budget.at_least || Instant::now() < end {
            let start = Instant::now();
            batches.iter().for_each(|batch| self.step(batch));
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
        })
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

/// The first batches of an SST-2 file in the peers' random order.
fn sst2_batches(model: &Path, path: &Path, count: usize, size: usize) -> Result<Vec<Batch>> {
    let tokenizer = Tokenizer::from_directory(model)?;
    let Dataset::Classify(mut data) = read(Task::Sst2, &[path], &ReadOptions::default())? else {
        return Err(Error::Batch { problem: "SST-2 is a classification task".to_owned() });
    };
    python_shuffle(&mut data.examples, 0);
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

/// `random.Random(seed).shuffle(items)` of Python: MT19937 seeded with one word, indices by rejection.
fn python_shuffle<T>(items: &mut [T], seed: u32) {
    let mut generator = MersenneTwister::new(seed);
    for last in (1..items.len()).rev() {
        let bound = last as u32 + 1;
        let bits = 32 - bound.leading_zeros();
        let index = loop {
            let drawn = generator.next() >> (32 - bits);
            if drawn < bound {
                break drawn;
            }
        };
        items.swap(last, index as usize);
    }
}

/// MT19937 (Matsumoto and Nishimura 1998), seeded by array as Python does.
struct MersenneTwister {
    state: [u32; 624],
    next: usize,
}

impl MersenneTwister {
    fn new(seed: u32) -> Self {
        let mut state = [0u32; 624];
        state[0] = 19_650_218;
        for i in 1..624 {
            state[i] = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        let mut at = 1;
        let advance = |state: &mut [u32; 624], at: &mut usize| {
            *at += 1;
            if *at == 624 {
                state[0] = state[623];
                *at = 1;
            }
        };
        for _ in 0..624 {
            let before = state[at - 1];
            state[at] = (state[at] ^ (before ^ (before >> 30)).wrapping_mul(1_664_525)).wrapping_add(seed);
            advance(&mut state, &mut at);
        }
        for _ in 0..623 {
            let before = state[at - 1];
            let mixed = state[at] ^ (before ^ (before >> 30)).wrapping_mul(1_566_083_941);
            state[at] = mixed.wrapping_sub(at as u32);
            advance(&mut state, &mut at);
        }
        state[0] = 0x8000_0000;
        Self { state, next: 624 }
    }

    fn next(&mut self) -> u32 {
        if self.next == 624 {
            for i in 0..624 {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % 624] & 0x7fff_ffff);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % 624] ^ (y >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }
}

/// The process's highest memory use, where the system tells.
fn peak_rss_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some((kib / 102.4).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `import random; r = random.Random(0); [r.getrandbits(32) for _ in range(3)]`, and a shuffle of `range(10)`.
    #[test]
    fn the_generator_is_pythons() {
        let mut generator = MersenneTwister::new(0);
        assert_eq!(
            [generator.next(), generator.next(), generator.next()],
            [3_626_764_237, 1_654_615_998, 3_255_389_356]
        );
        let mut items: Vec<u32> = (0..10).collect();
        python_shuffle(&mut items, 0);
        assert_eq!(items, [7, 8, 1, 5, 3, 4, 2, 0, 9, 6]);
    }
}
