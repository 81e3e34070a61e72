//! A checkpoint on a data set: forward passes here, decoding and metrics in [`qbert_tasks`].

use std::path::Path;
use std::sync::Arc;

use qbert_documents::DevMetrics;
use qbert_kernels::Compute;
use qbert_model::Parameters;
use qbert_tasks::{DataSource, Features, TaskData};
pub use qbert_tasks::{Details, Evaluation, Predictions};

use crate::bert::{Activations, Bert};
use crate::error::Result;
use crate::loading::Loaded;
use crate::qat::ModelWeights;

/// Tokens of one evaluation batch: enough for full speed, little memory.
pub const BATCH_TOKENS: usize = 2048;

/// The result of an evaluation, with the predictions behind it.
#[derive(Debug)]
pub struct Evaluated {
    /// The metrics.
    pub evaluation: Evaluation,
    /// The predictions.
    pub predictions: Predictions,
    /// The data they are for.
    pub data: Arc<TaskData>,
}

impl Evaluated {
    /// Decodes the scores of every sequence of the data, and scores the predictions.
    ///
    /// # Errors
    /// Scores that do not fit the data, or data without labels.
    pub fn new(data: Arc<TaskData>, scores: &[Vec<f32>], outputs: usize) -> Result<Self> {
        let predictions = data.features.predict(scores, outputs)?;
        let evaluation = data.features.score(&predictions, &data.labels)?;
        Ok(Self { evaluation, predictions, data })
    }
}

/// The metrics as the files of a run record them.
pub(crate) fn dev_metrics(evaluation: &Evaluation) -> DevMetrics {
    let Evaluation { metric, value, examples, details, left_out, .. } = evaluation;
    let left_out = left_out.map(|left_out| left_out.count as u64);
    let details = serde_json::json!(details);
    DevMetrics { metric: (*metric).to_owned(), value: *value, examples: Some(*examples as u64), left_out, details }
}

/// A checkpoint directory to evaluate.
#[derive(Debug, Clone, Copy)]
pub struct Evaluate<'a> {
    /// The directory.
    pub model: &'a Path,
    /// Of a quantized checkpoint, the f32 masters rather than the quantized model.
    pub masters: bool,
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for Evaluate<'a> {
    fn from(model: &'a P) -> Self {
        Self { model: model.as_ref(), masters: false }
    }
}

/// Evaluates a checkpoint that has the task's head. A quantized checkpoint ([`crate::qat::files`]) is evaluated as the
/// quantized model it is, unless its masters are asked for. `progress` gets the sequences done and their total.
///
/// # Errors
/// A model without a head for the task or with other labels; any fault of the data.
pub fn evaluate<'a>(
    model: impl Into<Evaluate<'a>>,
    data: &DataSource,
    compute: &Compute,
    progress: impl FnMut(usize, usize),
) -> Result<Evaluated> {
    let model = model.into();
    evaluate_loaded(model, Loaded::open(model.model, data)?, compute, progress)
}

/// Evaluates a checkpoint on data that has already been read, as [`evaluate`] does.
///
/// # Errors
/// A model that the data was not read for.
pub fn evaluate_on<'a>(
    model: impl Into<Evaluate<'a>>,
    data: Arc<TaskData>,
    compute: &Compute,
    progress: impl FnMut(usize, usize),
) -> Result<Evaluated> {
    let model = model.into();
    evaluate_loaded(model, Loaded::with_data(model.model, data)?, compute, progress)
}

fn evaluate_loaded(
    model: Evaluate<'_>,
    loaded: Loaded,
    compute: &Compute,
    progress: impl FnMut(usize, usize),
) -> Result<Evaluated> {
    let scores = scores_of(model, &loaded, compute, progress)?;
    Evaluated::new(Arc::clone(&loaded.data), &scores, loaded.bert.outputs())
}

/// The scores of a checkpoint for every sequence of the data it was loaded with, as [`evaluate`] decodes them.
///
/// # Errors
/// Ranges of a quantized checkpoint that are damaged or belong to another model.
pub fn scores_of(
    Evaluate { model, masters }: Evaluate<'_>,
    loaded: &Loaded,
    compute: &Compute,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Vec<f32>>> {
    let features = &loaded.data.features;
    let (total, mut done) = (features.len(), 0);
    let quantization = if masters { None } else { loaded.as_quantized(model, compute)? };
    let weights = loaded.model_weights(quantization.as_ref());
    scores_with(&loaded.bert, compute, weights, features, |count| {
        done += count;
        progress(done, total);
    })
}

/// Computes the scores of every sequence, in the order of `features`: one row of labels, or one row per token.
pub fn scores(
    bert: &Bert,
    compute: &Compute,
    weights: &Parameters,
    features: &Features,
    progress: impl FnMut(usize),
) -> Result<Vec<Vec<f32>>> {
    scores_with(bert, compute, ModelWeights::Full(weights.values()), features, progress)
}

/// As [`scores`], of a model that may be quantized.
pub fn scores_with(
    bert: &Bert,
    compute: &Compute,
    weights: ModelWeights<'_>,
    features: &Features,
    mut progress: impl FnMut(usize),
) -> Result<Vec<Vec<f32>>> {
    let mut all = vec![Vec::new(); features.len()];
    let mut activations = Activations::for_evaluation();
    let (size, own) = compute.ranks().map_or((1, 0), |ranks| (ranks.size(), ranks.rank()));
    let batches: Vec<Vec<usize>> = features.evaluation_batches(BATCH_TOKENS).into_iter().collect();
    let mut take = |indices: &[usize], mut rest: &[f32]| {
        for &index in indices {
            let rows = features.output().rows(features.length(index));
            let (own, after) = rest.split_at(rows * bert.outputs());
            all[index] = own.to_vec();
            rest = after;
        }
    };
    let mut found = Vec::new();
    for (number, indices) in batches.iter().enumerate() {
        if number % size == own {
            let batch = features.batch(indices, false)?;
            bert.check(&batch)?;
            weights.answer(bert, compute, &batch, &mut activations);
            take(indices, &activations.logits);
            if size > 1 {
                found.extend_from_slice(&activations.logits);
            }
        }
        progress(indices.len());
    }
    if let Some(ranks) = compute.ranks() {
        let scores = |indices: &[usize]| -> usize {
            indices.iter().map(|&index| features.output().rows(features.length(index)) * bert.outputs()).sum()
        };
        let of_rank = |rank: usize| batches.iter().skip(rank).step_by(size);
        let counts: Vec<usize> = (0..size).map(|rank| of_rank(rank).map(|indices| scores(indices)).sum()).collect();
        let mut everything = vec![0.0; counts.iter().sum()];
        ranks.gather(&found, &counts, &mut everything);
        let mut rest = &everything[..];
        for indices in (0..size).flat_map(of_rank) {
            let (own, after) = rest.split_at(scores(indices));
            take(indices, own);
            rest = after;
        }
    }
    Ok(all)
}
