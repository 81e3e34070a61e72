//! Bits for every part of the model: `plan.toml`, as `qbert plan` writes it. A plan that was edited by hand stays. A plan for
//! a limit on the metric's drop is found by measuring ([`super::verify`]); `plan-search.json` lists every plan tried.

use qbert_model::atomic;
use qbert_model::sizes::file_size;
use qbert_train::sensitivity::FILE as SENSITIVITY;
use serde_json::{Value, json};

use super::context::{Context, Step};
use super::{PLAN, Stage, analyze, hashes, verify};
use crate::error::{Error, ErrorKind, Result};
use crate::planning::{self, Model, search};

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let inputs = inputs(context)?;
    if context.record().inputs(Stage::Plan).is_none() && job.path(PLAN).exists() {
        context.pass_over(Stage::Plan, "plan.toml was put there by hand: used as it is");
        return Ok(());
    }
    if context.record().edited(&job.out, Stage::Plan)? {
        return keep(context, &inputs);
    }
    let step = Step { stage: Stage::Plan, inputs, replaces: &[PLAN] };
    context.perform(step, |context| {
        let text = match &job.own_plan {
            Some(path) => super::context::read_text(path)?,
            None => make(context)?,
        };
        atomic::write_file(&job.path(PLAN), |writer| writer.write_all(text.as_bytes()))?;
        let search = verify::is_asked(job).then_some(search::FILE);
        Ok([PLAN].into_iter().chain(search).map(str::to_owned).collect())
    })
}

fn inputs(context: &mut Context<'_>) -> Result<Value> {
    let job = context.job;
    if let Some(path) = &job.own_plan {
        return Ok(json!({ "plan": hashes::file(path)? }));
    }
    let sensitivity = analyze::is_needed(job).then(|| hashes::file(&job.path(SENSITIVITY))).transpose()?;
    // Only a budget and measurements look at the weights.
    let looks = context.checked.plan.budget.is_some() || verify::is_asked(job);
    let model = if looks { Some(context.model_hash()?) } else { None };
    let mut inputs = json!({ "wishes": context.checked.plan, "sensitivity": sensitivity, "model": model });
    if verify::is_asked(job) {
        inputs["rounding"] = json!(verify::rounding(job));
        inputs["trained_before"] = json!(verify::passed(job)?);
    }
    Ok(inputs)
}

/// An edited plan is used whatever the sensitivities say now. A request for another plan contradicts it.
fn keep(context: &mut Context<'_>, inputs: &Value) -> Result<()> {
    let requested = |inputs: &Value| ["wishes", "plan"].map(|key| inputs.get(key).cloned());
    let before = context.record().inputs(Stage::Plan);
    if before.map(requested) != Some(requested(inputs)) {
        let difference = before.map(|before| qbert_train::state::difference(before, inputs)).unwrap_or_default();
        let path = context.job.path(PLAN);
        let message = format!("{} was edited by hand, but another plan is asked for: {difference}", path.display());
        let hint = "delete the file to get a new plan, or repeat the settings it was made with".to_owned();
        return Err(Error::new(ErrorKind::BadInput, message, hint));
    }
    context.pass_over(Stage::Plan, "plan.toml was edited by hand: used as it is");
    Ok(())
}

fn make(context: &mut Context<'_>) -> Result<String> {
    let job = context.job;
    if verify::is_asked(job) {
        return verify::find(context);
    }
    let directory = context.model();
    let shape = planning::shape(&directory)?;
    let mut request = context.checked.plan.clone();
    if analyze::is_needed(job) {
        request.sensitivity = Some(job.path(SENSITIVITY));
    }
    let (threads, watch) = (context.compute.threads(), &mut *context.watch);
    let mut progress = |done, total| watch.progress(done, total, "matrices tried");
    let new = planning::make(&request, &Model { directory: &directory, shape: &shape }, threads, &mut progress)?;
    // A plan that does not fit the model is refused here rather than by the stages that use it.
    file_size(&shape, &new.plan)?;
    Ok(new.to_toml())
}
