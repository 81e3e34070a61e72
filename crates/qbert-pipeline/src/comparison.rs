//! Two models on the same data: how often they agree, how far their scores are apart, and which texts changed most.
//!
//! Each model reads the data with its own tokenizer and its own order of labels, so a packed file can be compared with any
//! checkpoint that has the same labels.

use std::path::Path;
use std::sync::Arc;

use qbert_documents::Changes;
use qbert_kernels::Compute;
use qbert_runtime::Session;
use qbert_tasks::embed::cosine;
use qbert_tasks::metrics::outcomes::squared_error;
use qbert_tasks::qa::QaOptions;
use qbert_tasks::stats::statistics;
use qbert_tasks::{DataSource, Evaluation, Labels, Output, Predictions, SharedData, TaskData};
use qbert_train::evaluate::{Evaluate, scores_of};
use qbert_train::loading::Loaded;
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::{changes, packed_evaluation};

/// A model's scores for every sequence of some data.
#[derive(Debug)]
pub struct Answered {
    name: String,
    bytes: u64,
    data: Arc<TaskData>,
    scores: Vec<Vec<f32>>,
    outputs: usize,
}

impl Answered {
    /// The answers of a checkpoint; a quantized one answers as the quantized model it is.
    ///
    /// # Errors
    /// A model without the task's head or with other labels; any fault of the data.
    pub fn by_checkpoint(
        directory: &Path,
        source: &DataSource,
        compute: &Compute,
        progress: impl FnMut(usize, usize),
    ) -> Result<Self> {
        let loaded = Loaded::open(directory, source)?;
        let scores = scores_of(Evaluate::from(directory), &loaded, compute, progress)?;
        let (outputs, bytes) = (loaded.bert.outputs(), 4 * loaded.weights.values().len() as u64);
        Ok(Self { name: directory.display().to_string(), bytes, data: Arc::clone(&loaded.data), scores, outputs })
    }

    /// The answers of a packed file.
    ///
    /// # Errors
    /// As [`Answered::by_checkpoint`].
    pub fn by_packed(session: &Session, source: &DataSource, progress: impl FnMut(usize, usize)) -> Result<Self> {
        let data = packed_evaluation::data_for(&mut SharedData::default(), session, source)?;
        let scores = packed_evaluation::scores(session, &data.features, progress)?;
        let (outputs, bytes) = (data.labels.len(), session.model().file_len() as u64);
        Ok(Self { name: session.model().path().display().to_string(), bytes, data, scores, outputs })
    }

    fn predictions(&self) -> Result<Predictions> {
        Ok(self.data.features.predict(&self.scores, self.outputs)?)
    }

    /// The metric, if all examples have a label.
    fn evaluation(&self, predictions: &Predictions) -> Result<Option<Evaluation>> {
        let found = statistics(self.data.features.dataset(), None, &QaOptions::default())?;
        if found.unlabelled > 0 {
            return Ok(None);
        }
        Ok(Some(self.data.features.score(predictions, &self.data.labels)?))
    }
}

/// Two vectors whose cosine is at least this count as the same.
const SAME_DIRECTION: f64 = 0.99;

/// What a comparison of two models found.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The task.
    pub task: String,
    /// Texts, pairs, sentences or questions.
    pub examples: usize,
    /// The model that the other is held against.
    pub reference: ComparedModel,
    /// The other model.
    pub candidate: ComparedModel,
    /// The metric of both; absent if the data has no labels.
    pub metric: Option<MetricChange>,
    /// How many answers are the same.
    pub agreement: Agreement,
    /// How far the scores are apart; absent if the models split the texts differently.
    pub logits: Option<LogitError>,
    /// The mean divergence `KL(reference ‖ candidate)` of the answers' probabilities in nats: over sequences, tokens, or both
    /// ends of answers. Of vectors, the mean squared distance relative to the reference's length. It tells models apart long
    /// before the metric does. Absent as `logits` are.
    pub divergence: Option<f64>,
    /// The answers that changed.
    pub changes: Changes,
}

/// One of the two models.
#[derive(Debug, Clone, Serialize)]
pub struct ComparedModel {
    /// Its directory or file.
    pub model: String,
    /// The size of a packed file; of a checkpoint, its weights in f32.
    pub bytes: u64,
}

/// A metric before and after, in percent.
#[derive(Debug, Clone, Serialize)]
pub struct MetricChange {
    /// Its name.
    pub name: &'static str,
    /// Of the reference.
    pub reference: f64,
    /// Of the candidate.
    pub candidate: f64,
    /// Candidate minus reference, in points.
    pub change: f64,
    /// The standard error of the change, from the examples on which the models differ; absent for a single example.
    pub standard_error: Option<f64>,
}

/// How many answers two models have in common.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Agreement {
    /// What is counted: `labels`, `tags` (of words) or `answers`.
    pub unit: &'static str,
    /// Equal ones.
    pub equal: usize,
    /// All of them.
    pub compared: usize,
    /// Their share in percent.
    pub percent: f64,
}

