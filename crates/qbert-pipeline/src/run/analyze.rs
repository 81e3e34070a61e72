//! The sensitivity of each layer: `sensitivity.json`, as `qbert analyze` writes it.

use std::ops::ControlFlow;

use qbert_train::loading::read_data;
use qbert_train::sensitivity::{Analysis, FILE, SAVE_EVERY, Shard, analyze_on};
use serde_json::json;

use super::context::{Context, Step};
use super::{Job, Stage};
use crate::error::Result;

/// The state of an unfinished analysis.
const STATE: &str = "analysis.safetensors";

/// Whether the plan depends on sensitivities.
pub(super) fn is_needed(job: &Job) -> bool {
    job.own_plan.is_none() && job.plan.preset.is_none() && job.plan.bits.len() > 1
}

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    if !is_needed(job) {
        context.pass_over(Stage::Analyze, "not needed: the plan does not depend on it");
        return Ok(());
    }
    let model = context.model();
    let step = Step {
        stage: Stage::Analyze,
        inputs: json!({ "model": context.model_hash()?, "settings": job.analysis }),
        replaces: &[FILE, STATE],
    };
    context.perform(step, |context| {
        let analysis = Analysis {
            model,
            data: job.data.clone(),
            settings: job.analysis,
            shard: Shard::WHOLE,
            out: job.out.clone(),
            resume: true,
        };
        let data = read_data(&analysis.model, &analysis.data, &mut context.checked.shared)?;
        let watch = &mut *context.watch;
        let save_every = watch.save_every().unwrap_or(SAVE_EVERY);
        analyze_on(&analysis, data, context.compute, save_every, &mut |step| {
            watch.analysis(step, &job.analysis);
            if watch.stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(vec![FILE.to_owned()])
    })
}
