//! Data files: [`read`] turns the files of any task into a [`Dataset`].
//!
//! All readers accept UTF-8 with or without a byte-order mark, `\n` or `\r\n`, and a missing last newline. They reject
//! NUL bytes, invalid UTF-8 and lines of more than 16 MiB with the line, and files without a single example. Several files of one task are read
//! one after the other, and labels are collected over all of them.

pub(crate) mod csv_fields;
pub(crate) mod delimited;
pub(crate) mod jsonl;
pub(crate) mod lines;

pub use lines::{LONGEST_LINE, read_line_limited};

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::embed::Prompts;
use crate::head_labels::FoundLabels;
use crate::{Dataset, Error, HeadLabels, Labels, Result, Task};

/// Names of the columns (or JSON keys) of a user's file; `None` tries the usual names.
///
/// Tried in this order: text `text`, `sentence`, `sentence1`, `premise`, `question1`; second text `text2`, `text_b`,
/// `sentence2`, `hypothesis`, `question2`; label `label`, `gold_label`, `labels`, `class`, `category`, `target`,
/// `sentiment`; id `id`, `index`, `idx`, `guid` (without one, the line number).
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
    /// The task's own labels; for a user's task, the labels found in the data, sorted.
    #[default]
    TaskOrFound,
    /// These labels in this order. Any other label in the data is an error.
    Given(Labels),
    /// The labels of a trained head, matched with those in the data.
    Head(HeadLabels),
}

/// How a table is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Tabs between fields, a header line, no quoting: a `"` is an ordinary character.
    Tsv,
    /// Commas between fields, a header line, quoting as in RFC 4180.
    Csv,
    /// One JSON object per line.
    Jsonl,
}

/// How to read files. The default suits the paper's tasks and files with the usual column names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// Names of columns, for `classify` and `pair`.
    pub columns: Columns,
    /// Where the labels come from.
    pub labels: LabelSource,
    /// Whether every example must have a label (or, in QA, an answer). Training and scoring
    /// need it, prediction does not.
    pub require_labels: bool,
    /// The layout of tables; `None` goes by the file extension.
    pub format: Option<Format>,
    /// What stands before texts that become vectors.
    pub prompts: Prompts,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            columns: Columns::default(),
            labels: LabelSource::default(),
            require_labels: true,
            format: None,
            prompts: Prompts::default(),
        }
    }
}

/// Reads the files of a task into one data set.
///
/// # Errors
/// Anything wrong with a file, with its line; see [`Error`].
pub fn read<P: AsRef<Path>>(task: Task, paths: &[P], options: &ReadOptions) -> Result<Dataset> {
    let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
    if paths.is_empty() {
        return Err(Error::NoFiles);
    }
    Dataset::read(task, &paths, options)
}

impl LabelSource {
    /// The labels that the user gave.
    pub fn given(&self) -> Option<&Labels> {
        match self {
            Self::TaskOrFound => None,
            Self::Given(labels) => Some(labels),
            Self::Head(head) => head.given.as_ref(),
        }
    }

    /// The labels to read a task's data with; `None` for those found there.
    pub(crate) fn for_data(&self, task: Task, raw: &BTreeSet<String>, count: usize) -> Result<Option<Labels>> {
        match self {
            Self::TaskOrFound => Ok(task.default_labels()),
            Self::Given(labels) => Ok(Some(labels.clone())),
            Self::Head(head) => head.for_data(task, FoundLabels { raw, count }).map(Some),
        }
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
