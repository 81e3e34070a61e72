//! Fine-tuning from files: a checkpoint and a task's data in, a checkpoint with the task's head out.

use std::path::PathBuf;
use std::sync::Arc;

use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Head, Parameters, Problem};
use qbert_tasks::{DataSource, HeadLabels, LabelSource, Labels, SharedData, Task, TaskData, Tokenizer};

use crate::bert::Bert;
use crate::error::{Error, Result};
use crate::fingerprint;
use crate::loading::{check_length, head_for, headless, labels_of_head, problem_of, usable};
use crate::optimizer::OptimizerSettings;
use crate::random::Stream;
use crate::trainer::{Outcome, Run, Settings, Trainer, TrainingPrecision, Watch};

/// The settings for a task; a user's own task takes those of its kind ([`qbert_tasks::Recipe`]).
pub fn recipe(task: Task) -> Settings {
    let recipe = task.kind().profile().recipe;
    let optimizer = OptimizerSettings { learning_rate: recipe.learning_rate, ..OptimizerSettings::default() };
    Settings {
        epochs: recipe.epochs,
        steps: None,
        batch: recipe.batch,
        accumulate: 1,
        warmup: 0.06,
        optimizer,
        seed: 1,
        precision: TrainingPrecision::default(),
    }
}

/// What a fine-tuning run is made from.
#[derive(Debug, Clone)]
pub struct Finetune {
    /// Checkpoint directory.
    pub model: PathBuf,
    /// The data to learn from.
    pub data: DataSource,
    /// File to judge by, read as `data` is.
    pub dev: PathBuf,
    /// The run's directory.
    pub out: PathBuf,
    /// Take only the first examples of the training data.
    pub max_train: Option<usize>,
    /// Epochs, rates and the like.
    pub settings: Settings,
    /// Continue an interrupted run.
    pub resume: bool,
}

impl Finetune {
    /// The data to judge by.
    pub fn dev_data(&self) -> DataSource {
        self.data.with_files([&self.dev])
    }
}

/// The data of a training run, read and encoded. Several runs on the same data can share one.
#[derive(Debug, Clone)]
pub struct TrainingData {
    /// To learn from.
    pub train: Arc<TaskData>,
    /// To judge by, with the labels of `train`.
    pub dev: Arc<TaskData>,
}

impl TrainingData {
    /// Reads the data of a run, and only the first `max_dev` examples of the dev file.
    ///
    /// # Errors
    /// Any fault of checkpoint or files; sequences that are too long for the model.
    pub fn read(job: &Finetune, max_dev: Option<usize>) -> Result<Self> {
        Self::read_from(&mut SharedData::default(), job, max_dev)
    }

    /// As [`TrainingData::read`], with files that may have been read for another step.
    ///
    /// # Errors
    /// As [`TrainingData::read`].
    pub fn read_from(shared: &mut SharedData, job: &Finetune, max_dev: Option<usize>) -> Result<Self> {
        job.settings.check()?;
        let checkpoint = Checkpoint::open(&job.model)?;
        let config = checkpoint.config();
        check_length(job.data.max_len, config.max_positions)?;
        let tokenizer = Tokenizer::for_model(&job.model, config.vocab_size)?;
        // A head for these labels keeps its order.
        let labels = match own_labels(&checkpoint, job.data.task)? {
            Some(own) => labels_of_head(&job.model, job.data.task, &own, &job.data.read.labels),
            None => job.data.read.labels.clone(),
        };
        let train = match shared.load(job.data.clone().with_labels(labels), &tokenizer, job.max_train) {
            // The data gets a new head.
            Err(qbert_tasks::Error::OtherLabels { .. }) => shared.load(job.data.clone(), &tokenizer, job.max_train)?,
            read => read?,
        };
        check_classes(&train)?;
        let mut source = train.source.with_files([&job.dev]);
        if train.features.dataset().labels().is_some() {
            source = source.with_labels(LabelSource::Given(train.labels.clone()));
        }
        let dev = shared.load(source, &tokenizer, max_dev)?;
        usable(&train.features, &train.source.files, "learn from")?;
        usable(&dev.features, &dev.source.files, "judge by")?;
        Ok(Self { train: Arc::new(train), dev: Arc::new(dev) })
    }
}

