//! `sensitivity.json`: the results of an analysis, for people, for planning and for the report.

use std::path::Path;

use qbert_model::atomic;
use serde::{Deserialize, Serialize};

use super::settings::{Method, Settings};
use crate::error::{Error, Result};

/// The `format` field of the file.
pub const FORMAT: &str = "qbert-sensitivity";
/// The version that this crate reads and writes.
pub const VERSION: u32 = 1;

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

/// The sample of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The run, counted from 0.
    pub run: usize,
    /// Sequences.
    pub examples: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Mean loss over them.
    pub loss: f64,
}

/// What was analysed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The task's name.
    pub task: String,
    /// Hash of the model's weights.
    pub model: String,
    /// Parameters of each encoder layer.
    pub layer_parameters: Vec<usize>,
    /// Size and hash of the data.
    pub data: serde_json::Value,
    /// Longest sequence in tokens.
    pub max_len: usize,
}

/// A layer over all runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSensitivity {
    /// The layer, counted from 0.
    pub layer: usize,
    /// The eigenvalue of largest magnitude in every run.
    pub eigenvalues: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation (of the runs themselves: divided by their number).
    pub std: f64,
    /// Ω = |mean| + std (Eq. 2).
    pub omega: f64,
    /// Lowest eigenvalue in every run; empty with power iteration.
    pub lowest: Vec<f64>,
    /// Products formed in every run.
    pub iterations: Vec<usize>,
    /// Distance within which there is an eigenvalue, in every run.
    pub residuals: Vec<f64>,
    /// Runs that reached the tolerance.
    pub converged: usize,
    /// Mean trace over the runs, divided by the number of the layer's parameters.
    pub trace: Option<f64>,
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// What was analysed.
    #[serde(flatten)]
    pub subject: Subject,
    /// The settings.
    pub settings: Settings,
    /// Every layer, in order.
    pub layers: Vec<LayerSensitivity>,
    /// Layers from the most to the least sensitive.
    pub ranking: Vec<usize>,
    /// Spearman's correlation of Ω between the first and the second half of the runs: 1 says that the ranking is stable.
    pub agreement_of_halves: Option<f64>,
    /// Every run.
    pub runs: Vec<RunInfo>,
    /// Warnings to read before trusting the plan.
    pub warnings: Vec<String>,
}

impl Sensitivity {
    /// Sums up the results of every layer of every run.
    pub(super) fn new(subject: Subject, settings: Settings, runs: Vec<RunInfo>, found: &[Found]) -> Self {
        let layers: Vec<LayerSensitivity> =
            (0..subject.layer_parameters.len()).map(|layer| summarize(layer, &subject, found)).collect();
        let all: Vec<f64> = layers.iter().map(|layer| layer.omega).collect();
        let halves = [0..settings.runs / 2, settings.runs / 2..settings.runs]
            .map(|half| layers.iter().map(|layer| omega(&layer.eigenvalues[half.clone()])).collect::<Vec<_>>());
        let agreement_of_halves = (settings.runs >= 4).then(|| rank_correlation(&halves[0], &halves[1])).flatten();
        let warnings = warnings(&layers, settings);
        let ranking = ranking(&all);
        let format = FORMAT.to_owned();
        Self { format, version: VERSION, subject, settings, layers, ranking, agreement_of_halves, runs, warnings }
    }

    /// Writes the file, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text =
            serde_json::to_string_pretty(self).map_err(|error| damaged(path, format!("cannot be written: {error}")))?;
        Ok(atomic::write_file(path, |writer| writeln!(writer, "{text}"))?)
    }

    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), action: "read the sensitivities", source };
        let bytes = std::fs::read(path).map_err(io)?;
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(path, format!("not JSON: {error}")))?;
        let format = value.get("format").and_then(serde_json::Value::as_str);
        if format != Some(FORMAT) {
            return Err(damaged(path, format!("not a sensitivity file: its \"format\" is not \"{FORMAT}\"")));
        }
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            let found = version.map_or("none".to_owned(), |version| version.to_string());
            return Err(damaged(path, format!("version {found}, but this program reads version {VERSION}")));
        }
        let read: Self = serde_json::from_value(value).map_err(|error| damaged(path, error.to_string()))?;
        read.check().map_err(|problem| damaged(path, problem))?;
        Ok(read)
    }

    fn check(&self) -> std::result::Result<(), String> {
        if self.layers.is_empty() {
            return Err("there are no layers".to_owned());
        }
        for (index, layer) in self.layers.iter().enumerate() {
            if layer.layer != index {
                return Err(format!("layer {} stands where layer {index} should", layer.layer));
            }
            // JSON has no NaN, but a number too large for f64 is read as infinity.
            if ![layer.mean, layer.std, layer.omega].iter().all(|value| value.is_finite()) {
                return Err(format!("layer {index}: mean, std or omega is not a finite number"));
            }
        }
        Ok(())
    }
}

