//! The sensitivity of each layer: `sensitivity.json`, as `qbert analyze` writes it. A plan that is found by measuring needs
//! measured divergences instead of eigenvalues.

use std::ops::ControlFlow;

use qbert_quant::RangeMethod;
use qbert_train::loading::read_data;
use qbert_train::sensitivity::measured::{MeasureSettings, Measurement, measure_on};
use qbert_train::sensitivity::{FILE, SAVE_EVERY, analyze_on};
use serde_json::json;

use super::context::{Context, Step};
use super::helpers::{self, Call};
use super::{Job, Stage};
use crate::error::Result;

/// The state of an unfinished analysis.
const STATE: &str = "analysis.safetensors";
/// The state of an unfinished measurement.
const MEASURED: &str = "measured.json";

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
    if job.plan.max_drop.is_some() {
        return measure(context);
    }
    let model = context.model();
    let step = Step {
        stage: Stage::Analyze,
        inputs: json!({ "model": context.model_hash()?, "settings": job.analysis }),
        replaces: &[FILE, STATE, MEASURED],
    };
    context.perform(step, |context| {
        let analysis = helpers::analysis(job, model);
        Call::Analyze { model: analysis.model.clone() }.send(context.together);
        let data = read_data(&analysis.model, &analysis.data, &mut context.checked.shared)?;
        let watch = &mut *context.watch;
        let save_every = watch.save_every().unwrap_or(SAVE_EVERY);
        analyze_on(&analysis, data, context.together, save_every, &mut |step| {
            watch.analysis(step, &job.analysis);
            if watch.stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(vec![FILE.to_owned()])
    })
}

/// What quantizing one matrix at a time does to the answers on the dev data: on its training data a model is too sure of
/// itself.
fn measure(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let model = context.model();
    let settings = MeasureSettings {
        widths: job.plan.bits.iter().filter_map(|bits| bits.width()).collect(),
        groups: context.checked.plan.groups,
        range: job.plan.range.unwrap_or(RangeMethod::Mse),
        examples: job.analysis.max_examples,
        seed: job.analysis.seed,
    };
    let step = Step {
        stage: Stage::Analyze,
        inputs: json!({
            "model": context.model_hash()?,
            "widths": job.plan.bits,
            "groups": settings.groups.map(|groups| groups.to_string()),
            "range": settings.range.to_string(),
            "examples": settings.examples,
            "seed": settings.seed,
        }),
        replaces: &[FILE, STATE, MEASURED],
    };
    context.perform(step, |context| {
        let data = read_data(&model, &job.dev_data(), &mut context.checked.shared)?;
        let measurement = Measurement { model, data: job.dev_data(), settings, out: job.out.clone(), resume: true };
        let watch = &mut *context.watch;
        let save_every = watch.save_every().unwrap_or(SAVE_EVERY);
        measure_on(&measurement, data, context.compute, save_every, &mut |trial| {
            watch.progress(trial.done, trial.total, "matrices and widths tried");
            if watch.stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(vec![FILE.to_owned()])
    })
}
