//! Reading what the other commands wrote.
//!
//! Most readers take text and the name to use in messages, so that callers decide where bytes come from;
//! [`directory`] reads from disk. The files' own types are in `qbert_documents`.

mod directory;
mod metrics;
mod training;

pub use directory::directory;
pub use training::{CURVE_POINTS, TrainingLog, training};

use qbert_documents::{AttentionKl, BitCount, LossLandscapes, Sensitivity, parse};

use crate::data::{AttentionPart, BitPlan, LandscapePart, Report, SensitivityPart, SiteBits};
use crate::error::Result;

/// A whole report, as [`Report::to_json`] writes it; parts may be missing.
pub fn report(text: &str, file: &str) -> Result<Report> {
    Ok(parse(text, file)?)
}

/// What a page shows of a `sensitivity.json`.
pub fn sensitivity(text: &str, file: &str) -> Result<SensitivityPart> {
    Ok(parse::<Sensitivity>(text, file)?.into())
}

/// What a page shows of a `landscape.json`.
pub fn landscape(text: &str, file: &str) -> Result<LandscapePart> {
    Ok(parse::<LossLandscapes>(text, file)?.into())
}

/// What a page shows of an `attention-kl.json`.
pub fn attention(text: &str, file: &str) -> Result<AttentionPart> {
    Ok(parse::<AttentionKl>(text, file)?.into())
}

/// `plan.toml`.
pub fn plan(text: &str, file: &str) -> Result<BitPlan> {
    let plan = qbert_quant::Plan::parse(text, file)?;
    let matrices = qbert_quant::Matrix::ALL;
    let bits = |site: &qbert_quant::SitePlan| BitCount::from((100.0 * site.width().number()).round() / 100.0);
    let layers = plan.layers().iter().map(|layer| matrices.iter().map(|&m| bits(layer.get(m))).collect()).collect();
    let outside = plan.sites().filter(|(site, _)| site.layer().is_none());
    let mut others: Vec<_> = outside.map(|(site, how)| SiteBits { site: site.to_string(), bits: bits(how) }).collect();
    others.push(SiteBits { site: "activations".to_owned(), bits: plan.activation().bits.number().into() });
    let inside = || plan.sites().filter(|(site, _)| site.layer().is_some()).map(|(_, how)| how);
    let groups = one_or_mixed(inside().map(|how| how.groups.to_string()));
    let range = one_or_mixed(inside().map(|how| how.range.to_string()));
    let setting = format!("groups in the layers: {groups}; ranges: {range}");
    Ok(BitPlan { sites: matrices.iter().map(|m| m.name().to_owned()).collect(), layers, others, setting })
}

/// All values that occur, in order of appearance.
fn one_or_mixed(values: impl Iterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen.join(", ")
}
