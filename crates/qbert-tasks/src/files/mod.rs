//! From files to a [`Dataset`]: one call, [`read`], for every task.
//!
//! What all readers share: UTF-8 with or without byte-order mark, `\n` or `\r\n`, a missing last newline; NUL bytes
//! and invalid UTF-8 are refused with their line. A file without a single example is an error, because nobody means
//! it. Several files of one task are read one after the other; labels are found over all of them.

pub(crate) mod csv_fields;
pub(crate) mod delimited;
pub(crate) mod jsonl;
pub(crate) mod lines;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Dataset, Error, Labels, Result, Task};

/// Names of the columns (or JSON keys) of a user's file; a `None` is looked for among the usual names.
///
/// Tried in this order: text `text`, `sentence`, `sentence1`, `premise`, `question1`; second text `text2`, `text_b`,
/// `sentence2`, `hypothesis`, `question2`; label `label`, `gold_label`, `labels`, `class`, `category`, `target`,
/// `sentiment`; id `id`, `index`, `idx`, `guid` (or else the line number is the id).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Columns {
    /// The (first) text.
    pub text: Option<String>,
    /// The second text of a pair.
    pub text2: Option<String>,
    /// The label.
    pub label: Option<String>,
    /// The id.
    pub id: Option<String>,
}

/// Where the list of labels comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LabelSource {
    /// The task's own labels, or, for a user's task, those found in the data, sorted.
    #[default]
    TaskOrFound,
    /// These, in this order (a trained head's); any other label in the data is an error.
    Given(Labels),
}

/// How a table is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Tabs between fields, a header line, no quoting at all: a `"` is a character like any other.
    Tsv,
    /// Commas between fields, a header line, quoting as in RFC 4180.
    Csv,
    /// One JSON object per line.
    Jsonl,
}

/// How to read; the default suits the paper's tasks and files with the usual column names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// Names of columns, for `classify` and `pair`.
    pub columns: Columns,
    /// Where the labels come from.
    pub labels: LabelSource,
    /// Whether every example must have a label (or, in QA, an answer). Training and scoring need it, prediction not.
    pub require_labels: bool,
    /// The layout of the tables; `None` goes by the file's ending.
    pub format: Option<Format>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { columns: Columns::default(), labels: LabelSource::default(), require_labels: true, format: None }
    }
}

/// Reads the files of a task into one data set.
///
/// # Errors
/// Any fault of a file, naming it and the line; see [`Error`].
pub fn read<P: AsRef<Path>>(task: Task, paths: &[P], options: &ReadOptions) -> Result<Dataset> {
    let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
    if paths.is_empty() {
        return Err(Error::NoFiles);
    }
    Dataset::read(task, &paths, options)
}

/// The labels to hold the data against, when they are not to be found in the data itself.
pub(crate) fn fixed_labels(task: Task, options: &ReadOptions) -> Option<Labels> {
    match &options.labels {
        LabelSource::Given(labels) => Some(labels.clone()),
        LabelSource::TaskOrFound => task.default_labels(),
    }
}

pub(crate) fn unknown_label(path: &Path, line: usize, label: &str, labels: &Labels) -> Error {
    Error::UnknownLabel {
        path: path.to_owned(),
        line,
        label: label.to_owned(),
        known: labels.names().to_vec(),
        nearest: labels.nearest(label),
    }
}