/// How far the scores of two models are apart, before any softmax.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LogitError {
    /// Mean absolute difference.
    pub mean: f64,
    /// Largest absolute difference.
    pub largest: f64,
    /// Mean absolute score of the reference, to compare with.
    pub scale: f64,
}

/// Compares two models' answers to the same data, and keeps the `most` largest changes.
///
/// # Errors
/// Models for other labels.
pub fn compare(reference: &Answered, candidate: &Answered, most: usize) -> Result<Comparison> {
    let columns = columns(reference, candidate)?;
    let (before, after) = (reference.predictions()?, candidate.predictions()?);
    let evaluations = (reference.evaluation(&before)?, candidate.evaluation(&after)?);
    let metric = match &evaluations {
        (Some(before), Some(after)) => Some(metric_change(before, after)),
        _ => None,
    };
    let after = renumbered(after, &columns);
    let data = &reference.data;
    let model = |own: &Answered| ComparedModel { model: own.name.clone(), bytes: own.bytes };
    Ok(Comparison {
        task: data.source.task.name().to_owned(),
        examples: data.features.dataset().len(),
        reference: model(reference),
        candidate: model(candidate),
        metric,
        agreement: agreement(&before, &after),
        logits: logit_error(reference, candidate, &columns),
        divergence: divergence(reference, candidate, &columns),
        changes: Changes::between(changes::all(data, &before, &after), most),
    })
}

/// For each output of the candidate, the reference's output of the same name.
fn columns(reference: &Answered, candidate: &Answered) -> Result<Vec<usize>> {
    let [own, other] = [&reference.data.labels, &candidate.data.labels];
    let found: Option<Vec<usize>> = other.names().iter().map(|name| own.id(name)).collect();
    found.filter(|columns| columns.len() == own.len()).ok_or_else(|| {
        let list = |labels: &Labels| labels.names().join(", ");
        let message = format!(
            "the models have different labels: {} has {}, {} has {}",
            reference.name,
            list(own),
            candidate.name,
            list(other)
        );
        Error::new(ErrorKind::BadInput, message, "compare models of one task with the same labels".to_owned())
    })
}

/// Predictions of the candidate with the label numbers of the reference.
fn renumbered(predictions: Predictions, columns: &[usize]) -> Predictions {
    match predictions {
        Predictions::Labels(found) => {
            Predictions::Labels(found.into_iter().map(|(label, sure)| (columns[label], sure)).collect())
        }
        Predictions::Tags(found) => Predictions::Tags(
            found.into_iter().map(|tags| tags.into_iter().map(|tag| columns[tag]).collect()).collect(),
        ),
        Predictions::LabelSets(found) => {
            let renumber = |set: Vec<usize>| {
                let mut set: Vec<usize> = set.into_iter().map(|label| columns[label]).collect();
                set.sort_unstable();
                set
            };
            Predictions::LabelSets(found.into_iter().map(renumber).collect())
        }
        same @ (Predictions::Answers(_) | Predictions::Values(_) | Predictions::Vectors(_)) => same,
    }
}

fn agreement(before: &Predictions, after: &Predictions) -> Agreement {
    let (unit, equal, compared) = match (before, after) {
        (Predictions::Labels(one), Predictions::Labels(other)) => {
            ("labels", one.iter().zip(other).filter(|(a, b)| a.0 == b.0).count(), one.len())
        }
        (Predictions::Tags(one), Predictions::Tags(other)) => {
            let equal = |(a, b): (&Vec<usize>, &Vec<usize>)| a.iter().zip(b).filter(|(a, b)| a == b).count();
            ("tags", one.iter().zip(other).map(equal).sum(), one.iter().map(Vec::len).sum())
        }
        (Predictions::Answers(one), Predictions::Answers(other)) => {
            ("answers", one.iter().zip(other).filter(|(a, b)| a.0 == b.0).count(), one.len())
        }
        (Predictions::LabelSets(one), Predictions::LabelSets(other)) => {
            ("sets of labels", one.iter().zip(other).filter(|(a, b)| a == b).count(), one.len())
        }
        (Predictions::Values(one), Predictions::Values(other)) => {
            // To three digits, as they are shown.
            let same = |(a, b): &(&f64, &f64)| (**a - **b).abs() < 5e-4;
            ("values", one.iter().zip(other).filter(same).count(), one.len())
        }
        (Predictions::Vectors(one), Predictions::Vectors(other)) => {
            let same = |(a, b): &(&Vec<f32>, &Vec<f32>)| cosine(a, b) >= SAME_DIRECTION;
            ("vectors within a cosine of 0.99", one.iter().zip(other).filter(same).count(), one.len())
        }
        // Both come from the same task.
        _ => ("answers", 0, 0),
    };
    let percent = if compared == 0 { 100.0 } else { 100.0 * equal as f64 / compared as f64 };
    Agreement { unit, equal, compared, percent }
}

