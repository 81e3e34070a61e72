//! The last stage: the results for people and programs. `summary.json`, `models.json`, `provenance.json`, the report in
//! its three forms, and the model card.

use qbert_documents::{Fact, Provenance};
use qbert_kernels::Machine;
use qbert_model::atomic;
use qbert_train::sensitivity::FILE as SENSITIVITY;
use serde_json::{Map, Value, json};

use super::context::{Context, Step};
use super::evaluate::CHANGES;
use super::figures::{ATTENTION, LANDSCAPE};
use super::summary::Results;
use super::{CHECKPOINT, FINETUNED, METRICS, PLAN, Stage, card, hashes, speed, summary, write_document};
use crate::error::Result;
use crate::packing::FILE_NAME;
use crate::planning::search::FILE as SEARCH;

const MODELS: &str = "models.json";
const PROVENANCE: &str = "provenance.json";
const CARD: &str = "README.md";
/// Where the report's Markdown has its figures.
const FIGURES: &str = "report-figures";

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let step = Step { stage: Stage::Report, inputs: inputs(context)?, replaces: &[] };
    context.perform(step, |context| {
        let results = Results::gather(context)?;
        write_document(&job.path(summary::FILE), &results.summary)?;
        write_document(&job.path(MODELS), &results.models())?;
        write_document(&job.path(PROVENANCE), &provenance(context, &results)?)?;
        let card = card::text(context, &results);
        atomic::write_file(&job.path(CARD), |writer| writer.write_all(card.as_bytes()))?;
        let figures = job.path(FIGURES);
        if figures.exists() {
            atomic::remove_leftovers(&figures)?;
        }
        let report = qbert_report::read::directory(&job.out)?;
        let mut written = [summary::FILE, MODELS, PROVENANCE, CARD].map(str::to_owned).to_vec();
        for (name, text) in report.render().files() {
            atomic::write_file(&job.path(name), |writer| writer.write_all(text.as_bytes()))?;
            written.push(name.to_owned());
        }
        Ok(written)
    })
}

/// Everything that is shown.
fn inputs(context: &Context<'_>) -> Result<Value> {
    let job = context.job;
    let mut files = Map::new();
    let names = [SENSITIVITY, PLAN, SEARCH, METRICS, CHANGES, speed::FILE, LANDSCAPE, ATTENTION, FILE_NAME];
    let of_training = [FINETUNED, CHECKPOINT].map(|folder| format!("{folder}/train.jsonl"));
    for name in names.into_iter().chain(of_training.iter().map(String::as_str)) {
        if job.path(name).is_file() {
            files.insert(name.to_owned(), hashes::file(&job.path(name))?.into());
        }
    }
    Ok(json!({
        "files": files,
        "model": job.model,
        "terms": context.terms(),
        "command": job.command,
        "notes": job.notes,
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

fn provenance(context: &Context<'_>, results: &Results) -> Result<Provenance> {
    let job = context.job;
    let mut facts = Vec::new();
    let mut add = |group: &str, name: &str, value: String| {
        facts.push(Fact { group: group.to_owned(), name: name.to_owned(), value });
    };
    add("Program", "version", env!("CARGO_PKG_VERSION").to_owned());
    add("Program", "kernels", context.compute.kernels().to_string());
    add("Program", "CPU", Machine::here().to_string());
    add("Model", "name", job.model.clone());
    add("Model", "sha256", context.checked.model_hash.clone());
    let hashes_of = &context.checked.data;
    for (path, hash) in job.data.files.iter().zip(&hashes_of.train) {
        add("Data", &summary::shown(path), format!("sha256 {hash}"));
    }
    add("Data", "examples to learn from", context.checked.examples[0].to_string());
    add("Data", &summary::shown(&job.dev), format!("sha256 {}", hashes_of.dev));
    add("Data", "examples to judge by", context.checked.examples[1].to_string());
    let origin = match (&job.own_plan, results.plan_edited) {
        (_, true) => "edited by hand".to_owned(),
        (Some(path), _) => summary::shown(path),
        (None, false) if context.record().inputs(Stage::Plan).is_none() => "put there by hand".to_owned(),
        (None, false) => "made by this run".to_owned(),
    };
    add("Plan", "origin", origin);
    add("Plan", "sha256", hashes::file(&job.path(PLAN))?);
    add("Packed model", "sha256", hashes::file(&job.path(FILE_NAME))?);
    Ok(Provenance { commands: vec![job.command.clone()], facts })
}
