//! Evaluates a packed model on a data set: scores from the runtime, decoding and metrics as for a checkpoint.

use std::sync::Arc;

use qbert_runtime::{Scope, Session, Tokens};
use qbert_tasks::{DataSource, Features, Output, SharedData, TaskData};
use qbert_train::evaluate::{BATCH_TOKENS, Evaluated};
use qbert_train::loading::DataReader;

use crate::Result;

/// Evaluates a packed model on a data file, as [`qbert_train::evaluate::evaluate`] evaluates a checkpoint.
///
/// # Errors
/// A model for another task or with other labels; a problem with the data.
pub fn evaluate_packed(session: &Session, data: &DataSource, progress: impl FnMut(usize, usize)) -> Result<Evaluated> {
    evaluate_packed_from(&mut SharedData::default(), session, data, progress)
}

/// As [`evaluate_packed`], with data that may have been read for a checkpoint. It is encoded again if the tokenizer in the
/// packed file is not the one it was encoded with.
///
/// # Errors
/// As [`evaluate_packed`].
pub fn evaluate_packed_from(
    shared: &mut SharedData,
    session: &Session,
    data: &DataSource,
    progress: impl FnMut(usize, usize),
) -> Result<Evaluated> {
    let data = data_for(shared, session, data)?;
    let scores = scores(session, &data.features, progress)?;
    let outputs = data.labels.len();
    Ok(Evaluated::new(data, &scores, outputs)?)
}

/// Data read and encoded for a packed model.
pub(crate) fn data_for(shared: &mut SharedData, session: &Session, data: &DataSource) -> Result<Arc<TaskData>> {
    let reader = DataReader {
        path: session.model().path(),
        head: session.head(),
        unsupported: None,
        labels: session.labels(),
        embedder: session.config().embedder.as_ref(),
        problem: session.problem(),
        max_positions: session.config().max_positions,
        tokenizer: session.tokenizer(),
    };
    Ok(Arc::new(reader.read_from(shared, data)?))
}

/// The scores of every sequence, in the order of the features: one row of labels, one row per token, or a vector.
///
/// # Errors
/// A sequence that does not fit the model.
pub fn scores(session: &Session, features: &Features, mut progress: impl FnMut(usize, usize)) -> Result<Vec<Vec<f32>>> {
    let (mut all, mut done) = (vec![Vec::new(); features.len()], 0);
    for indices in features.evaluation_batches(BATCH_TOKENS) {
        let batch = features.batch(&indices, false)?;
        let tokens = Tokens { ids: &batch.input_ids, segments: &batch.segments, offsets: &batch.offsets };
        if features.output() == Output::Vector {
            let vectors = session.vectors(tokens)?;
            indices.iter().zip(&vectors).for_each(|(&index, vector)| all[index] = vector.to_vec());
        } else {
            let output = session.forward(tokens, Scope::Scores)?;
            for (sequence, &index) in indices.iter().enumerate() {
                all[index] = output.logits_of(sequence).to_vec();
            }
        }
        done += indices.len();
        progress(done, features.len());
    }
    Ok(all)
}