/// How the metric changes from one model to another, and how far that can be trusted: by the examples on which they differ.
pub(crate) fn metric_change(reference: &Evaluation, candidate: &Evaluation) -> MetricChange {
    let (one, other) = (reference.outcomes.influences(), candidate.outcomes.influences());
    let differences: Vec<f64> = one.iter().zip(&other).map(|(one, other)| other - one).collect();
    let standard_error = Some(squared_error(&differences).sqrt()).filter(|error| error.is_finite());
    MetricChange {
        name: reference.metric,
        reference: reference.value,
        candidate: candidate.value,
        change: candidate.value - reference.value,
        standard_error,
    }
}

/// Whether both models scored the same sequences of the same tokens.
fn is_alike(one: &[Vec<f32>], other: &[Vec<f32>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.len() == other.len())
}

/// `KL(reference ‖ candidate)` of every softmax, on average.
fn divergence(reference: &Answered, candidate: &Answered, columns: &[usize]) -> Option<f64> {
    if !is_alike(&reference.scores, &candidate.scores) {
        return None;
    }
    if reference.data.features.output() == Output::Vector {
        let distances =
            reference.scores.iter().zip(&candidate.scores).map(|(one, other)| relative_distance(one, other));
        return Some(distances.sum::<f64>() / reference.scores.len().max(1) as f64);
    }
    let (mut sum, mut count) = (0.0, 0_usize);
    let mut add = |pairs: &mut dyn Iterator<Item = (f32, f32)>| {
        let (before, after): (Vec<f64>, Vec<f64>) = pairs.map(|(a, b)| (f64::from(a), f64::from(b))).unzip();
        let ([log_q, log_p], terms) = ([log_softmax(&before), log_softmax(&after)], before.len());
        sum += (0..terms).map(|term| libm::exp(log_q[term]) * (log_q[term] - log_p[term])).sum::<f64>();
        count += 1;
    };
    for (one, other) in reference.scores.iter().zip(&candidate.scores) {
        if columns.is_empty() {
            // An answer's start and end: a softmax over the tokens each.
            for end in 0..2 {
                let pairs = one.iter().zip(other).skip(end).step_by(2);
                add(&mut pairs.map(|(&a, &b)| (a, b)));
            }
            continue;
        }
        for (one, other) in one.chunks_exact(columns.len()).zip(other.chunks_exact(columns.len())) {
            add(&mut columns.iter().zip(other).map(|(&column, &after)| (one[column], after)));
        }
    }
    (count > 0).then(|| sum / count as f64)
}

/// `‖one − other‖²/‖one‖²`
fn relative_distance(one: &[f32], other: &[f32]) -> f64 {
    let distance: f64 = one.iter().zip(other).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    let squares: f64 = one.iter().map(|a| f64::from(*a).powi(2)).sum();
    distance / squares.max(1e-12)
}

fn log_softmax(scores: &[f64]) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| libm::exp(score - largest)).sum();
    let log = largest + libm::log(sum);
    scores.iter().map(|score| score - log).collect()
}

fn logit_error(reference: &Answered, candidate: &Answered, columns: &[usize]) -> Option<LogitError> {
    let (one, other) = (&reference.scores, &candidate.scores);
    if !is_alike(one, other) || columns.is_empty() {
        return None;
    }
    let (mut sum, mut largest, mut scale, mut count) = (0.0, 0.0f64, 0.0, 0usize);
    for (one, other) in one.iter().zip(other) {
        for (one, other) in one.chunks_exact(columns.len()).zip(other.chunks_exact(columns.len())) {
            for (&column, &score) in columns.iter().zip(other) {
                let (before, after) = (f64::from(one[column]), f64::from(score));
                let error = (before - after).abs();
                sum += error;
                largest = largest.max(error);
                scale += before.abs();
                count += 1;
            }
        }
    }
    let mean = |sum: f64| sum / count.max(1) as f64;
    Some(LogitError { mean: mean(sum), largest, scale: mean(scale) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmaxes_in_logarithms_sum_to_one() {
        let logs = log_softmax(&[1000.0, 1001.0, 999.0]);
        let sum: f64 = logs.iter().map(|&log| libm::exp(log)).sum();
        assert!((sum - 1.0).abs() < 1e-12 && (logs[1] - logs[0] - 1.0).abs() < 1e-12, "{logs:?}");
    }

    #[test]
    fn agreement_counts_what_the_task_predicts() {
        let labels = |labels: &[usize]| Predictions::Labels(labels.iter().map(|&label| (label, 0.5)).collect());
        let found = agreement(&labels(&[0, 1, 1, 0]), &labels(&[0, 1, 0, 0]));
        assert_eq!((found.unit, found.equal, found.compared, found.percent), ("labels", 3, 4, 75.0));
        let tags = |tags: &[&[usize]]| Predictions::Tags(tags.iter().map(|tags| tags.to_vec()).collect());
        let found = agreement(&tags(&[&[0, 1], &[2, 2, 2]]), &tags(&[&[0, 0], &[2, 2, 1]]));
        assert_eq!((found.unit, found.equal, found.compared), ("tags", 3, 5));
        // Two models may number the same labels differently.
        assert_eq!(renumbered(labels(&[0, 1]), &[1, 0]), labels(&[1, 0]));
        assert_eq!(renumbered(tags(&[&[0, 2]]), &[2, 1, 0]), tags(&[&[2, 0]]));
    }
}
