//! Everything that can be known to be wrong before the first stage, found before anything is written: a run takes hours,
//! and nobody wants to hear of a bad dev file after the analysis.

use qbert_model::{Checkpoint, Head};
use qbert_quant::GroupSpec;
use qbert_tasks::{Dataset, Features, LabelSource, Labels, Tokenizer};
use qbert_train::loading::{check_length, head_for, labels_of_head};
use serde_json::{Value, json};

use super::{Job, hashes};
use crate::error::{Error, ErrorKind, Result};
use crate::planning::{self, Model, Wishes};

/// The paper's number of groups; a smaller model takes one group per neuron.
const GROUPS: usize = 128;

/// What is known of a job before it begins.
#[derive(Debug)]
pub(super) struct Checked {
    /// Model, task and data: a directory that holds a run of others is refused.
    pub(super) identity: Value,
    /// Why the model has to be fine-tuned; `None` where it has the task's head.
    pub(super) headless: Option<String>,
    /// What the plan is to be like, with everything that follows from the model.
    pub(super) wishes: Wishes,
    /// Examples to learn from and to judge by.
    pub(super) examples: [usize; 2],
    /// The labels of all training data, for a new head; `None` for answers.
    pub(super) labels: Option<Labels>,
}

pub(super) fn check(job: &Job) -> Result<Checked> {
    settings(job)?;
    let checkpoint = Checkpoint::open(&job.directory)?;
    let tokenizer = Tokenizer::for_model(&job.directory, checkpoint.config().vocab_size)?;
    let wishes = wishes(job, &checkpoint)?;
    let train = job.data.dataset()?;
    let headless = headless(job, &checkpoint, &train)?;
    let mut dev = job.dev_data();
    if let Some(labels) = train.labels() {
        dev = dev.with_labels(LabelSource::Given(labels.clone()));
    }
    let dev = dev.dataset()?;
    let examples = [train.len(), dev.len()];
    length(job, &checkpoint, &tokenizer, dev)?;
    let labels = train.labels().cloned();
    Ok(Checked { identity: identity(job)?, headless, wishes, examples, labels })
}

fn settings(job: &Job) -> Result<()> {
    job.finetune.settings.check()?;
    job.quantize.settings.check()?;
    job.analysis.check()?;
    job.qat.check()?;
    let refuse = |message: &str, hint: &str| Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
    if job.finetune.settings.epochs == 0 {
        return refuse("--epochs is 0: a new head has to be trained", "a model with the task's head is not fine-tuned");
    }
    for most in [job.finetune.max_train, job.quantize.max_train] {
        if most == Some(0) {
            return refuse("--max-train is 0: there is nothing to learn from", "leave the flag out to take everything");
        }
    }
    Ok(())
}

/// Refuses a length that the model does not have, or that is too small for the task.
fn length(job: &Job, checkpoint: &Checkpoint, tokenizer: &Tokenizer, mut dev: Dataset) -> Result<()> {
    check_length(job.data.max_len, checkpoint.config().max_positions)?;
    dev.truncate(1);
    Features::new(dev, tokenizer, job.data.max_len)?;
    Ok(())
}

/// The wishes with what the model's size decides, tried out as far as that goes without sensitivities.
fn wishes(job: &Job, checkpoint: &Checkpoint) -> Result<Wishes> {
    let config = checkpoint.config();
    if let Some(path) = &job.plan {
        planning::read(path)?.check_layers(config.layers)?;
        return Ok(job.wishes.clone());
    }
    let mut wishes = job.wishes.clone();
    if wishes.preset.is_none() {
        let groups = GROUPS.min(config.hidden_size).min(config.intermediate_size);
        wishes.groups = wishes.groups.or(Some(GroupSpec::Count(groups)));
        wishes.embedding_groups = wishes.embedding_groups.or(Some(GroupSpec::Count(GROUPS.min(config.hidden_size))));
    }
    let open = wishes.high.is_empty() && wishes.size.is_none() && wishes.budget.is_none();
    if open && wishes.bits.len() == 2 {
        wishes.high = vec![config.layers.div_ceil(2)];
    }
    let shape = config.shape(Some(&checkpoint.layout()));
    planning::check(&wishes, &Model { directory: &job.directory, shape: &shape })?;
    Ok(wishes)
}

/// Why the model needs another head; `None` where it has one for this task and these labels.
fn headless(job: &Job, checkpoint: &Checkpoint, train: &Dataset) -> Result<Option<String>> {
    let wanted = head_for(job.data.task);
    if checkpoint.head() != wanted {
        return Ok(Some(match checkpoint.head() {
            Head::None => "the model has no head yet".to_owned(),
            other => format!("the model's head is {other:?}, the task {} needs {wanted:?}", job.data.task),
        }));
    }
    let Some(found) = train.labels() else { return Ok(None) };
    let own = Labels::new(checkpoint.labels())?;
    let others = || Some(format!("the model's head is for other labels: {}", own.names().join(", ")));
    if own.are_placeholders() {
        // Names that say nothing; their number has to do.
        return Ok(if own.len() == found.len() { None } else { others() });
    }
    let expected = matches!(job.data.read.labels, LabelSource::Given(_)) || job.data.task.default_labels().is_some();
    let fits = if expected {
        labels_of_head(job.data.task, &own, &job.data.read.labels).is_ok()
    } else {
        // In a user's own data a number is a name, and not the place of somebody else's label.
        found.names().iter().all(|name| own.names().contains(name))
    };
    Ok(if fits { None } else { others() })
}

fn identity(job: &Job) -> Result<Value> {
    let train = job.data.files.iter().map(|path| hashes::file(path)).collect::<Result<Vec<_>>>()?;
    let labels = match &job.data.read.labels {
        LabelSource::TaskOrFound => Value::Null,
        LabelSource::Given(labels) => json!(labels.names()),
    };
    Ok(json!({
        "task": job.data.task,
        "model": hashes::model(&job.directory)?,
        "train": train,
        "dev": hashes::file(&job.dev)?,
        "columns": job.data.read.columns,
        "labels": labels,
        "format": job.data.read.format,
        "max_len": job.data.max_len,
    }))
}