/// What the outputs of a head for a task mean.
fn problem_for(task: Task) -> Problem {
    problem_of(task.kind().profile().output)
}

/// The labels of the checkpoint's head, if it is the kind of head that the task needs.
fn own_labels(checkpoint: &Checkpoint, task: Task) -> Result<Option<Labels>> {
    let own = checkpoint.labels();
    let is_same = checkpoint.head() == head_for(task) && checkpoint.problem() == problem_for(task);
    if !is_same || own.is_empty() {
        return Ok(None);
    }
    Ok(Some(Labels::new(own)?))
}

/// Refuses data with which no head can learn to tell anything apart.
fn check_classes(data: &TaskData) -> Result<()> {
    if data.features.dataset().labels().is_some_and(|labels| labels.len() < 2) {
        let label = data.labels.names().join(", ");
        return Err(Error::OneLabel { files: data.source.files.clone(), label });
    }
    Ok(())
}

/// The checkpoint's head if it is for other labels than the data's, so that a new one is needed.
///
/// # Errors
/// Data that was read for another head: with other labels, or with the same ones in another order.
fn other_head(job: &Finetune, checkpoint: &Checkpoint, data: &TaskData) -> Result<Option<HeadLabels>> {
    let task = job.data.task;
    let Some(own) = own_labels(checkpoint, task)? else { return Ok(None) };
    let LabelSource::Head(head) = labels_of_head(&job.model, task, &own, &job.data.read.labels) else {
        return Ok(None);
    };
    match head.for_dataset(task, data.features.dataset()) {
        Ok(labels) if labels.names() == data.labels.names() => Ok(None),
        Ok(_) => {
            let list = |labels: &Labels| labels.names().join(", ");
            let (own, read) = (list(&own), list(&data.labels));
            let problem = format!("the model's head is for the labels {own}, the data was read with {read}");
            Err(qbert_model::Error::Head { path: job.model.clone(), problem }.into())
        }
        Err(qbert_tasks::Error::OtherLabels { .. }) => Ok(Some(head)),
        Err(error) => Err(error.into()),
    }
}

/// Model and data of a run, read and checked.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) bert: Bert,
    /// Parameters of the head that the checkpoint lacks and that were drawn at random.
    pub(crate) fresh: Vec<String>,
    /// The checkpoint's own head, if it is of the right kind but for other labels.
    other_head: Option<HeadLabels>,
    data: TrainingData,
    identity: serde_json::Value,
}

impl Prepared {
    /// Opens the model for data that was read for it. The weights are returned on their own, because training changes
    /// them.
    pub(crate) fn with_data(job: &Finetune, data: TrainingData) -> Result<(Self, Parameters)> {
        job.settings.check()?;
        let checkpoint = Checkpoint::open(&job.model)?;
        let max_len = data.train.source.max_len;
        check_length(max_len, checkpoint.config().max_positions)?;
        let other_head = other_head(job, &checkpoint, &data.train)?;
        let (task, config, labels) = (job.data.task, checkpoint.config(), &data.train.labels);
        // An output that meant something else has to be learned anew.
        let keeps_head = other_head.is_none() && checkpoint.problem() == problem_for(task);
        let loaded = if keeps_head {
            checkpoint.load_for(head_for(task), labels.len())?
        } else {
            checkpoint.load_for_new_head(head_for(task), labels.len())?
        };
        let (mut weights, fresh) = (loaded.parameters, loaded.fresh);
        draw_fresh(&mut weights, &fresh, config.initializer_range, job.settings.seed);
        let bert = Bert::new(&config.with_problem(problem_for(task)), Arc::clone(weights.layout()))?;
        let identity = serde_json::json!({
            "task": task.name(),
            "model": fingerprint::weights(weights.values()),
            "train": fingerprint::data(&data.train.features)?,
            "dev": fingerprint::data(&data.dev.features)?,
            "max_len": max_len,
            "labels": labels.names(),
        });
        Ok((Self { checkpoint, bert, fresh, other_head, data, identity }, weights))
    }

