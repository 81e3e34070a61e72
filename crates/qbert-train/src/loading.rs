//! A fine-tuned checkpoint with data of its task, ready to compute on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Head, Parameters};
use qbert_tasks::{Kind, LabelSource, Labels, ReadOptions, Task, Tokenizer};

use crate::bert::Bert;
use crate::error::{Error, Result};
use crate::features::{Features, head_of};
use crate::finetune::{check_length, features};
use crate::qat::{ModelWeights, Quantization, files};

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

/// A model as far as reading data for it goes: a checkpoint's, or a packed one's.
#[derive(Debug, Clone, Copy)]
pub struct DataReader<'a> {
    /// The model, for errors.
    pub path: &'a Path,
    /// Its head.
    pub head: Head,
    /// What the head's outputs are called; empty for spans.
    pub labels: &'a [String],
    /// Longest sequence it can take.
    pub max_positions: usize,
    /// How it cuts text into pieces.
    pub tokenizer: &'a Tokenizer,
}

impl DataReader<'_> {
    /// Reads the files with the labels of the head. Returns them encoded, and what the head's outputs are called.
    ///
    /// # Errors
    /// A head for another task or with other labels, sequences that are too long, whatever is wrong with the files.
    pub fn read(
        &self,
        task: Task,
        files: &[PathBuf],
        reading: &ReadOptions,
        max_len: usize,
    ) -> Result<(Features, Labels)> {
        let misfit = |problem: String| qbert_model::Error::Head { path: self.path.to_owned(), problem };
        let head = head_of(task.kind());
        if self.head != head {
            let found = self.head;
            return Err(misfit(format!("the model's head is {found:?}, the task {task} needs {head:?}")).into());
        }
        check_length(max_len, self.max_positions)?;
        let mut reading = reading.clone();
        let own = self.labels;
        let labels = if own.is_empty() { Labels::new(["start", "end"])? } else { Labels::new(own.iter().cloned())? };
        reading.labels = labels_of_head(task, &labels, &reading.labels).map_err(misfit)?;
        let features = features(task, files, &reading, None, self.tokenizer, max_len)?;
        usable(&features, files, "compute on")?;
        let outputs = labels.len();
        let labels = features.dataset().labels().cloned().unwrap_or(labels);
        if labels.len() != outputs {
            return Err(misfit(format!("the data has {} labels, the model's head {outputs}", labels.len())).into());
        }
        Ok((features, labels))
    }
}

/// The labels to read data with for a head that is already trained: its own, in its order, if they are those that are
/// asked for by `wanted` or by the task.
///
/// # Errors
/// What does not fit, for people.
pub fn labels_of_head(task: Task, own: &Labels, wanted: &LabelSource) -> std::result::Result<LabelSource, String> {
    // Placeholder names (LABEL_0) say nothing; then the task's own labels must do.
    if task.kind() == Kind::Qa || own.are_placeholders() {
        return Ok(wanted.clone());
    }
    let (expected, whose) = match wanted {
        LabelSource::Given(given) => (given.clone(), "those asked for".to_owned()),
        LabelSource::TaskOrFound => match task.default_labels() {
            Some(labels) => (labels, format!("those of the task {task}")),
            None => return Ok(LabelSource::Given(own.clone())),
        },
    };
    let list = |labels: &Labels| labels.names().join(", ");
    let misfit = || format!("the model's head is for the labels {}, {whose} are {}", list(own), list(&expected));
    own.for_data_of(&expected).map(LabelSource::Given).ok_or_else(misfit)
}

/// Refuses data of which nothing can be used.
pub(crate) fn usable(features: &Features, files: &[PathBuf], to: &'static str) -> Result<()> {
    if features.is_empty() {
        return Err(Error::NoExamples { files: files.to_vec(), to });
    }
    Ok(())
}

impl Loaded {
    /// Opens a checkpoint that has the task's head, and reads the files with the labels of that head.
    pub fn open(model: &Path, task: Task, files: &[PathBuf], reading: &ReadOptions, max_len: usize) -> Result<Self> {
        let checkpoint = Checkpoint::open(model)?;
        let tokenizer = Tokenizer::for_model(model, checkpoint.config().vocab_size)?;
        let reader = DataReader {
            path: model,
            head: checkpoint.head(),
            labels: &checkpoint.labels(),
            max_positions: checkpoint.config().max_positions,
            tokenizer: &tokenizer,
        };
        let (features, labels) = reader.read(task, files, reading, max_len)?;
        let weights = checkpoint.load()?;
        let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout()))?;
        Ok(Self { bert, weights, features, labels })
    }

    /// How the model in this directory is quantized, ready to answer, if `qbert quantize` wrote it.
    ///
    /// # Errors
    /// Ranges that are damaged or of another model.
    pub fn as_quantized(&self, model: &Path, compute: &Compute) -> Result<Option<Quantization>> {
        if !files::is_quantized(model)? {
            return Ok(None);
        }
        let mut own = files::read(model, self.bert.config(), self.bert.layout())?;
        own.quantize(compute, self.weights.values(), None)?;
        Ok(Some(own))
    }

    /// The weights that the model computes with: its own, or those of a quantization of them.
    pub fn model_weights<'a>(&'a self, quantization: Option<&'a Quantization>) -> ModelWeights<'a> {
        quantization.map_or(ModelWeights::Full(self.weights.values()), ModelWeights::Quantized)
    }
}
