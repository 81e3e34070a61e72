//! `sensitivity.json`: the results of an analysis, for people, for planning and for the report.

use std::path::Path;

use qbert_documents::{AnalysisRun, AnalysisSubject, AnalyzedLayer, Sensitivity};
use qbert_model::atomic;
use qbert_quant::rank_correlation;
use serde::{Deserialize, Serialize};

use super::settings::{Method, Settings};
use crate::error::{Error, Result};

/// One layer in one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The run, counted from 0.
    pub run: usize,
    /// The layer, counted from 0.
    pub layer: usize,
    /// The eigenvalue of largest magnitude, with its sign.
    pub eigenvalue: f64,
    /// There is an eigenvalue within this distance of it.
    pub residual: f64,
    /// Lowest eigenvalue; unknown to power iteration.
    pub lowest: Option<f64>,
    /// Products formed.
    pub iterations: usize,
    /// Whether the tolerance was reached before the limit.
    pub converged: bool,
    /// Estimated trace of the layer's Hessian block.
    pub trace: Option<f64>,
}

/// Sums up the results of every layer of every run.
pub(super) fn sum_up(
    subject: AnalysisSubject,
    settings: Settings,
    runs: Vec<AnalysisRun>,
    found: &[Found],
) -> Sensitivity {
    let layers: Vec<AnalyzedLayer> =
        (0..subject.layer_parameters.len()).map(|layer| summarize(layer, &subject, found)).collect();
    let all: Vec<f64> = layers.iter().map(|layer| layer.omega).collect();
    let halves = [0..settings.runs / 2, settings.runs / 2..settings.runs]
        .map(|half| layers.iter().map(|layer| omega(&layer.eigenvalues[half.clone()])).collect::<Vec<_>>());
    let agreement_of_halves = (settings.runs >= 4).then(|| rank_correlation(&halves[0], &halves[1])).flatten();
    let warnings = warnings(&layers, settings, &Evidence::of(&runs));
    let (ranking, settings) = (ranking(&all), serde_json::json!(settings));
    Sensitivity { subject, settings, layers, ranking, agreement_of_halves, runs, warnings, measured: None }
}

/// Writes the file, whole or not at all.
pub(super) fn write(path: &Path, found: &Sensitivity) -> Result<()> {
    let text = qbert_documents::to_json(found);
    Ok(atomic::write_file(path, |writer| writer.write_all(text.as_bytes()))?)
}

/// Reads the file of a complete analysis.
///
/// # Errors
/// A file that cannot be read or is not a complete `sensitivity.json`.
pub fn read(path: &Path) -> Result<Sensitivity> {
    let found: Sensitivity = qbert_documents::read(path)?;
    found.check().map_err(|problem| damaged(path, problem))?;
    Ok(found)
}

/// The settings that an analysis was made with; `path` is its file.
///
/// # Errors
/// Settings that this program does not know.
pub fn settings_of(found: &Sensitivity, path: &Path) -> Result<Settings> {
    serde_json::from_value(found.settings.clone()).map_err(|error| damaged(path, format!("settings: {error}")))
}

fn damaged(path: &Path, problem: String) -> Error {
    Error::Sensitivity { path: path.to_owned(), problem }
}

fn summarize(layer: usize, subject: &AnalysisSubject, found: &[Found]) -> AnalyzedLayer {
    let mut own: Vec<&Found> = found.iter().filter(|unit| unit.layer == layer).collect();
    own.sort_by_key(|unit| unit.run);
    let eigenvalues: Vec<f64> = own.iter().map(|unit| unit.eigenvalue).collect();
    let (mean, std) = moments(&eigenvalues);
    let traces: Vec<f64> = own.iter().filter_map(|unit| unit.trace).collect();
    let parameters = subject.layer_parameters[layer] as f64;
    AnalyzedLayer {
        layer,
        mean,
        std,
        omega: omega(&eigenvalues),
        lowest: own.iter().filter_map(|unit| unit.lowest).collect(),
        iterations: own.iter().map(|unit| unit.iterations).collect(),
        residuals: own.iter().map(|unit| unit.residual).collect(),
        converged: own.iter().filter(|unit| unit.converged).count(),
        trace: (!traces.is_empty()).then(|| moments(&traces).0 / parameters),
        eigenvalues,
    }
}

fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

fn omega(eigenvalues: &[f64]) -> f64 {
    let (mean, std) = moments(eigenvalues);
    mean.abs() + std
}

/// Indices from the largest value to the smallest; equal ones in their order.
fn ranking(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order
}

