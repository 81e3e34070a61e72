//! Reading what the other commands wrote.
//!
//! Every reader takes text and the name to use in messages, so that callers decide where bytes come from;
//! [`directory`] is the one that goes to the disk. A file's `format` and `version` are checked before its content.

mod directory;
mod metrics;
mod training;

use serde::de::DeserializeOwned;

pub use directory::directory;
pub use metrics::{Metrics, Stage, classes, metrics, run_metrics};
pub use training::{CURVE_POINTS, TrainingLog, training};

use crate::data::{
    AttentionKl, BitPlan, Changes, FORMAT, Landscapes, Models, Provenance, Report, Sensitivity, SiteBits, Summary,
};
use crate::error::{Error, Result};

/// Reads a JSON document that names its format.
fn document<T: DeserializeOwned>(text: &str, file: &str, format: &'static str) -> Result<T> {
    let json = |source| Error::Json { file: file.to_owned(), source };
    let value: serde_json::Value = serde_json::from_str(text).map_err(json)?;
    let found = value.get("format").and_then(serde_json::Value::as_str).unwrap_or_default();
    if found != format {
        return Err(Error::Format { file: file.to_owned(), found: found.to_owned(), expected: format });
    }
    let version = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or_default();
    if version != 1 {
        return Err(Error::Version { file: file.to_owned(), format, found: version });
    }
    serde_json::from_value(value).map_err(json)
}

/// A whole report, as [`Report::to_json`] writes it; parts may be missing.
pub fn report(text: &str, file: &str) -> Result<Report> {
    document(text, file, FORMAT)
}

/// `sensitivity.json`, format `qbert-sensitivity`.
pub fn sensitivity(text: &str, file: &str) -> Result<Sensitivity> {
    document(text, file, "qbert-sensitivity")
}

/// `landscape.json`, format `qbert-landscape`.
pub fn landscape(text: &str, file: &str) -> Result<Landscapes> {
    document(text, file, "qbert-landscape")
}

/// `attention.json`, format `qbert-attention-kl`.
pub fn attention(text: &str, file: &str) -> Result<AttentionKl> {
    document(text, file, "qbert-attention-kl")
}

/// `summary.json`, format `qbert-summary`: a [`Summary`] with `format` and `version`.
pub fn summary(text: &str, file: &str) -> Result<Summary> {
    document(text, file, "qbert-summary")
}

/// `models.json`, format `qbert-models`: [`Models`] with `format` and `version`.
pub fn models(text: &str, file: &str) -> Result<Models> {
    document(text, file, "qbert-models")
}

/// `changes.json`, format `qbert-changes`: [`Changes`] with `format` and `version`.
pub fn changes(text: &str, file: &str) -> Result<Changes> {
    document(text, file, "qbert-changes")
}

/// `provenance.json`, format `qbert-provenance`: a [`Provenance`] with `format` and `version`.
pub fn provenance(text: &str, file: &str) -> Result<Provenance> {
    document(text, file, "qbert-provenance")
}

/// `plan.toml`.
pub fn plan(text: &str, file: &str) -> Result<BitPlan> {
    let plan = qbert_quant::Plan::parse(text, file)?;
    let matrices = qbert_quant::Matrix::ALL;
    let bits = |site: &qbert_quant::SitePlan| site.bits.number();
    let layers = plan.layers().iter().map(|layer| matrices.iter().map(|&m| bits(layer.get(m))).collect()).collect();
    let outside = plan.sites().filter(|(site, _)| site.layer().is_none());
    let mut others: Vec<_> = outside.map(|(site, how)| SiteBits { site: site.to_string(), bits: bits(how) }).collect();
    others.push(SiteBits { site: "activations".to_owned(), bits: plan.activation().bits.number() });
    let inside = || plan.sites().filter(|(site, _)| site.layer().is_some()).map(|(_, how)| how);
    let groups = one_or_mixed(inside().map(|how| how.groups.to_string()));
    let range = one_or_mixed(inside().map(|how| how.range.to_string()));
    let setting = format!("groups in the layers: {groups}; ranges: {range}");
    Ok(BitPlan { sites: matrices.iter().map(|m| m.name().to_owned()).collect(), layers, others, setting })
}

/// The value all share, or all values that occur, in order of appearance.
fn one_or_mixed(values: impl Iterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen.join(", ")
}
