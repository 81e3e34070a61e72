//! A fine-tuned checkpoint with data of its task, ready to compute on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Embedder, Head, Parameters, Problem};
use qbert_tasks::embed::Prompts;
use qbert_tasks::{
    DataSource, Features, HeadLabels, LabelSource, Labels, Output, SharedData, Task, TaskData, Tokenizer,
};

use crate::bert::Bert;
use crate::error::{Error, Result};
use crate::qat::{ModelWeights, Quantization, files};

/// The head that computes what a task needs: the one place where the two meet.
pub fn head_of(output: Output) -> Head {
    match output {
        Output::Sequence | Output::LabelSet | Output::Value => Head::SequenceClassification,
        Output::Vector => Head::None,
        Output::Token => Head::TokenClassification,
        Output::Span => Head::QuestionAnswering,
    }
}

/// What the head's outputs mean for a task.
pub fn problem_of(output: Output) -> Problem {
    match output {
        Output::Sequence | Output::Token | Output::Span | Output::Vector => Problem::SingleLabel,
        Output::LabelSet => Problem::MultiLabel,
        Output::Value => Problem::Regression,
    }
}

/// The head that a task needs.
pub fn head_for(task: Task) -> Head {
    head_of(task.kind().profile().output)
}

/// Why a model with this head cannot do a task that needs another one, in plain words.
fn wrong_head(found: Head, unsupported: Option<&str>, task: Task) -> String {
    let needed = head_for(task);
    match (unsupported, found) {
        (Some(what), _) => format!("the model's head is {what}; qbert does not support such a head yet"),
        (None, Head::None) => {
            format!("the model has no {needed} head, which the task {task} needs: it has to be fine-tuned first")
        }
        (None, found) => format!("the model has a {found} head, but the task {task} needs a {needed} head"),
    }
}

/// Why a model whose outputs mean something else cannot do a task.
fn wrong_problem(found: Problem, task: Task) -> Option<String> {
    let needed = problem_of(task.kind().profile().output);
    (found != needed).then(|| {
        let (found, needed) = (found.purpose(), needed.purpose());
        format!("the model's head is for {found}, but the task {task} needs one for {needed}")
    })
}

/// The error for a checkpoint without a head for the task.
pub fn headless(checkpoint: &Checkpoint, task: Task) -> Error {
    let of_head = wrong_head(checkpoint.head(), checkpoint.unsupported_head(), task);
    let of_problem = wrong_problem(checkpoint.problem(), task).filter(|_| checkpoint.head() == head_for(task));
    let problem = of_problem.unwrap_or(of_head);
    qbert_model::Error::Head { path: checkpoint.directory().to_owned(), problem }.into()
}

/// A model, its weights and encoded data.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub bert: Bert,
    /// Its weights.
    pub weights: Parameters,
    /// The data, with the names of the head's outputs.
    pub data: Arc<TaskData>,
}

/// What has to be known about a model, a checkpoint or a packed one, to read data for it.
#[derive(Debug, Clone, Copy)]
pub struct DataReader<'a> {
    /// The model, for errors.
    pub path: &'a Path,
    /// Its head.
    pub head: Head,
    /// What its head's outputs mean.
    pub problem: Problem,
    /// What its head is, if it is none of ours.
    pub unsupported: Option<&'a str>,
    /// What the head's outputs are called; empty for spans.
    pub labels: &'a [String],
    /// How it turns texts into vectors, where it says so.
    pub embedder: Option<&'a Embedder>,
    /// Longest sequence it can take.
    pub max_positions: usize,
    /// How it splits text into pieces.
    pub tokenizer: &'a Tokenizer,
}

impl DataReader<'_> {
    /// Reads and encodes the files, with the labels of the head.
    ///
    /// # Errors
    /// A head for another task or with other labels, sequences that are too long, any fault of the files.
    pub fn read(&self, source: &DataSource) -> Result<TaskData> {
        self.read_from(&mut SharedData::default(), source)
    }

    /// As [`DataReader::read`], with files that may have been read for another model.
    ///
    /// # Errors
    /// As [`DataReader::read`].
    pub fn read_from(&self, shared: &mut SharedData, source: &DataSource) -> Result<TaskData> {
        self.check_source(source)?;
        let own = self.own_labels(source.task)?;
        let labels = labels_of_head(self.path, source.task, &own, &source.read.labels);
        let source = &with_prompts(source.clone().with_labels(labels), self.embedder);
        let mut data = shared.load(source.clone(), self.tokenizer, None)?;
        usable(&data.features, &source.files, "compute on")?;
        data.labels = data.features.dataset().labels().cloned().unwrap_or(own);
        Ok(data)
    }

    /// Checks that data read earlier has this model's head, length and labels. The tokenizer is not compared: data is
    /// lent between models made from one checkpoint.
    ///
    /// # Errors
    /// As [`DataReader::read`].
    pub fn check(&self, data: &TaskData) -> Result<()> {
        self.check_source(&data.source)?;
        let own = self.own_labels(data.source.task)?;
        let are_names = data.source.task.kind().profile().has_labels && !own.are_placeholders();
        let fits = if are_names { own.names() == data.labels.names() } else { own.len() == data.labels.len() };
        if fits {
            return Ok(());
        }
        let list = |labels: &Labels| labels.names().join(", ");
        Err(self.misfit(format!(
            "the model's head is for the labels {}, the data has {}",
            list(&own),
            list(&data.labels)
        )))
    }

    fn check_source(&self, source: &DataSource) -> Result<()> {
        if self.head != head_for(source.task) {
            return Err(self.misfit(wrong_head(self.head, self.unsupported, source.task)));
        }
        if let Some(problem) = wrong_problem(self.problem, source.task) {
            return Err(self.misfit(problem));
        }
        check_length(source.max_len, self.max_positions)
    }

    fn own_labels(&self, task: Task) -> Result<Labels> {
        let own = self.labels;
        Ok(match task.kind().profile().output {
            Output::Vector => Labels::new([qbert_tasks::embed::OUTPUT_NAME])?,
            _ if own.is_empty() => Labels::new(["start", "end"])?,
            _ => Labels::new(own.iter().cloned())?,
        })
    }

    fn misfit(&self, problem: String) -> Error {
        qbert_model::Error::Head { path: self.path.to_owned(), problem }.into()
    }
}

