//! A model on a data set: scores, predictions, metrics.

use qbert_kernels::Compute;
use qbert_model::Parameters;
use qbert_tasks::decode::qa::{DecodeOptions, SpanScores, answers};
use qbert_tasks::decode::{best, ner, softmax};
use qbert_tasks::metrics::outcomes::{List, Outcomes, Overlap, Right};
use qbert_tasks::metrics::{classification, entities, squad};
use qbert_tasks::{Dataset, Error as TaskError, Labels};
use serde::Serialize;

use crate::bert::{Activations, Bert};
use crate::error::{Error, Result};
use crate::features::Features;
use crate::qat::ModelWeights;

/// Tokens of one evaluation batch: enough for full speed, little memory.
pub const BATCH_TOKENS: usize = 2048;

/// The result of an evaluation.
#[derive(Debug, Clone, Serialize)]
pub struct Evaluation {
    /// What `value` is: `accuracy`, or `f1` for entities and answers.
    pub metric: &'static str,
    /// The figure that tables show, in percent.
    pub value: f64,
    /// Examples that were scored.
    pub examples: usize,
    /// Everything else that was measured.
    pub details: Details,
    /// What became of each example; not for files that people read.
    #[serde(skip)]
    pub outcomes: Outcomes,
}

/// The whole report of a kind of task.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Details {
    /// One label per text.
    Classification(classification::ClassificationReport),
    /// Entities.
    Entities(entities::EntityReport),
    /// Answers.
    Squad(squad::SquadReport),
}

/// What a model answered, in the order of the data.
#[derive(Debug, Clone)]
pub enum Predictions {
    /// The label of each text and its probability.
    Labels(Vec<(usize, f64)>),
    /// The tag of each word of each sentence.
    Tags(Vec<Vec<usize>>),
    /// The answer to each question, with its probability.
    Answers(Vec<(String, f64)>),
}

/// Computes the scores of every sequence of `features`, in their order: one row of labels, or one row per token.
pub fn scores(
    bert: &Bert,
    compute: &Compute,
    weights: &Parameters,
    features: &Features,
    progress: impl FnMut(usize),
) -> Result<Vec<Vec<f32>>> {
    scores_with(bert, compute, ModelWeights::Full(weights.values()), features, progress)
}

/// The same of a model that may be quantized.
pub fn scores_with(
    bert: &Bert,
    compute: &Compute,
    weights: ModelWeights<'_>,
    features: &Features,
    mut progress: impl FnMut(usize),
) -> Result<Vec<Vec<f32>>> {
    let mut all = vec![Vec::new(); features.len()];
    let mut activations = Activations::for_evaluation();
    let per_sequence = features.ner_windows().is_empty() && features.qa_windows().is_empty();
    for indices in features.evaluation_batches(BATCH_TOKENS) {
        let batch = features.batch(&indices, false)?;
        bert.check(&batch)?;
        weights.answer(bert, compute, &batch, &mut activations);
        let mut rest = &activations.logits[..];
        for &index in &indices {
            let rows = if per_sequence { 1 } else { features.length(index) };
            let (own, after) = rest.split_at(rows * bert.outputs());
            all[index] = own.to_vec();
            rest = after;
        }
        progress(indices.len());
    }
    Ok(all)
}

