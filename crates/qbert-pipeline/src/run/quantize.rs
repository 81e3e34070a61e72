//! Quantization-aware training by the plan: `checkpoint/`, as `qbert quantize` writes it.

use qbert_train::finetune::TrainingData;
use qbert_train::qat::run::{Judging, Quantize, quantize_on};
use serde_json::json;

use super::context::{Context, Step};
use super::helpers::Call;
use super::{CHECKPOINT, PLAN, Stage, finetune, hashes};
use crate::error::{Error, Result};
use crate::planning;

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let plan = planning::read(&job.path(PLAN))?;
    let model = context.model();
    let step = Step {
        stage: Stage::Quantize,
        inputs: json!({
            "model": context.model_hash()?,
            // What the plan says: another comment changes nothing.
            "plan": hashes::text(&plan.to_toml()),
            "training": job.quantize,
            "quantization": job.qat,
        }),
        replaces: &[CHECKPOINT],
    };
    context.perform(step, |context| {
        let training = finetune::training(job, &job.quantize, model, CHECKPOINT);
        let run = Quantize { job: training, plan, settings: job.qat.clone() };
        let full = context.full_precision()?.evaluation.clone();
        context.watch.full_precision(&full);
        let judging = Judging { full_precision: Some(full.value), ..Judging::default() };
        let (model, plan) = (run.job.model.clone(), run.plan.to_toml());
        Call::Quantize { model, plan, full_precision: full.value }.send(context.together);
        let data = TrainingData::read_from(&mut context.checked.shared, &run.job, None);
        data.and_then(|data| quantize_on(&run, data, judging, context.together, context.watch))
            .map_err(|error| Error::from(error).of_training("quantize"))?;
        hashes::training_files(&job.out, CHECKPOINT)
    })
}
