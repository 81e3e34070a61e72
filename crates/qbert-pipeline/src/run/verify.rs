//! A limit on the metric's drop, kept by the trained model: plans are measured without training, one of them is trained, and
//! its drop is measured again. If it misses the limit, a larger plan is trained, and a smaller one if there is much room;
//! [`crate::planning::search`] says which, and how often.
//!
//! The memory of all this is `plan-search.json`. It changes after the plan's stage is done, so `run.json` knows that it must
//! be there, but not its content.

use std::sync::Arc;

use qbert_documents::{PlanSearch, TrainedDrop};
use qbert_train::evaluate::{Evaluate, evaluate_on};
use qbert_train::finetune::TrainingData;
use qbert_train::sensitivity::FILE as SENSITIVITY;
use serde_json::json;

use super::context::Context;
use super::{CHECKPOINT, Job, Stage, Watch, finetune, hashes, read_document};
use crate::error::Result;
use crate::planning::search::{self, FILE, Rounding, Search, SearchData};
use crate::planning::{self, Model, PlanRequest};

/// Whether the job has a limit on the drop.
pub(super) fn is_asked(job: &Job) -> bool {
    job.plan.max_drop.is_some() && job.own_plan.is_none()
}

/// How plans are quantized to be measured: as the training that follows begins.
pub(super) fn rounding(job: &Job) -> Rounding {
    Rounding { batches: job.qat.calibration, batch: job.quantize.settings.batch, compensate: job.qat.compensate }
}

/// Hash of everything that decides a training besides plan, model and data.
fn training_key(job: &Job) -> String {
    hashes::text(&json!({ "training": job.quantize, "quantization": job.qat }).to_string())
}

fn read(job: &Job) -> Result<Option<PlanSearch>> {
    let path = job.path(FILE);
    if path.exists() { read_document(&path).map(Some) } else { Ok(None) }
}

/// The sizes of plans that were trained as the job asks, with a result after which the search went on.
pub(super) fn passed(job: &Job) -> Result<Vec<String>> {
    let Some(search) = read(job)? else { return Ok(Vec::new()) };
    let key = training_key(job);
    let went_on = |own: &TrainedDrop| own.training == key && own.went_on;
    let plans = search.plans.iter().filter(|plan| plan.trained.as_ref().is_some_and(went_on));
    Ok(plans.map(|plan| search::size_in_words(plan.bytes)).collect())
}

/// Finds the plan to train; returns its file's text.
pub(super) fn find(context: &mut Context<'_>) -> Result<String> {
    let found = with_search(context, |search, context| {
        let (compute, mut told) = (context.compute, Told(&mut *context.watch));
        if context.job.quantize.settings.epochs == 0 {
            return search::find(search, compute, &mut told).map(Some);
        }
        search::find_to_train(search, &training_key(context.job), compute, &mut told)
    })?;
    let found = match found {
        Some(found) => found,
        // None is left to train: the same plans are found again, and the best of them stays.
        None => with_search(context, |search, context| {
            search::find(search, context.compute, &mut Told(&mut *context.watch))
        })?,
    };
    context.watch.say(&found.search.outcome);
    Ok(found.new.to_toml())
}

/// Calls with everything that a search needs.
fn with_search<T>(
    context: &mut Context<'_>,
    work: impl FnOnce(&Search<'_>, &mut Context<'_>) -> Result<T>,
) -> Result<T> {
    let job = context.job;
    let directory = context.model();
    let shape = planning::shape(&directory)?;
    let request = PlanRequest { sensitivity: Some(job.path(SENSITIVITY)), ..context.checked.plan.clone() };
    let training = finetune::training(job, &job.quantize, directory.clone(), CHECKPOINT);
    let TrainingData { train, dev } = TrainingData::read_from(&mut context.checked.shared, &training, None)?;
    let data = SearchData { train, dev, identity: context.checked.identity.clone() };
    let search = Search {
        request: &request,
        model: Model { directory: &directory, shape: &shape },
        model_hash: context.model_hash()?,
        data,
        rounding: rounding(job),
        full_precision: Some(context.full_precision()?.evaluation.clone()),
        memory: job.path(FILE),
    };
    work(&search, context)
}

/// Passes a search's progress on.
struct Told<'a>(&'a mut dyn Watch);

impl search::Watch for Told<'_> {
    fn progress(&mut self, done: usize, total: usize, what: &str) {
        self.0.progress(done, total, what);
    }

    fn tried(&mut self, search: &PlanSearch, plan: &qbert_documents::TriedPlan) {
        self.0.say(&search::tried_in_words(search, plan));
    }

    fn starts_over(&mut self) {
        self.0.say("model, data or details of the plan have changed: all plans are measured again");
    }
}

