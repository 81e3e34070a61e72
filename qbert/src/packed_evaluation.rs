//! A packed model on a data set: the runtime's scores, the training engine's decoding and metrics.

use std::path::Path;

use qbert_runtime::{Scope, Session, Tokens};
use qbert_tasks::features::qa::QaOptions;
use qbert_tasks::{Kind, LabelSource, Labels, ReadOptions, Task, read};
use qbert_train::evaluate;
use qbert_train::features::{Features, head_of};
use qbert_train::finetune::Evaluated;

use crate::{Error, ErrorKind, Result};

/// Tokens of one evaluation batch: enough for full speed, little memory.
const BATCH_TOKENS: usize = 2048;

/// Evaluates a packed model on a data file, as [`qbert_train::finetune::evaluate`] does a checkpoint.
///
/// # Errors
/// A model for another task or with other labels; whatever is wrong with the data.
pub fn evaluate_packed(
    session: &Session,
    task: Task,
    (data, reading): (&Path, &ReadOptions),
    max_len: usize,
    progress: impl FnMut(usize, usize),
) -> Result<Evaluated> {
    let path = session.model().path().to_owned();
    let misfit = |problem: String| Error::from(qbert_model::Error::Head { path: path.clone(), problem });
    let (head, positions) = (head_of(task.kind()), session.config().max_positions);
    if session.head() != head {
        return Err(misfit(format!("the model's head is {:?}, the task {task} needs {head:?}", session.head())));
    }
    if max_len > positions {
        let message = format!("--max-len is {max_len}: the model has {positions} positions");
        return Err(Error::new(ErrorKind::BadInput, message, "give a smaller --max-len".to_owned()));
    }
    let mut reading = reading.clone();
    let own = session.labels();
    let labels = if own.is_empty() { Labels::new(["start", "end"])? } else { Labels::new(own.iter().cloned())? };
    if task.kind() != Kind::Qa && reading.labels == LabelSource::TaskOrFound && !labels.are_placeholders() {
        reading.labels = LabelSource::Given(labels.clone());
    }
    let dataset = read(task, &[data], &reading)?;
    let features = Features::new(dataset, session.tokenizer(), &QaOptions { max_len, ..QaOptions::default() })?;
    let outputs = labels.len();
    let labels = features.dataset().labels().cloned().unwrap_or(labels);
    if labels.len() != outputs {
        return Err(misfit(format!("the data has {} labels, the model's head {outputs}", labels.len())));
    }
    let scores = scores(session, &features, progress)?;
    let predictions = evaluate::predict(&features, &scores, outputs)?;
    let evaluation = evaluate::score(&features, &predictions, &labels)?;
    Ok(Evaluated { evaluation, predictions, features, labels })
}

/// The scores of every sequence, in the order of the features: one row of labels, or one row per token.
///
/// # Errors
/// A sequence that does not fit the model.
pub fn scores(session: &Session, features: &Features, mut progress: impl FnMut(usize, usize)) -> Result<Vec<Vec<f32>>> {
    let (mut all, mut done) = (vec![Vec::new(); features.len()], 0);
    for indices in features.evaluation_batches(BATCH_TOKENS) {
        let batch = features.batch(&indices, false)?;
        let tokens = Tokens { ids: &batch.input_ids, segments: &batch.segments, offsets: &batch.offsets };
        let output = session.forward(tokens, Scope::Scores)?;
        for (sequence, &index) in indices.iter().enumerate() {
            all[index] = output.logits_of(sequence).to_vec();
        }
        done += indices.len();
        progress(done, features.len());
    }
    Ok(all)
}