    /// Why the model has no head for this data; `None` if it has one.
    pub(crate) fn why_headless(&self, job: &Finetune) -> Option<Error> {
        if self.fresh.is_empty() {
            return None;
        }
        let dataset = self.data.train.features.dataset();
        let other = self.other_head.as_ref().and_then(|head| head.for_dataset(job.data.task, dataset).err());
        let is_same = self.checkpoint.problem() == problem_for(job.data.task);
        if self.other_head.is_none() && is_same && self.checkpoint.head() == head_for(job.data.task) {
            let problem = format!("the head is not complete: the checkpoint has no `{}`", self.fresh.join("`, `"));
            return Some(qbert_model::Error::Head { path: job.model.clone(), problem }.into());
        }
        Some(other.map_or_else(|| headless(&self.checkpoint, job.data.task), Error::from))
    }

    /// What a user should know about model and data before training.
    fn notes(&self, job: &Finetune) -> Vec<String> {
        // A bare encoder gets a head as a matter of course; a head that is dropped is news.
        let had_one = self.checkpoint.head() != Head::None || self.checkpoint.unsupported_head().is_some();
        let new_head = self.why_headless(job).filter(|_| had_one).map(|why| format!("a new head is trained: {why}"));
        let data = self.data.train.notes().into_iter().chain(self.data.dev.notes());
        let mut notes: Vec<String> = Vec::new();
        for note in new_head.into_iter().chain(data) {
            // Training and dev data share their labels.
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// Tells the watcher what a user should know.
    pub(crate) fn tell(&self, job: &Finetune, watch: &mut dyn Watch) {
        for note in self.notes(job) {
            watch.note(&note);
        }
    }

    /// What the trainer is given.
    pub(crate) fn run<'a>(&'a self, job: &'a Finetune) -> Run<'a> {
        Run {
            bert: &self.bert,
            labels: &self.data.train.labels,
            tokenizer: self.checkpoint.tokenizer_files(),
            train: &self.data.train.features,
            dev: &self.data.dev.features,
            out: &job.out,
            identity: self.identity.clone(),
        }
    }
}

/// Fine-tunes; `watch` sees every step.
///
/// # Errors
/// Any fault of model, data or settings, before anything is written where possible.
pub fn finetune(job: &Finetune, compute: &Compute, watch: &mut dyn Watch) -> Result<Outcome> {
    check_epochs(&job.settings)?;
    finetune_on(job, TrainingData::read(job, None)?, compute, watch)
}

/// Fine-tunes on data that was read earlier with [`TrainingData::read`].
///
/// # Errors
/// As [`finetune`].
pub fn finetune_on(job: &Finetune, data: TrainingData, compute: &Compute, watch: &mut dyn Watch) -> Result<Outcome> {
    check_epochs(&job.settings)?;
    let (prepared, weights) = Prepared::with_data(job, data)?;
    prepared.tell(job, watch);
    Trainer::new(prepared.run(job), job.settings.clone(), compute, weights, job.resume)?.run(watch)
}

fn check_epochs(settings: &Settings) -> Result<()> {
    if settings.steps.unwrap_or(settings.epochs) == 0 {
        let (name, rule) = ("`training.epochs`", "fine-tuning needs at least one; quantization with 0 only calibrates");
        return Err(Error::Setting { name, value: "0".to_owned(), rule });
    }
    Ok(())
}

/// New head weights: normal with the model's own deviation, biases zero, norms one.
fn draw_fresh(weights: &mut Parameters, fresh: &[String], deviation: f32, seed: u64) {
    for (index, name) in fresh.iter().enumerate() {
        let is_norm = weights.layout().get(name).is_some_and(|parameter| parameter.role.module.is_norm());
        if let Some(values) = weights.named_mut(name).filter(|_| name.ends_with(".weight")) {
            if is_norm {
                values.fill(1.0);
                continue;
            }
            Stream::new(seed, "head", index as u64).fill_normal(values, deviation);
        }
    }
}