/// The labels to read data with for a trained head: its own, matched with those of the data and with the ones given
/// ([`HeadLabels`]).
pub fn labels_of_head(model: &Path, task: Task, own: &Labels, wanted: &LabelSource) -> LabelSource {
    if !task.kind().profile().has_labels {
        return wanted.clone();
    }
    LabelSource::Head(HeadLabels { model: model.to_owned(), own: own.clone(), given: wanted.given().cloned() })
}

/// The same source with the model's prompts before texts that become vectors, unless the user gave some.
pub fn with_prompts(mut source: DataSource, embedder: Option<&Embedder>) -> DataSource {
    let Some(own) = embedder.filter(|_| source.read.prompts == Prompts::default()) else { return source };
    let named = |names: &[&str]| names.iter().find_map(|name| own.prompts.get(*name)).cloned();
    let other = own.prompt(None).unwrap_or_default().to_owned();
    source.read.prompts = Prompts {
        query: named(Embedder::QUERY_PROMPTS).unwrap_or_else(|| other.clone()),
        document: named(Embedder::DOCUMENT_PROMPTS).unwrap_or_else(|| other.clone()),
        other,
    };
    source
}

/// Refuses data without a usable example.
pub(crate) fn usable(features: &Features, files: &[PathBuf], to: &'static str) -> Result<()> {
    if features.is_empty() {
        return Err(Error::NoExamples { files: files.to_vec(), to });
    }
    Ok(())
}

/// Refuses sequences longer than a model can take.
///
/// # Errors
/// [`Error::TooLong`].
pub fn check_length(max_len: usize, positions: usize) -> Result<()> {
    if max_len > positions {
        return Err(Error::TooLong { max_len, positions });
    }
    Ok(())
}

/// Reads the data for a checkpoint that has the task's head, as [`Loaded::open`] does, or takes it from `shared`.
///
/// # Errors
/// As [`DataReader::read`]; any fault of the checkpoint's configuration or tokenizer.
pub fn read_data(model: &Path, source: &DataSource, shared: &mut SharedData) -> Result<Arc<TaskData>> {
    let checkpoint = Checkpoint::open(model)?;
    with_reader(model, &checkpoint, |reader| Ok(Arc::new(reader.read_from(shared, source)?)))
}

fn with_reader<T>(model: &Path, checkpoint: &Checkpoint, read: impl FnOnce(DataReader<'_>) -> Result<T>) -> Result<T> {
    let tokenizer = Tokenizer::for_model(model, checkpoint.config().vocab_size)?;
    read(DataReader {
        path: model,
        head: checkpoint.head(),
        problem: checkpoint.problem(),
        unsupported: checkpoint.unsupported_head(),
        labels: &checkpoint.labels(),
        embedder: checkpoint.config().embedder.as_ref(),
        max_positions: checkpoint.config().max_positions,
        tokenizer: &tokenizer,
    })
}

impl Loaded {
    /// Opens a checkpoint that has the task's head, and reads the files with the labels of that head.
    ///
    /// # Errors
    /// As [`DataReader::read`]; any fault of the checkpoint.
    pub fn open(model: &Path, source: &DataSource) -> Result<Self> {
        Self::from_checkpoint(model, |reader| Ok(Arc::new(reader.read(source)?)))
    }

    /// Opens a checkpoint to compute on data that was read earlier.
    ///
    /// # Errors
    /// As [`DataReader::check`]; any fault of the checkpoint.
    pub fn with_data(model: &Path, data: Arc<TaskData>) -> Result<Self> {
        Self::from_checkpoint(model, |reader| reader.check(&data).map(|()| data))
    }

    fn from_checkpoint(model: &Path, data: impl FnOnce(DataReader<'_>) -> Result<Arc<TaskData>>) -> Result<Self> {
        let checkpoint = Checkpoint::open(model)?;
        let data = with_reader(model, &checkpoint, data)?;
        let weights = checkpoint.load()?;
        let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout()))?;
        Ok(Self { bert, weights, data })
    }

    /// The quantization of the model in this directory, ready to compute with; `None` for a checkpoint that is not
    /// quantized.
    ///
    /// # Errors
    /// Ranges that are damaged or belong to another model.
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
