//! Finds everything that can be known to be wrong before the first stage, and before anything is written: a run takes
//! hours, and nobody wants to hear of a bad dev file after the analysis.

use qbert_model::{Checkpoint, Head};
use qbert_quant::GroupSpec;
use qbert_tasks::{Dataset, Features, LabelSource, Labels, SharedData, Tokenizer};
use qbert_train::loading::{check_length, head_for, labels_of_head};
use serde_json::{Value, json};

use super::{Job, hashes};
use crate::error::{Error, ErrorKind, Result};
use crate::planning::{self, Model, PlanRequest};

/// What is known of a job before it begins.
#[derive(Debug)]
pub(super) struct Checked {
    /// Model, task and data: a directory that holds another run is refused.
    pub(super) identity: Value,
    /// The hash of the model that the job starts from.
    pub(super) model_hash: String,
    pub(super) data: DataHashes,
    /// Why the model has to be fine-tuned; `None` where it has the task's head.
    pub(super) headless: Option<String>,
    /// What the plan should be like, with the defaults that follow from the model.
    pub(super) plan: PlanRequest,
    /// The numbers of training and dev examples.
    pub(super) examples: [usize; 2],
    /// The labels of all training data, for a new head; `None` for answers.
    pub(super) labels: Option<Labels>,
    /// The training and dev data, for all stages.
    pub(super) shared: SharedData,
}

pub(super) fn check(job: &Job) -> Result<Checked> {
    settings(job)?;
    let checkpoint = Checkpoint::open(&job.directory)?;
    let tokenizer = Tokenizer::for_model(&job.directory, checkpoint.config().vocab_size)?;
    let plan = plan_request(job, &checkpoint)?;
    let mut shared = SharedData::default();
    let train = shared.dataset(&job.data)?;
    let headless = headless(job, &checkpoint, &train)?;
    let mut dev = job.dev_data();
    if let Some(labels) = train.labels() {
        dev = dev.with_labels(LabelSource::Given(labels.clone()));
    }
    let dev = shared.dataset(&dev)?;
    let examples = [train.len(), dev.len()];
    length(job, &checkpoint, &tokenizer, &dev)?;
    let labels = train.labels().cloned();
    let model_hash = hashes::model(&job.directory)?;
    let data = DataHashes::of(job)?;
    let identity = identity(job, &model_hash, &data);
    Ok(Checked { identity, model_hash, data, headless, plan, examples, labels, shared })
}

fn settings(job: &Job) -> Result<()> {
    let parts = [("finetune", &job.finetune), ("quantize", &job.quantize)];
    for (name, part) in parts {
        part.settings.check().map_err(|error| Error::from(error).of_training(name))?;
    }
    job.analysis.check()?;
    job.qat.check()?;
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
    if job.finetune.settings.epochs == 0 {
        let message = "`finetune.epochs` is 0: a new head has to be trained".to_owned();
        return refuse(message, "a model with the task's head is not fine-tuned");
    }
    for (name, part) in parts {
        if part.max_train == Some(0) {
            let message = format!("`{name}.max_train` is 0: there is nothing to learn from");
            return refuse(message, "leave it out to take everything");
        }
    }
    Ok(())
}

/// Refuses a length that is too long for the model or too short for the task.
fn length(job: &Job, checkpoint: &Checkpoint, tokenizer: &Tokenizer, dev: &Dataset) -> Result<()> {
    check_length(job.data.max_len, checkpoint.config().max_positions)?;
    Features::new(dev.first(1), tokenizer, job.data.max_len)?;
    Ok(())
}

/// The request with the defaults for a model of this size, checked as far as possible without sensitivities.
fn plan_request(job: &Job, checkpoint: &Checkpoint) -> Result<PlanRequest> {
    let config = checkpoint.config();
    if let Some(path) = &job.own_plan {
        planning::read(path)?.check_layers(config.layers)?;
        return Ok(job.plan.clone());
    }
    let mut request = job.plan.clone();
    if request.preset.is_none() {
        let narrowest = config.hidden_size.min(config.intermediate_size);
        request.groups = request.groups.or(Some(GroupSpec::default_for(narrowest)));
        request.embedding_groups = request.embedding_groups.or(Some(GroupSpec::default_for(config.hidden_size)));
    }
    let open = request.high.is_empty() && request.size.is_none() && request.budget.is_none();
    if open && request.bits.len() == 2 {
        request.high = vec![config.layers.div_ceil(2)];
    }
    let shape = config.shape(Some(&checkpoint.layout()));
    planning::check(&request, &Model { directory: &job.directory, shape: &shape })?;
    Ok(request)
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

/// The hashes of a job's data files.
#[derive(Debug)]
pub(super) struct DataHashes {
    pub(super) train: Vec<String>,
    pub(super) dev: String,
}

impl DataHashes {
    fn of(job: &Job) -> Result<Self> {
        let train = job.data.files.iter().map(|path| hashes::file(path)).collect::<Result<_>>()?;
        Ok(Self { train, dev: hashes::file(&job.dev)? })
    }
}

fn identity(job: &Job, model_hash: &str, data: &DataHashes) -> Value {
    let labels = match &job.data.read.labels {
        LabelSource::TaskOrFound => Value::Null,
        LabelSource::Given(labels) => json!(labels.names()),
    };
    json!({
        "task": job.data.task,
        "model": model_hash,
        "train": data.train,
        "dev": data.dev,
        "columns": job.data.read.columns,
        "labels": labels,
        "format": job.data.read.format,
        "max_len": job.data.max_len,
    })
}