fn damaged(path: &Path, problem: String) -> Error {
    Error::Sensitivity { path: path.to_owned(), problem }
}

fn summarize(layer: usize, subject: &Subject, found: &[Found]) -> LayerSensitivity {
    let mut own: Vec<&Found> = found.iter().filter(|unit| unit.layer == layer).collect();
    own.sort_by_key(|unit| unit.run);
    let eigenvalues: Vec<f64> = own.iter().map(|unit| unit.eigenvalue).collect();
    let (mean, std) = moments(&eigenvalues);
    let traces: Vec<f64> = own.iter().filter_map(|unit| unit.trace).collect();
    let parameters = subject.layer_parameters[layer] as f64;
    LayerSensitivity {
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

/// Spearman's correlation of the ranks, from -1 to 1; equal values share the mean of their ranks. `None` where there is
/// nothing to rank.
pub fn rank_correlation(first: &[f64], second: &[f64]) -> Option<f64> {
    let count = first.len().min(second.len());
    let ranks = |values: &[f64]| -> Vec<f64> {
        let rank = |value: &f64| {
            let below = values.iter().filter(|other| other.total_cmp(value).is_lt()).count();
            let equal = values.iter().filter(|other| other.total_cmp(value).is_eq()).count();
            below as f64 + (equal as f64 - 1.0) / 2.0
        };
        values.iter().map(rank).collect()
    };
    let (first, second) = (ranks(&first[..count]), ranks(&second[..count]));
    let middle = (count as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum() };
    let scale = (product(&first, &first) * product(&second, &second)).sqrt();
    (scale > 0.0).then(|| product(&first, &second) / scale)
}

/// A small negative eigenvalue is noise of every trained network; from this share of the positive one on, on average over
/// the runs, it is worth a word.
const LARGE_NEGATIVE: f64 = 0.5;

fn warnings(layers: &[LayerSensitivity], settings: Settings) -> Vec<String> {
    let mut warnings = Vec::new();
    let negative: Vec<String> = layers.iter().filter_map(negative_curvature).collect();
    if !negative.is_empty() {
        warnings.push(format!(
            "the checkpoint has not converged: {}. Along such a direction the loss still falls, so the model sits on a \
             slope and not in a valley; quantization pushes it off, and more accuracy is lost than the plan lets expect \
             (the paper's SQuAD case). Fine-tune it longer, or at a lower rate towards the end, and analyze again",
            negative.join("; ")
        ));
    } else {
        warnings.extend(unclear_curvature(layers));
    }
    let unsettled: Vec<usize> = layers.iter().filter(|l| l.converged < l.eigenvalues.len()).map(|l| l.layer).collect();
    if !unsettled.is_empty() {
        warnings.push(format!(
            "the iteration limit of {} was reached before the tolerance of {} in layers {unsettled:?}: raise --iterations",
            settings.stop.iterations, settings.stop.tolerance
        ));
    }
    warnings
}

fn count_negative(layer: &LayerSensitivity) -> usize {
    layer.eigenvalues.iter().filter(|&&value| value < 0.0).count()
}

/// A layer on a slope: half of the runs say so. A single small sample whose loss sits in a few wrong answers can have a
/// negative eigenvalue at the best of minima.
fn negative_curvature(layer: &LayerSensitivity) -> Option<String> {
    let (index, runs, dominant) = (layer.layer, layer.eigenvalues.len(), count_negative(layer));
    (dominant > 0 && 2 * dominant >= runs).then(|| {
        let lowest = layer.eigenvalues.iter().copied().fold(f64::INFINITY, f64::min);
        format!(
            "in layer {index} the curvature of largest size is negative in {dominant} of {runs} runs (down to {lowest:.3})"
        )
    })
}

/// Layers that are neither clearly on a slope nor clearly in a valley.
fn unclear_curvature(layers: &[LayerSensitivity]) -> Option<String> {
    let large = |layer: &LayerSensitivity| moments(&layer.lowest).0 < -LARGE_NEGATIVE * layer.mean;
    let unclear = layers.iter().filter(|layer| count_negative(layer) > 0 || large(layer));
    let unclear: Vec<usize> = unclear.map(|layer| layer.layer).collect();
    let negative: usize = layers.iter().map(count_negative).sum();
    let all: usize = layers.iter().map(|layer| layer.eigenvalues.len()).sum();
    (!unclear.is_empty()).then(|| {
        format!(
            "layers {unclear:?} have negative curvature beside the positive: it is the larger one in {negative} of {all} \
             runs and layers, in no layer in half of the runs. In small samples that can be noise. If larger ones \
             (--max-examples) show it too, the checkpoint has not converged"
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
