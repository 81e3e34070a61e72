//! The metrics of every model of the run on the dev data: `metrics.json`; the answers that quantization changed:
//! `changes.json`; the speed of the packed model: `speed.json`.

use std::sync::Arc;

use qbert_documents::{Changes, RunMetrics, StageMetrics, TrainingMetrics};
use qbert_runtime::{Session, SessionOptions};
use qbert_train::evaluate::{Evaluate, Evaluated, evaluate_on};
use qbert_train::loading::{Loaded, read_data};
use serde_json::{Value, json};

use super::context::{Context, Step};
use super::{CHECKPOINT, FINETUNED, Job, METRICS, Stage, damaged_file, hashes, read_document, speed, write_document};
use crate::error::Result;
use crate::packed_evaluation::evaluate_packed_from;
use crate::packing::FILE_NAME;

/// The answers that changed most.
pub(super) const CHANGES: &str = "changes.json";
/// How many of them are kept.
const KEPT: usize = 100;

/// Reads the run's `metrics.json`.
pub(super) fn read_metrics(job: &Job) -> Result<RunMetrics> {
    read_document(&job.path(METRICS))
}

/// Reads the quantized checkpoint's `metrics.json`.
pub(super) fn read_trained(job: &Job) -> Result<TrainingMetrics> {
    let path = job.path(CHECKPOINT).join(METRICS);
    let trained: TrainingMetrics = read_document(&path)?;
    if trained.epoch.is_none() || !trained.is_quantization() || !trained.dev.value.is_finite() {
        return Err(damaged_file(format!("{}: `dev.value`, `epoch` or `before` is missing", path.display())));
    }
    Ok(trained)
}

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let model = context.model();
    let step = Step {
        stage: Stage::Evaluate,
        inputs: json!({
            "model": context.model_hash()?,
            "packed": hashes::file(&job.path(FILE_NAME))?,
            "speed": job.speed,
        }),
        replaces: &[METRICS, CHANGES, speed::FILE],
    };
    context.perform(step, |context| {
        let full_model = if context.finetunes() { FINETUNED } else { &job.model };
        let (compute, watch) = (context.compute, &mut *context.watch);
        let options = SessionOptions::default().threads(compute.threads().count());
        let session = Session::open(job.path(FILE_NAME), options)?;
        let shared = &mut context.checked.shared;
        let packed = evaluate_packed_from(shared, &session, &job.dev_data(), |done, total| {
            watch.progress(done, total, "sequences with the packed model");
        })?;
        let full = context.full_precision()?;
        let trained = read_trained(job)?;
        let not_trained = trained.before.map_or(f64::NAN, |before| before.post_training);
        let stages = vec![
            row(RunMetrics::FULL_PRECISION, full_model, full.evaluation.value, json!(full.evaluation.details)),
            row(RunMetrics::NOT_TRAINED, "", not_trained, Value::Null),
            row(RunMetrics::QUANTIZED, CHECKPOINT, trained.dev.value, trained.dev.details),
            row(RunMetrics::PACKED, FILE_NAME, packed.evaluation.value, json!(packed.evaluation.details)),
        ];
        let metrics = RunMetrics {
            task: job.data.task.name().to_owned(),
            metric: full.evaluation.metric.to_owned(),
            examples: Some(full.evaluation.examples as u64),
            left_out: full.evaluation.left_out.map(|left_out| left_out.count as u64),
            stages,
        };
        if job.speed {
            let loaded = Loaded::with_data(&model, Arc::clone(&full.data))?;
            write_document(&job.path(speed::FILE), &speed::measure(job, &loaded, &session, compute)?)?;
        }
        let changes = Changes::between(crate::changes::all(&full.data, &full.predictions, &packed.predictions), KEPT);
        write_document(&job.path(CHANGES), &changes)?;
        write_document(&job.path(METRICS), &metrics)?;
        let speed = job.speed.then_some(speed::FILE);
        Ok([METRICS, CHANGES].into_iter().chain(speed).map(str::to_owned).collect())
    })
}

/// The model in full precision on the dev data.
pub(super) fn full_precision(context: &mut Context<'_>) -> Result<Evaluated> {
    let model = context.model();
    let data = read_data(&model, &context.job.dev_data(), &mut context.checked.shared)?;
    let watch = &mut *context.watch;
    let subject = Evaluate { model: &model, masters: true };
    Ok(evaluate_on(subject, data, context.compute, |done, total| {
        watch.progress(done, total, "sequences in full precision");
    })?)
}

fn row(stage: &str, model: &str, value: f64, details: Value) -> StageMetrics {
    StageMetrics { stage: stage.to_owned(), model: model.to_owned(), value, details }
}
