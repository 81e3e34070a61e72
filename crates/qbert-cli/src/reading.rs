//! The flags for reading data files, shared by every verb that does.

use std::path::{Path, PathBuf};

use clap::Args;
use qbert_model::{Config, Embedder};
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_tasks::embed::Prompts;
use qbert_tasks::{Columns, DataSource, Format, InputShape, LabelSource, Labels, ReadOptions, Task};

/// How to read the data files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Data files")]
pub struct Reading {
    /// sst2, mnli, conll03, squad; your own: classify, pair (tsv, csv, jsonl), ner (CoNLL columns), qa
    /// (SQuAD json), multilabel, score, score-pair, embed (any texts).
    #[arg(long, required = true)]
    task: Option<String>,
    /// Longest sequence in tokens [default: the task's, within the model's positions].
    #[arg(long)]
    max_len: Option<usize>,
    /// Column of the (first) text.
    #[arg(long)]
    text: Option<String>,
    /// Column of the second text.
    #[arg(long)]
    text2: Option<String>,
    /// Column of the label.
    #[arg(long)]
    label: Option<String>,
    /// All labels, in the order of the model's outputs, or DATA=MODEL,… for labels that the model calls otherwise
    /// [default: those in the data, matched with the model's by name].
    #[arg(long, value_delimiter = ',', value_name = "LABEL,…")]
    labels: Option<Vec<String>>,
    /// Format of the files, if their names do not tell.
    #[arg(long, value_enum)]
    format: Option<FileFormat>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum FileFormat {
    Tsv,
    Csv,
    Jsonl,
}

impl Reading {
    /// The given task.
    pub fn task(&self) -> Result<Task> {
        self.task.as_deref().unwrap_or_default().parse().map_err(|error| Error::from(error).about("--task"))
    }

    /// Whether a task was given.
    pub fn is_task_given(&self) -> bool {
        self.task.is_some()
    }

    /// The task, for verbs that do not need one.
    pub fn optional_task(&self) -> Result<Option<Task>> {
        self.task.as_ref().map(|_| self.task()).transpose()
    }

    /// The longest sequence for the checkpoint in a directory.
    pub fn max_len(&self, model: &Path) -> Result<usize> {
        // A configuration that cannot be read is an error as soon as the model is opened.
        let config = Config::read(&model.join("config.json"));
        let positions = config.map_or(usize::MAX, |config| config.max_positions);
        self.max_len_within(positions, Embedder::read(model).ok().flatten().as_ref())
    }

    /// The longest sequence that the checkpoint in a directory can read, unless another length is given.
    pub fn whole_len(&self, model: &Path) -> usize {
        let config = Config::read(&model.join("config.json"));
        self.max_len.unwrap_or(config.map_or(usize::MAX, |config| config.max_positions))
    }

    /// The longest sequence for a model with this many positions: the given length, whether it fits or not, or the task's
    /// default within the positions. Texts that become vectors are as long as the model was made for.
    pub fn max_len_within(&self, positions: usize, embedder: Option<&Embedder>) -> Result<usize> {
        let task = self.task()?;
        let own = embedder.filter(|_| task == Task::Embed).and_then(|own| own.max_length);
        Ok(self.max_len.unwrap_or(own.unwrap_or(task.default_max_len()).min(positions)))
    }

    /// Refuses flags that would have no effect on the task's files.
    fn check(&self) -> Result<()> {
        let Some(task) = self.optional_task()? else { return Ok(()) };
        let profile = task.kind().profile();
        let is_table = profile.has_columns;
        let flags = [
            ("--text", self.text.is_some(), is_table, "files without columns"),
            ("--label", self.label.is_some(), is_table, "files without columns"),
            ("--format", self.format.is_some(), is_table, "files of one form only"),
            (
                "--text2",
                self.text2.is_some(),
                profile.input == InputShape::Pair || task == Task::Embed,
                "no second text",
            ),
            ("--labels", self.labels.is_some(), profile.has_labels, "no labels"),
        ];
        let useless = flags.into_iter().find(|(_, given, has_effect, _)| *given && !has_effect);
        useless.map_or(Ok(()), |(flag, _, _, why)| {
            let message = format!("{flag} has no effect: the task {task} has {why}");
            Err(Error::new(ErrorKind::BadInput, message, "leave the flag out, or name another --task".to_owned()))
        })
    }

    /// Labelled files as data for the checkpoint in a directory.
    ///
    /// # Errors
    /// As [`Reading::options`].
    pub fn source(&self, files: &[PathBuf], model: &Path) -> Result<DataSource> {
        let (task, read) = (self.task()?, self.options(true)?);
        Ok(DataSource { task, files: files.to_vec(), read, max_len: self.max_len(model)? })
    }

    /// How to read the files.
    ///
    /// # Errors
    /// Flags that have no effect for the task, labels that are not valid.
    pub fn options(&self, require_labels: bool) -> Result<ReadOptions> {
        self.check()?;
        let labels = match &self.labels {
            Some(names) => {
                let labels = match renamings(names) {
                    Some(pairs) => Labels::renamed(&pairs),
                    None => Labels::new(names.iter().cloned()),
                };
                LabelSource::Given(labels.map_err(|error| Error::from(error).about("--labels"))?)
            }
            None => LabelSource::TaskOrFound,
        };
        let columns =
            Columns { text: self.text.clone(), text2: self.text2.clone(), label: self.label.clone(), id: None };
        let format = self.format.map(|format| match format {
            FileFormat::Tsv => Format::Tsv,
            FileFormat::Csv => Format::Csv,
            FileFormat::Jsonl => Format::Jsonl,
        });
        Ok(ReadOptions { columns, labels, require_labels, format, prompts: Prompts::default() })
    }
}

/// Labels of the data with the model's names for them, if every one is given as DATA=MODEL.
fn renamings(labels: &[String]) -> Option<Vec<(String, String)>> {
    let pair = |label: &String| label.split_once('=').map(|(data, model)| (data.to_owned(), model.to_owned()));
    labels.iter().map(pair).collect()
}

/// A limit of sequences: a number, or `all`.
pub fn limit(flag: &str, text: &str) -> Result<Option<usize>> {
    if text == "all" {
        return Ok(None);
    }
    let number = text.parse().ok().filter(|&number: &usize| number > 0);
    number.map(Some).ok_or_else(|| {
        let message = format!("{flag} is {text}: it must be a number above 0, or `all`");
        Error::new(ErrorKind::BadInput, message, "leave the flag out for the default".to_owned())
    })
}