/// Measures the trained model's drop. Returns whether the run can go on: the limit holds, or no plan is left to train.
pub(super) fn is_settled(context: &mut Context<'_>) -> Result<bool> {
    let job = context.job;
    let Some(limit) = job.plan.max_drop.filter(|_| is_asked(job)) else { return Ok(true) };
    if job.quantize.settings.epochs == 0 {
        // Without training, the model is the one that was measured, to the last bit.
        return Ok(true);
    }
    let is_own = context.record().inputs(Stage::Plan).is_none() || context.record().edited(&job.out, Stage::Plan)?;
    if is_own {
        context.watch.say("the plan was changed by hand: whether the drop stays within its limit is not checked");
        return Ok(true);
    }
    let Some(mut search) = read(job)? else { return Ok(true) };
    let Some(chosen) = search.plans.iter().position(|plan| plan.chosen) else { return Ok(true) };
    let training = training_key(job);
    let known = search.plans[chosen].trained.clone().filter(|own| own.training == training);
    let measured = match &known {
        Some(known) => known.measured,
        None => {
            let full = context.full_precision()?;
            let (full, data) = (full.evaluation.clone(), Arc::clone(&full.data));
            let (checkpoint, watch) = (job.path(CHECKPOINT), &mut *context.watch);
            let trained = evaluate_on(Evaluate::from(&checkpoint), data, context.compute, |done, total| {
                watch.progress(done, total, "sequences with the trained model");
            })?;
            search::measured_drop(&full, &trained.evaluation, limit.sure())
        }
    };
    let trained = search.plans.iter().filter_map(|plan| plan.trained.as_ref());
    let trained = trained.filter(|own| own.training == training).count() + usize::from(known.is_none());
    let went_on = known.as_ref().is_some_and(|known| known.went_on);
    let key = training.clone();
    search.plans[chosen].trained = Some(TrainedDrop { training, measured, went_on });
    search.holds = search.judged(&measured) <= limit.points;
    let is_settled = !goes_on(context, &search)?;
    let (size, drop) = (search::size_in_words(search.plans[chosen].bytes), search::drop_in_words(&measured));
    let PlanSearch { metric, plans, .. } = &search;
    let has_kept = |own: &TrainedDrop| own.training == key && search.judged(&own.measured) <= limit.points;
    let kept = plans.iter().find(|plan| plan.trained.as_ref().is_some_and(has_kept));
    let outcome = match (search.holds, is_settled) {
        (true, true) => {
            let within = format!("within {}{}", limit.points, search::confidence_in_words(&limit));
            let counts = format!("{} plans measured, {trained} trained", plans.len());
            format!("{size}: {metric} drops by {drop} after training, {within}; {counts}")
        }
        (false, true) => format!(
            "none of the {trained} plans trained keeps the drop of {metric} within {} points{}; the last, {size}, drops by {drop}",
            limit.points,
            search::confidence_in_words(&limit)
        ),
        (true, false) => {
            format!(
                "{size} keeps the limit with much room: {metric} drops by {drop} after training; a smaller plan is next"
            )
        }
        (false, false) => {
            let next = match kept {
                Some(kept) => {
                    format!("the plan of {} is the result, and trained again", search::size_in_words(kept.bytes))
                }
                None => "a larger plan is next".to_owned(),
            };
            format!("{size} misses the limit: {metric} drops by {drop} after training; {next}")
        }
    };
    if known.is_none() {
        context.watch.say(&outcome);
    }
    search.outcome = outcome;
    let plan = &mut search.plans[chosen];
    plan.chosen = is_settled;
    if let Some(trained) = &mut plan.trained {
        trained.went_on |= !is_settled;
    }
    search::write(&job.path(FILE), &search)?;
    Ok(is_settled)
}

/// Whether another plan is to be trained.
fn goes_on(context: &mut Context<'_>, search: &PlanSearch) -> Result<bool> {
    let training = training_key(context.job);
    with_search(context, |own, context| search::goes_on(own, search, &training, context.compute))
}

/// What came out of the search, if the run has a limit and its own plan.
pub(super) fn result(context: &Context<'_>) -> Result<Option<PlanSearch>> {
    let job = context.job;
    let is_own = context.record().inputs(Stage::Plan).is_none() || context.record().edited(&job.out, Stage::Plan)?;
    if is_own || !is_asked(job) { Ok(None) } else { read(job) }
}
