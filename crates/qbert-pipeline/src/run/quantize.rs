//! Quantization-aware training by the plan: `checkpoint/`, as `qbert quantize` writes it.

use qbert_train::qat::run::{Quantize, quantize};
use serde_json::json;

use super::context::{Context, Step};
use super::{CHECKPOINT, PLAN, Stage, finetune, hashes};
use crate::error::Result;
use crate::planning;

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let plan = planning::read(&job.path(PLAN))?;
    let model = context.model();
    let step = Step {
        stage: Stage::Quantize,
        inputs: json!({
            "model": hashes::model(&model)?,
            // What the plan says: another comment changes nothing.
            "plan": hashes::text(&plan.to_toml()),
            "training": job.quantize,
            "quantization": job.qat,
        }),
        results: &[
            "checkpoint/config.json",
            "checkpoint/metrics.json",
            "checkpoint/model.safetensors",
            "checkpoint/plan.toml",
            "checkpoint/ranges.safetensors",
            "checkpoint/train.jsonl",
        ],
        replaces: &[CHECKPOINT],
    };
    context.perform(step, |context| {
        let training = finetune::training(job, &job.quantize, model, CHECKPOINT);
        let run = Quantize { job: training, plan, settings: job.qat.clone() };
        quantize(&run, context.compute, context.watch)?;
        Ok(())
    })
}
