//! The losses of all heads and their gradients, in one pass over the logits: cross-entropy; for any number of labels, that
//! of each label alone; for values, the squared error.
//!
//! The mean is over sequences, over labelled tokens, or over the starts and the ends of spans (the average of both
//! means), as in `transformers`. The softmax of a span covers the tokens of its own sequence only. The arithmetic is in
//! f64: there are few logits, and every decision about a run rests on the loss.

use libm::{exp, log};

use super::pairs;
use crate::batch::{Batch, Targets};

/// The loss of a batch: the mean, and how many terms went into it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Mean cross-entropy; 0 where nothing has a label.
    pub mean: f64,
    /// Sequences, labelled tokens or spans.
    pub terms: usize,
}

/// The loss of `logits`, which are overwritten by its gradient times `scale`.
///
/// Shapes: `[B, labels]` for sequences, `[T, labels]` for tokens, `[T, 2]` for spans. With [`Targets::None`] there is
/// no loss and the gradient is zero.
pub fn cross_entropy(logits: &mut [f32], batch: &Batch, labels: usize, scale: f64) -> Loss {
    match &batch.targets {
        Targets::None => {
            logits.fill(0.0);
            Loss { mean: 0.0, terms: 0 }
        }
        Targets::Sequences(targets) => rows(logits, labels, targets.iter().map(|&t| Some(t)), targets.len(), scale),
        Targets::Tokens(targets) => {
            let labelled = targets.iter().flatten().count();
            rows(logits, labels, targets.iter().copied(), labelled, scale)
        }
        // Compared with themselves, vectors lose nothing; only how the loss bends tells something.
        Targets::Vectors { count, pairs: known } => {
            let vectors = logits.to_vec();
            logits.fill(0.0);
            Loss { mean: pairs::loss(&vectors, labels, known, scale, logits), terms: *count }
        }
        Targets::LabelSets(sets) => label_sets(logits, labels, sets, scale),
        Targets::Values(values) => squared_errors(logits, values, scale),
        Targets::Spans(spans) => self::spans(logits, batch, spans, scale),
    }
}

/// Replaces the tangent of these `logits` by the tangent of the gradient from [`cross_entropy`]:
/// `scale·weight·(diag(p) − p·pᵀ)·ż` for every softmax `p`. The targets drop out of it.
pub fn cross_entropy_tangent(logits: &[f32], tangent: &mut [f32], batch: &Batch, labels: usize, scale: f64) {
    match &batch.targets {
        Targets::None => tangent.fill(0.0),
        Targets::Sequences(targets) => {
            let weight = scale / targets.len().max(1) as f64;
            for (row, tangent) in logits.chunks_exact(labels).zip(tangent.chunks_exact_mut(labels)) {
                term_tangent(row, tangent, 0, 1, weight);
            }
        }
        Targets::LabelSets(_) => {
            let weight = scale / logits.len().max(1) as f64;
            for (tangent, &logit) in tangent.iter_mut().zip(logits) {
                let p = logistic(f64::from(logit));
                *tangent = (weight * p * (1.0 - p) * f64::from(*tangent)) as f32;
            }
        }
        Targets::Values(values) => {
            let weight = 2.0 * scale / values.len().max(1) as f64;
            tangent.iter_mut().for_each(|tangent| *tangent = (weight * f64::from(*tangent)) as f32);
        }
        Targets::Vectors { count, .. } => {
            for (row, tangent) in logits.chunks_exact(labels).zip(tangent.chunks_exact_mut(labels)) {
                let weight = 2.0 * scale * vector_share(row, *count);
                tangent.iter_mut().for_each(|tangent| *tangent = (weight * f64::from(*tangent)) as f32);
            }
        }
        Targets::Tokens(targets) => {
            let weight = scale / targets.iter().flatten().count().max(1) as f64;
            let rows = logits.chunks_exact(labels).zip(tangent.chunks_exact_mut(labels));
            for ((row, tangent), target) in rows.zip(targets) {
                match target {
                    Some(_) => term_tangent(row, tangent, 0, 1, weight),
                    None => tangent.fill(0.0),
                }
            }
        }
        Targets::Spans(spans) => {
            let weight = scale / (2 * spans.len().max(1)) as f64;
            for range in batch.ranges() {
                let own = 2 * range.start..2 * range.end;
                for end in 0..2 {
                    term_tangent(&logits[own.clone()], &mut tangent[own.clone()], end, 2, weight);
                }
            }
        }
    }
}

/// What a squared distance from the vector `own` counts in the mean over `count` vectors: distances are relative to its
/// length, so that they mean the same whether or not vectors are scaled.
pub(super) fn vector_share(own: &[f32], count: usize) -> f64 {
    let squares: f64 = own.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    1.0 / (squares.max(1e-12) * count.max(1) as f64)
}

/// `1/(1 + e^-x)`
fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

/// The mean over sequences and labels of `log(1 + e^x) − x·t`, with `t` 1 where the label is in the set.
fn label_sets(logits: &mut [f32], labels: usize, sets: &[Vec<u32>], scale: f64) -> Loss {
    let count = logits.len().max(1) as f64;
    let mut total = 0.0;
    for (row, set) in logits.chunks_exact_mut(labels).zip(sets) {
        for (label, logit) in row.iter_mut().enumerate() {
            let target = f64::from(u8::from(set.contains(&(label as u32))));
            let x = f64::from(*logit);
            // log(1 + e^x) without overflow.
            total += x.max(0.0) + log(1.0 + exp(-x.abs())) - x * target;
            *logit = (scale / count * (logistic(x) - target)) as f32;
        }
    }
    Loss { mean: total / count, terms: sets.len() }
}

