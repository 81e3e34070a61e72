//! Where a task's data is, and the data itself once it has been read.
//!
//! [`DataSource`] is what a user chooses; every job that computes on data has one. [`TaskData`] is what
//! [`DataSource::load`] makes of it, read and encoded. [`SharedData`] does so once for all steps of a job.

use std::path::PathBuf;
use std::sync::Arc;

use crate::{Dataset, Features, LabelSource, Labels, ReadOptions, Result, SharedData, Task, Tokenizer, read};

/// A task's data files and how to read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSource {
    /// What the data is for.
    pub task: Task,
    /// The files, read in this order.
    pub files: Vec<PathBuf>,
    /// How to read them.
    pub read: ReadOptions,
    /// The longest sequence in tokens.
    pub max_len: usize,
}

impl DataSource {
    /// Files of a task, read with the default options up to the task's usual length.
    pub fn new<P: Into<PathBuf>>(task: Task, files: impl IntoIterator<Item = P>) -> Self {
        let files = files.into_iter().map(Into::into).collect();
        Self { task, files, read: ReadOptions::default(), max_len: task.default_max_len() }
    }

    /// Other files that are read the same way, such as the dev file beside the training files.
    #[must_use]
    pub fn with_files<P: Into<PathBuf>>(&self, files: impl IntoIterator<Item = P>) -> Self {
        let files = files.into_iter().map(Into::into).collect();
        Self { task: self.task, files, read: self.read.clone(), max_len: self.max_len }
    }

    /// The same files, with the labels taken from elsewhere.
    #[must_use]
    pub fn with_labels(mut self, labels: LabelSource) -> Self {
        self.read.labels = labels;
        self
    }

    /// Reads the files.
    ///
    /// # Errors
    /// Any fault of a file, with its line.
    pub fn dataset(&self) -> Result<Dataset> {
        read(self.task, &self.files, &self.read)
    }

    /// Reads the files, keeps the first `limit` examples and encodes them.
    ///
    /// # Errors
    /// Any fault of a file, with its line; a maximum length that is too small for the task.
    pub fn load(self, tokenizer: &Tokenizer, limit: Option<usize>) -> Result<TaskData> {
        SharedData::default().load(self, tokenizer, limit)
    }
}

/// A task's data, read and encoded.
#[derive(Debug)]
pub struct TaskData {
    /// Where it comes from; its labels are those it was read with.
    pub source: DataSource,
    /// How many examples were kept at most.
    pub limit: Option<usize>,
    /// What the outputs of a head for this data are called.
    pub labels: Labels,
    /// The encoded examples, shared with everything that was loaded from the same [`SharedData`].
    pub features: Arc<Features>,
}

impl TaskData {
    /// What a user should know about the data, in sentences: labels that go by other names in the model, and examples
    /// that are not used.
    pub fn notes(&self) -> Vec<String> {
        let left_out = self.features.dataset().left_out();
        let left_out = left_out.map(|left_out| format!("{}: {left_out}", self.file_names()));
        mapping_note(self.labels.mapping()).into_iter().chain(left_out).collect()
    }

    fn file_names(&self) -> String {
        let names: Vec<String> = self.source.files.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    }
}

/// Labels of the data with the head's names for them as a sentence; `None` if they do not differ.
pub fn mapping_note(mapping: &[(String, String)]) -> Option<String> {
    let pairs: Vec<String> = mapping.iter().map(|(raw, output)| format!("{raw} = {output}")).collect();
    (!pairs.is_empty()).then(|| format!("labels of the data and the model's outputs: {}", pairs.join(", ")))
}
