//! The metrics of every model of the run on the dev data: `metrics.json`; the answers that quantization changed:
//! `changes.json`; the speed of the packed model: `speed.json`.

use qbert_report::Changes;
use qbert_runtime::{Session, SessionOptions};
use qbert_train::finetune::{Evaluate, Evaluated, evaluate};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::context::{Context, Step, read_text};
use super::{CHECKPOINT, FINETUNED, Job, METRICS, Stage, changes, hashes, speed, write_document};
use crate::error::{Error, ErrorKind, Result};
use crate::packed_evaluation::evaluate_packed;
use crate::packing::FILE_NAME;

/// The answers that changed most.
pub(super) const CHANGES: &str = "changes.json";
/// How many of them are kept.
const KEPT: usize = 100;

/// `metrics.json` of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RunMetrics {
    pub(super) task: String,
    pub(super) metric: String,
    pub(super) examples: usize,
    pub(super) stages: Vec<StageMetrics>,
}

/// One model on the dev data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StageMetrics {
    pub(super) stage: String,
    /// Where it is, relative to the run.
    pub(super) model: String,
    /// In percent.
    pub(super) value: f64,
    /// Everything else that was measured.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) details: Value,
}

/// The names of the stages in the report.
pub(super) const FULL: &str = "full precision";
pub(super) const NOT_TRAINED: &str = "quantized, not trained";
pub(super) const TRAINED: &str = "quantized";
pub(super) const PACKED: &str = "packed";

impl RunMetrics {
    pub(super) fn read(job: &Job) -> Result<Self> {
        let path = job.path(METRICS);
        serde_json::from_str(&read_text(&path)?).map_err(|error| damaged(&path, &error))
    }

    pub(super) fn value(&self, stage: &str) -> Option<f64> {
        self.stages.iter().find(|own| own.stage == stage).map(|own| own.value)
    }
}

fn damaged(path: &std::path::Path, error: &dyn std::fmt::Display) -> Error {
    let hint = "delete it: the same command writes it again".to_owned();
    Error::new(ErrorKind::BadInput, format!("{}: not the metrics of a run: {error}", path.display()), hint)
}

/// The fields of the quantized checkpoint's `metrics.json` that are needed here.
#[derive(Debug, Deserialize)]
pub(super) struct Trained {
    pub(super) dev: TrainedDev,
    /// The best epoch; 0 is the model before its first step.
    pub(super) epoch: usize,
    pub(super) before: qbert_train::state::Before,
}

#[derive(Debug, Deserialize)]
pub(super) struct TrainedDev {
    pub(super) value: f64,
    pub(super) details: Value,
}

impl Trained {
    pub(super) fn read(job: &Job) -> Result<Self> {
        let path = job.path(CHECKPOINT).join(METRICS);
        serde_json::from_str(&read_text(&path)?).map_err(|error| damaged(&path, &error))
    }
}

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let model = context.model();
    let mut results = vec![METRICS, CHANGES];
    if job.speed {
        results.push(speed::FILE);
    }
    let step = Step {
        stage: Stage::Evaluate,
        inputs: json!({
            "model": context.model_hash()?,
            "packed": hashes::file(&job.path(FILE_NAME))?,
            "speed": job.speed,
        }),
        results: &results,
        replaces: &[METRICS, CHANGES, speed::FILE],
    };
    context.perform(step, |context| {
        let full_model = if context.finetunes() { FINETUNED } else { &job.model };
        let (compute, watch) = (context.compute, &mut *context.watch);
        let options = SessionOptions { threads: compute.threads().count(), max_len: None };
        let session = Session::open(job.path(FILE_NAME), options)?;
        let packed = evaluate_packed(&session, job.task, &job.dev, &job.read, job.max_len, |done, total| {
            watch.progress(done, total, "sequences with the packed model");
        })?;
        let full = context.full_precision()?;
        let trained = Trained::read(job)?;
        let stages = vec![
            row(FULL, full_model, full.evaluation.value, json!(full.evaluation.details)),
            row(NOT_TRAINED, "", trained.before.post_training, Value::Null),
            row(TRAINED, CHECKPOINT, trained.dev.value, trained.dev.details),
            row(PACKED, FILE_NAME, packed.evaluation.value, json!(packed.evaluation.details)),
        ];
        let metrics = RunMetrics {
            task: job.task.name().to_owned(),
            metric: full.evaluation.metric.to_owned(),
            examples: full.evaluation.examples,
            stages,
        };
        if job.speed {
            write_document(&job.path(speed::FILE), speed::FORMAT, &speed::measure(job, &model, &session, compute)?)?;
        }
        let changes = Changes::between(changes::all(full, &packed), KEPT);
        write_document(&job.path(CHANGES), "qbert-changes", &changes)?;
        write_document(&job.path(METRICS), "qbert-metrics", &metrics)
    })
}

/// The model in full precision on the dev data.
pub(super) fn full_precision(context: &mut Context<'_>) -> Result<Evaluated> {
    let (job, model, watch) = (context.job, context.model(), &mut *context.watch);
    let (subject, data) = (Evaluate { model: &model, masters: true }, (job.dev.as_path(), &job.read));
    Ok(evaluate(subject, job.task, data, job.max_len, context.compute, |done, total| {
        watch.progress(done, total, "sequences in full precision");
    })?)
}

fn row(stage: &str, model: &str, value: f64, details: Value) -> StageMetrics {
    StageMetrics { stage: stage.to_owned(), model: model.to_owned(), value, details }
}