/// The mean over sequences of `(x − value)²`.
fn squared_errors(logits: &mut [f32], values: &[f32], scale: f64) -> Loss {
    let count = values.len().max(1) as f64;
    let mut total = 0.0;
    for (logit, &value) in logits.iter_mut().zip(values) {
        let error = f64::from(*logit) - f64::from(value);
        total += error * error;
        *logit = (2.0 * scale / count * error) as f32;
    }
    Loss { mean: total / count, terms: values.len() }
}

fn rows(
    logits: &mut [f32],
    labels: usize,
    targets: impl Iterator<Item = Option<u32>>,
    terms: usize,
    scale: f64,
) -> Loss {
    let weight = scale / terms.max(1) as f64;
    let mut total = 0.0;
    for (row, target) in logits.chunks_exact_mut(labels).zip(targets) {
        match target {
            Some(target) => total += term(row, 0, 1, target as usize, weight),
            None => row.fill(0.0),
        }
    }
    Loss { mean: total / terms.max(1) as f64, terms }
}

fn spans(logits: &mut [f32], batch: &Batch, spans: &[(u32, u32)], scale: f64) -> Loss {
    let weight = scale / (2 * spans.len().max(1)) as f64;
    let mut total = 0.0;
    for (range, &(start, end)) in batch.ranges().zip(spans) {
        let own = &mut logits[2 * range.start..2 * range.end];
        total += term(own, 0, 2, start as usize, weight) + term(own, 1, 2, end as usize, weight);
    }
    Loss { mean: total / (2 * spans.len().max(1)) as f64, terms: spans.len() }
}

/// `−log softmax(x)[target]` over the elements `first, first + step, …` of `x`, which become `weight · gradient`.
fn term(x: &mut [f32], first: usize, step: usize, target: usize, weight: f64) -> f64 {
    let max = x.iter().skip(first).step_by(step).fold(f64::NEG_INFINITY, |m, &v| m.max(f64::from(v)));
    let sum: f64 = x.iter().skip(first).step_by(step).map(|&v| exp(f64::from(v) - max)).sum();
    let log_sum = max + log(sum);
    let loss = log_sum - f64::from(x[first + target * step]);
    for (index, value) in x.iter_mut().skip(first).step_by(step).enumerate() {
        let probability = exp(f64::from(*value) - log_sum);
        *value = (weight * (probability - f64::from(u8::from(index == target)))) as f32;
    }
    loss
}

/// `ż ← weight·p∘(ż − Σ p·ż)` with `p = softmax(x)`, over the elements `first, first + step, …`.
fn term_tangent(x: &[f32], tangent: &mut [f32], first: usize, step: usize, weight: f64) {
    let values = || x.iter().skip(first).step_by(step).map(|&v| f64::from(v));
    let max = values().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = values().map(|v| exp(v - max)).sum();
    let probabilities = || values().map(|v| exp(v - max) / sum);
    let moved = tangent.iter().skip(first).step_by(step);
    let mean: f64 = probabilities().zip(moved).map(|(p, &t)| p * f64::from(t)).sum();
    for (t, p) in tangent.iter_mut().skip(first).step_by(step).zip(probabilities()) {
        *t = (weight * p * (f64::from(*t) - mean)) as f32;
    }
}

/// The elements of the logits that one softmax runs over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Softmax {
    first: usize,
    step: usize,
    count: usize,
    /// Whether a logit of 0 takes part besides: the softmax of one label that is there or not.
    or_not: bool,
}

impl Softmax {
    pub(super) fn indices(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| self.first + index * self.step)
    }

    /// Probabilities of the logits over a temperature, and their logarithms.
    pub(super) fn of(self, logits: &[f32], temperature: f64) -> (Vec<f64>, Vec<f64>) {
        let own = self.indices().map(|index| f64::from(logits[index]) / temperature);
        let scaled: Vec<f64> = own.chain(self.or_not.then_some(0.0)).collect();
        let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = max + log(scaled.iter().map(|v| exp(v - max)).sum());
        let logarithms: Vec<f64> = scaled.iter().map(|v| v - log_sum).collect();
        (logarithms.iter().map(|&v| exp(v)).collect(), logarithms)
    }
}

/// The softmaxes over which the cross-entropy of a batch is the mean.
pub(super) fn softmaxes(batch: &Batch, labels: usize) -> Vec<Softmax> {
    let row = |index: usize| Softmax { first: index * labels, step: 1, count: labels, or_not: false };
    match &batch.targets {
        // Vectors and values have no probabilities: distillation compares them as they are.
        Targets::None | Targets::Vectors { .. } => Vec::new(),
        Targets::Sequences(targets) => (0..targets.len()).map(row).collect(),
        Targets::LabelSets(sets) => {
            let single = |first: usize| Softmax { first, step: 1, count: 1, or_not: true };
            (0..sets.len() * labels).map(single).collect()
        }
        Targets::Values(_) => Vec::new(),
        Targets::Tokens(targets) => (0..targets.len()).filter(|&token| targets[token].is_some()).map(row).collect(),
        Targets::Spans(_) => {
            let ends = batch.ranges().flat_map(|range| [0, 1].map(|end| (range.clone(), end)));
            ends.map(|(range, end)| Softmax {
                first: 2 * range.start + end,
                step: 2,
                count: range.len(),
                or_not: false,
            })
            .collect()
        }
    }
}