/// A small negative eigenvalue is noise of every trained network; from this share of the positive one on, on average over
/// the runs, it is worth a word.
const LARGE_NEGATIVE: f64 = 0.5;

/// With fewer runs, or fewer sequences in a run, negative curvature is no proof: the loss of a small sample sits in a few
/// wrong answers, and these have negative curvature at the best of minima.
const TELLING_RUNS: usize = 5;
const TELLING_EXAMPLES: usize = 256;

/// How much an analysis has looked at.
struct Evidence {
    runs: usize,
    /// In the smallest run.
    examples: usize,
}

impl Evidence {
    fn of(runs: &[AnalysisRun]) -> Self {
        Self { runs: runs.len(), examples: runs.iter().map(|run| run.examples).min().unwrap_or(0) }
    }

    fn is_telling(&self) -> bool {
        self.runs >= TELLING_RUNS && self.examples >= TELLING_EXAMPLES
    }
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |count: usize, one: &'static str, many: &'static str| if count == 1 { one } else { many };
        let (runs, examples) = (self.runs, self.examples);
        let (run, sequence) = (word(runs, "run", "runs"), word(examples, "sequence", "sequences"));
        write!(f, "{runs} {run} of {examples} {sequence}")
    }
}

fn warnings(layers: &[AnalyzedLayer], settings: Settings, evidence: &Evidence) -> Vec<String> {
    let mut warnings = Vec::new();
    let negative: Vec<String> = layers.iter().filter_map(negative_curvature).collect();
    if negative.is_empty() {
        warnings.extend(unclear_curvature(layers, evidence));
    } else if evidence.is_telling() {
        warnings.push(format!(
            "the checkpoint does not seem to have converged: {}. Along such a direction the loss still falls, so the model \
             sits on a slope and not in a valley; quantization pushes it off, and more accuracy is lost than the plan lets \
             expect (the paper's SQuAD case). Fine-tune it longer, or at a lower rate towards the end, and analyze again",
            negative.join("; ")
        ));
    } else {
        warnings.push(format!(
            "{}. That may mean that the checkpoint has not converged, but {evidence} are too few to tell: small samples \
             often have negative curvature where there is none on average. To find out, analyze {TELLING_RUNS} or more runs \
             of at least {TELLING_EXAMPLES} sequences",
            negative.join("; ")
        ));
    }
    let unsettled: Vec<usize> = layers.iter().filter(|l| l.converged < l.eigenvalues.len()).map(|l| l.layer).collect();
    if !unsettled.is_empty() {
        warnings.push(format!(
            "the iteration limit of {} was reached before the tolerance of {} in layers {unsettled:?}: allow more iterations",
            settings.stop.iterations, settings.stop.tolerance
        ));
    }
    warnings
}

fn count_negative(layer: &AnalyzedLayer) -> usize {
    layer.eigenvalues.iter().filter(|&&value| value < 0.0).count()
}

/// A layer on a slope: half of the runs say so.
fn negative_curvature(layer: &AnalyzedLayer) -> Option<String> {
    let (index, runs, dominant) = (layer.layer, layer.eigenvalues.len(), count_negative(layer));
    (dominant > 0 && 2 * dominant >= runs).then(|| {
        let lowest = layer.eigenvalues.iter().copied().fold(f64::INFINITY, f64::min);
        format!(
            "in layer {index} the curvature of largest size is negative in {dominant} of {runs} runs (down to {lowest:.3})"
        )
    })
}

/// Layers that are neither clearly on a slope nor clearly in a valley.
fn unclear_curvature(layers: &[AnalyzedLayer], evidence: &Evidence) -> Option<String> {
    let large = |layer: &AnalyzedLayer| moments(&layer.lowest).0 < -LARGE_NEGATIVE * layer.mean;
    let unclear = layers.iter().filter(|layer| count_negative(layer) > 0 || large(layer));
    let unclear: Vec<usize> = unclear.map(|layer| layer.layer).collect();
    let negative: usize = layers.iter().map(count_negative).sum();
    let all: usize = layers.iter().map(|layer| layer.eigenvalues.len()).sum();
    let meaning = if evidence.is_telling() {
        "Such layers may lose more accuracy than the plan lets expect".to_owned()
    } else {
        format!("With {evidence} that is most likely noise; larger samples would tell")
    };
    (!unclear.is_empty()).then(|| {
        format!(
            "layers {unclear:?} have negative curvature beside the positive: it is the larger one in {negative} of {all} \
             runs and layers, in no layer in half of the runs. {meaning}"
        )
    })
}

/// The method in words.
impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Power => "power iteration",
            Self::Lanczos => "Lanczos",
        })
    }
}

#[cfg(test)]
mod tests;
