//! Fine-tuning from files: a checkpoint and a task's data in, a checkpoint with the task's head out.

use std::path::PathBuf;
use std::sync::Arc;

use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Parameters};
use qbert_tasks::{DataSource, LabelSource, Labels, SharedData, Task, TaskData, Tokenizer};

use crate::bert::Bert;
use crate::error::{Error, Result};
use crate::fingerprint;
use crate::loading::{check_length, head_for, labels_of_head, usable};
use crate::optimizer::OptimizerSettings;
use crate::random::Stream;
use crate::trainer::{Outcome, Run, Settings, Trainer, Watch};

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
        // A head for these labels keeps its order; whether a user's data has others shows when it is read with them.
        let labels = match own_labels(&checkpoint, job.data.task)? {
            Some(own) => labels_of_head(job.data.task, &own, &job.data.read.labels).ok(),
            None => None,
        };
        let source = match labels {
            Some(labels) => job.data.clone().with_labels(labels),
            None => job.data.clone(),
        };
        let train = shared.load(source, &tokenizer, job.max_train)?;
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

/// The labels of the checkpoint's head, if it is the kind of head that the task needs.
fn own_labels(checkpoint: &Checkpoint, task: Task) -> Result<Option<Labels>> {
    let own = checkpoint.labels();
    if checkpoint.head() != head_for(task) || own.is_empty() {
        return Ok(None);
    }
    Ok(Some(Labels::new(own)?))
}

/// Refuses data that was read for a head with other labels, or with the same ones in another order.
fn check_labels(job: &Finetune, checkpoint: &Checkpoint, labels: &Labels) -> Result<()> {
    let Some(own) = own_labels(checkpoint, job.data.task)? else { return Ok(()) };
    let has_labels = job.data.task.kind().profile().has_labels && !own.are_placeholders();
    let takes_own = has_labels && labels_of_head(job.data.task, &own, &job.data.read.labels).is_ok();
    if takes_own && own.names() != labels.names() {
        let list = |labels: &Labels| labels.names().join(", ");
        let problem =
            format!("the model's head is for the labels {}, the data was read with {}", list(&own), list(labels));
        return Err(qbert_model::Error::Head { path: job.model.clone(), problem }.into());
    }
    Ok(())
}

/// Model and data of a run, read and checked.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) bert: Bert,
    /// Parameters of the head that the checkpoint lacks and that were drawn at random.
    pub(crate) fresh: Vec<String>,
    /// Why the checkpoint's own head was not used, though it is of the right kind.
    pub(crate) misfit: Option<String>,
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
        check_labels(job, &checkpoint, &data.train.labels)?;
        let (task, config, labels) = (job.data.task, checkpoint.config(), &data.train.labels);
        let own = own_labels(&checkpoint, task)?;
        let misfit = own.and_then(|own| labels_of_head(task, &own, &job.data.read.labels).err());
        let loaded = match misfit {
            None => checkpoint.load_for(head_for(task), labels.len())?,
            Some(_) => checkpoint.load_for_new_head(head_for(task), labels.len())?,
        };
        let (mut weights, fresh) = (loaded.parameters, loaded.fresh);
        draw_fresh(&mut weights, &fresh, config.initializer_range, job.settings.seed);
        let bert = Bert::new(config, Arc::clone(weights.layout()))?;
        let identity = serde_json::json!({
            "task": task.name(),
            "model": fingerprint::weights(weights.values()),
            "train": fingerprint::data(&data.train.features)?,
            "dev": fingerprint::data(&data.dev.features)?,
            "max_len": max_len,
            "labels": labels.names(),
        });
        Ok((Self { checkpoint, bert, fresh, misfit, data, identity }, weights))
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
    Trainer::new(prepared.run(job), job.settings.clone(), compute, weights, job.resume)?.run(watch)
}

fn check_epochs(settings: &Settings) -> Result<()> {
    if settings.steps.unwrap_or(settings.epochs) == 0 {
        let (name, rule) = ("`training.epochs`", "fine-tuning needs at least one; quantization with 0 only calibrates");
        return Err(Error::Setting { name, value: "0".to_owned(), rule });
    }
    Ok(())
}

/// New head weights: normal with the model's own deviation, biases zero.
fn draw_fresh(weights: &mut Parameters, fresh: &[String], deviation: f32, seed: u64) {
    for (index, name) in fresh.iter().enumerate() {
        if let Some(values) = weights.named_mut(name).filter(|_| name.ends_with(".weight")) {
            Stream::new(seed, "head", index as u64).fill_normal(values, deviation);
        }
    }
}
