//! A fine-tuned checkpoint with data of its task, ready to compute on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qbert_model::{Checkpoint, Parameters};
use qbert_tasks::{Kind, LabelSource, Labels, ReadOptions, Task, Tokenizer};

use crate::bert::Bert;
use crate::error::Result;
use crate::features::{Features, head_of};
use crate::finetune::{check_length, features};

/// A model, its weights and encoded data.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub bert: Bert,
    /// Its weights.
    pub weights: Parameters,
    /// The data.
    pub features: Features,
    /// What the head's outputs are called.
    pub labels: Labels,
}

impl Loaded {
    /// Opens a checkpoint that has the task's head, and reads the files with the labels of that head.
    pub fn open(model: &Path, task: Task, files: &[PathBuf], reading: &ReadOptions, max_len: usize) -> Result<Self> {
        let checkpoint = Checkpoint::open(model)?;
        let head = head_of(task.kind());
        let misfit = |problem: String| qbert_model::Error::Head { path: model.to_owned(), problem };
        if checkpoint.head() != head {
            let found = checkpoint.head();
            return Err(misfit(format!("the checkpoint's head is {found:?}, the task {task} needs {head:?}")).into());
        }
        check_length(max_len, checkpoint.config().max_positions)?;
        let tokenizer = Tokenizer::from_directory(model)?;
        let mut reading = reading.clone();
        let own = checkpoint.labels();
        let labels = if own.is_empty() { Labels::new(["start", "end"])? } else { Labels::new(own)? };
        if task.kind() != Kind::Qa && reading.labels == LabelSource::TaskOrFound {
            // Placeholder names (LABEL_0) say nothing; then the task's own labels must do.
            let named = !labels.are_placeholders();
            reading.labels = if named { LabelSource::Given(labels.clone()) } else { LabelSource::TaskOrFound };
        }
        let features = features(task, files, &reading, None, &tokenizer, max_len)?;
        let weights = checkpoint.load()?;
        let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout()))?;
        let labels = features.dataset().labels().cloned().unwrap_or(labels);
        if labels.len() != bert.outputs() {
            let (found, expected) = (labels.len(), bert.outputs());
            return Err(misfit(format!("the data has {found} labels, the checkpoint's head {expected}")).into());
        }
        Ok(Self { bert, weights, features, labels })
    }
}
