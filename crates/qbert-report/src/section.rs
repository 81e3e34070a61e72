//! The sections of a report in page order. Each is built from the data it needs, or left out.

pub(crate) mod attention;
mod changes;
mod classes;
pub(crate) mod landscape;
mod measured;
mod models;
mod plan;
mod plan_search;
mod provenance;
pub(crate) mod sensitivity;
mod summary;
mod training;

use crate::content::{Block, Section};
use crate::data::Report;

pub(crate) use summary::{headline, title};

/// All sections with enough data, then a list of what is missing, then provenance.
pub(crate) fn all(report: &Report) -> Vec<Section> {
    let parts: [(Option<Section>, &'static str, &'static str); 11] = [
        (summary::section(report), "Summary", "qbert finetune and qbert quantize write metrics.json"),
        (models::section(report), "Accuracy against size", "models.json: several models for one task"),
        (sensitivity::section(report), "Eigenvalues per layer", "qbert analyze --model … --task … --data … --out DIR"),
        (
            measured::section(report),
            "Measured sensitivity",
            "qbert analyze --method kl --model … --task … --data … --out DIR",
        ),
        (
            plan::section(report),
            "Sensitivity and bit plan",
            "qbert plan --sensitivity DIR/sensitivity.json … --out DIR/plan.toml",
        ),
        (
            plan_search::section(report),
            "Plans tried",
            "qbert plan --max-drop POINTS --sensitivity DIR/sensitivity.json … --out DIR/plan.toml",
        ),
        (
            landscape::section(report),
            "Loss landscape",
            "qbert landscape --model … --layer 0 5 --out DIR/landscape.json",
        ),
        (
            attention::section(report),
            "Attention",
            "attention.json: KL of each head's attention, full precision from quantized",
        ),
        (training::section(report), "Training", "qbert finetune and qbert quantize write train.jsonl"),
        (classes::section(report), "Results per class", "metrics.json of a classifier or entity recognizer"),
        (changes::section(report), "Changed predictions", "changes.json: predictions before and after"),
    ];
    let mut sections = Vec::new();
    let mut missing = Vec::new();
    for (section, title, how) in parts {
        match section {
            Some(section) => sections.push(section),
            None => missing.push((title, how)),
        }
    }
    sections.extend(provenance::section(report));
    if !missing.is_empty() {
        sections.push(Section { id: "missing", title: "Not in this report", blocks: vec![Block::Missing(missing)] });
    }
    sections
}