/// Turns scores into answers.
pub fn predict(features: &Features, scores: &[Vec<f32>], outputs: usize) -> Result<Predictions> {
    Ok(match features.dataset() {
        Dataset::Classify(_) => Predictions::Labels(
            scores
                .iter()
                .map(|row| {
                    let label = best(row).unwrap_or(0);
                    (label, softmax(row).get(label).copied().unwrap_or(0.0))
                })
                .collect(),
        ),
        Dataset::Ner(data) => {
            let tags: Vec<Vec<usize>> = scores
                .iter()
                .map(|rows| rows.chunks_exact(outputs).map(|row| best(row).unwrap_or(0)).collect())
                .collect();
            let counts: Vec<usize> = data.sentences.iter().map(|sentence| sentence.words.len()).collect();
            Predictions::Tags(ner::tags_per_sentence(features.ner_windows(), &tags, &counts)?)
        }
        Dataset::Qa(data) => {
            let windows = features.qa_windows();
            let mut first = 0;
            let mut found = Vec::with_capacity(data.examples.len());
            for (index, example) in data.examples.iter().enumerate() {
                let count = windows[first..].iter().take_while(|window| window.example == index).count();
                let own = first..first + count;
                first = own.end;
                let split: Vec<[Vec<f32>; 2]> = scores[own.clone()]
                    .iter()
                    .map(|rows| [0, 1].map(|side| rows.iter().skip(side).step_by(2).copied().collect()))
                    .collect();
                let spans: Vec<SpanScores<'_>> = split.iter().map(|[start, end]| SpanScores { start, end }).collect();
                let best = answers(&example.context, &windows[own], &spans, &DecodeOptions::default())?;
                found.push(best.into_iter().next().map_or((String::new(), 0.0), |a| (a.text, a.probability)));
            }
            Predictions::Answers(found)
        }
    })
}

/// The metric that data of this kind is judged by: `accuracy`, or `f1` for entities and answers.
pub fn metric_of(features: &Features) -> &'static str {
    if matches!(features.dataset(), Dataset::Classify(_)) { "accuracy" } else { "f1" }
}

/// Scores answers against the data's own.
pub fn score(features: &Features, predictions: &Predictions, labels: &Labels) -> Result<Evaluation> {
    let (details, outcomes) = match (features.dataset(), predictions) {
        (Dataset::Classify(data), Predictions::Labels(found)) => {
            let gold: Option<Vec<usize>> = data.examples.iter().map(|example| example.label).collect();
            let gold =
                gold.ok_or_else(|| Error::Batch { problem: "the data has no labels to score against".to_owned() })?;
            let found: Vec<usize> = found.iter().map(|(label, _)| *label).collect();
            let right = gold.iter().zip(&found).map(|(gold, found)| Right(gold == found)).collect();
            (Details::Classification(classification::score(&gold, &found, labels)?), Outcomes::Right(List(right)))
        }
        (Dataset::Ner(data), Predictions::Tags(found)) => {
            let gold: Option<Vec<&Vec<usize>>> = data.sentences.iter().map(|s| s.tags.as_ref()).collect();
            let gold =
                gold.ok_or_else(|| Error::Batch { problem: "the data has no tags to score against".to_owned() })?;
            let gold: Vec<Vec<&str>> = gold.into_iter().map(|tags| names(labels, tags)).collect::<Result<_>>()?;
            let found: Vec<Vec<&str>> = found.iter().map(|tags| names(labels, tags)).collect::<Result<_>>()?;
            let counts = gold.iter().zip(&found).map(|(gold, found)| entities::counts(gold, found)).collect();
            (Details::Entities(entities::score(&gold, &found)?), Outcomes::Entities(List(counts)))
        }
        (Dataset::Qa(data), Predictions::Answers(found)) => {
            let pairs = data.examples.iter().zip(found);
            let bests: Vec<(bool, f64)> = pairs.map(|(example, (text, _))| squad::best_of(example, text)).collect();
            let overlaps = bests.iter().map(|(_, overlap)| Overlap(*overlap)).collect();
            (Details::Squad(squad::report(bests.into_iter().map(Some))), Outcomes::Overlap(List(overlaps)))
        }
        _ => return Err(Error::Batch { problem: "predictions of another kind of task".to_owned() }),
    };
    let (value, examples) = match &details {
        Details::Classification(report) => (100.0 * report.accuracy, report.examples),
        Details::Entities(report) => (100.0 * report.overall.f1, report.sentences),
        Details::Squad(report) => (report.f1, report.questions),
    };
    Ok(Evaluation { metric: metric_of(features), value, examples, details, outcomes })
}

fn names<'a>(labels: &'a Labels, ids: &[usize]) -> Result<Vec<&'a str>> {
    let name = |&id: &usize| labels.name(id).ok_or(Error::Task(TaskError::LabelId { id, count: labels.len() }));
    ids.iter().map(name).collect()
}
