//! Finds everything that can be known to be wrong before the first stage, and before anything is written: a run takes
//! hours, and nobody wants to hear of a bad dev file after the analysis.

use std::sync::Arc;

use qbert_model::{Checkpoint, Head};
use qbert_quant::GroupSpec;
use qbert_tasks::{Dataset, Features, LabelSource, Labels, SharedData, Tokenizer, mapping_note};
use qbert_train::loading::{check_length, head_for, headless, labels_of_head, problem_of};
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
    /// What the user should know about model and data before the first stage.
    pub(super) notes: Vec<String>,
    /// The training and dev data, for all stages.
    pub(super) shared: SharedData,
}

pub(super) fn check(job: &Job) -> Result<Checked> {
    settings(job)?;
    let checkpoint = Checkpoint::open(&job.directory)?;
    let tokenizer = Tokenizer::for_model(&job.directory, checkpoint.config().vocab_size)?;
    let plan = plan_request(job, &checkpoint)?;
    let mut shared = SharedData::default();
    let (train, headless) = training_data(job, &checkpoint, &mut shared)?;
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
    let notes = notes(job, &checkpoint, headless.as_deref(), [&train, &dev]);
    Ok(Checked { identity, model_hash, data, headless, plan, examples, labels, notes, shared })
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
        planning::read(path)?.check_layers(config.distinct_layers())?;
        return Ok(job.plan.clone());
    }
    let mut request = job.plan.clone();
    if request.preset.is_none() {
        let narrowest = config.hidden_size.min(config.intermediate_size);
        request.groups = request.groups.or(Some(GroupSpec::default_for(narrowest)));
    }
    let limits = request.size.is_some() || request.budget.is_some() || request.max_drop.is_some();
    let open = request.high.is_empty() && !limits;
    if open && request.bits.len() == 2 {
        request.high = vec![config.distinct_layers().div_ceil(2)];
    }
    let shape = config.shape(Some(&checkpoint.layout()));
    planning::check(&request, &Model { directory: &job.directory, shape: &shape })?;
    Ok(request)
}

/// The training data, and why the model needs another head for it; `None` where it has one for this task and these labels.
fn training_data(
    job: &Job,
    checkpoint: &Checkpoint,
    shared: &mut SharedData,
) -> Result<(Arc<Dataset>, Option<String>)> {
    let task = job.data.task;
    let means_another = checkpoint.problem() != problem_of(task.kind().profile().output);
    if checkpoint.head() != head_for(task) || means_another {
        let why = match (checkpoint.head(), checkpoint.unsupported_head()) {
            (Head::None, None) => "the model has no head yet".to_owned(),
            _ => headless(checkpoint, task).to_string(),
        };
        return Ok((shared.dataset(&job.data)?, Some(why)));
    }
    if !task.kind().profile().has_labels {
        return Ok((shared.dataset(&job.data)?, None));
    }
    let own = Labels::new(checkpoint.labels())?;
    let labels = labels_of_head(&job.directory, task, &own, &job.data.read.labels);
    match shared.dataset(&job.data.clone().with_labels(labels)) {
        Ok(train) => Ok((train, None)),
        // In a user's own data some labels may be the head's, and others new.
        Err(error @ (qbert_tasks::Error::OtherLabels { .. } | qbert_tasks::Error::UnknownLabel { .. })) => {
            Ok((shared.dataset(&job.data)?, Some(error.to_string())))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sentences for the user: a head that is replaced, labels that go by other names, examples that are not used.
fn notes(job: &Job, checkpoint: &Checkpoint, headless: Option<&str>, [train, dev]: [&Dataset; 2]) -> Vec<String> {
    let had_one = checkpoint.head() != Head::None || checkpoint.unsupported_head().is_some();
    let new_head = headless.filter(|_| had_one).map(|why| format!("a new head is trained: {why}"));
    let mapping = train.labels().and_then(|labels| mapping_note(labels.mapping()));
    let train_files: Vec<String> = job.data.files.iter().map(|path| path.display().to_string()).collect();
    let left_out = [(train_files.join(", "), train), (job.dev.display().to_string(), dev)];
    let left_out = left_out.into_iter().filter_map(|(name, data)| Some(format!("{name}: {}", data.left_out()?)));
    new_head.into_iter().chain(mapping).chain(left_out).collect()
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
    let labels = match job.data.read.labels.given() {
        None => Value::Null,
        Some(labels) if labels.other_names().is_empty() => json!(labels.names()),
        Some(labels) => json!({ "names": labels.names(), "data": labels.other_names() }),
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
