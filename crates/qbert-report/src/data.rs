//! What a report is made from: plain data, every part optional, read from and written to `report.json`.
//!
//! These types describe *results*, not models: a layer is a number and a row of figures, a site is a name and a width.
//! Nothing here computes; [`crate::read`] fills them from a run's files. A part that is a file of its own
//! (`summary.json`, for example) has the file's type; a part that shows only some fields of a file has a type here, which
//! is made from the file's. Layers count from 0.
//!
//! JSON has no NaN: a number that could not be measured is written as `null`, read back as NaN, and left out of figures.

use qbert_documents::{self as documents, BitCount, Changes, Header, Models, PlanSearch, Provenance, Summary, number};
use serde::{Deserialize, Serialize};

/// Everything a report shows. A part that is `None` or empty is left out; the page says how to make it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The page's title; made from the summary when empty.
    pub title: String,
    /// The outcome in a few figures.
    pub summary: Option<Summary>,
    /// Accuracy against size, over several models or methods.
    pub models: Option<Models>,
    /// Eigenvalues per layer and run.
    pub sensitivity: Option<SensitivityPart>,
    /// Bits per layer and site.
    pub plan: Option<BitPlan>,
    /// Every plan tried for a limit on the metric's drop.
    pub plan_search: Option<PlanSearch>,
    /// The loss around the model.
    pub landscape: Option<LandscapePart>,
    /// How far quantization moved the attention.
    pub attention: Option<AttentionPart>,
    /// Training runs in the order they happened.
    pub training: Vec<TrainingRun>,
    /// Results per class or entity type.
    pub classes: Option<ClassResults>,
    /// Predictions that quantization changed.
    pub changes: Option<Changes>,
    /// How the results were made.
    pub provenance: Provenance,
}

impl documents::Document for Report {
    const HEADER: Option<Header> = Some(Header { format: "qbert-report", version: 1 });
}

/// Eigenvalues of each layer's Hessian over several runs: what the page shows of a `sensitivity.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SensitivityPart {
    /// The task's name.
    pub task: String,
    /// Hash of the weights.
    pub model: String,
    /// Size and hash of the data.
    pub data: serde_json::Value,
    /// The settings of the analysis.
    pub settings: serde_json::Value,
    /// The layers.
    pub layers: Vec<LayerEigenvalues>,
    /// Spearman's correlation of Ω between the halves of the runs.
    pub agreement_of_halves: Option<f64>,
    /// Warnings of the analysis.
    pub warnings: Vec<String>,
    /// Every measure of sensitivity by layer, where matrices were quantized one at a time; the measured one is last.
    pub metrics: Vec<documents::LayerMetric>,
    /// What quantizing one matrix at a time did.
    pub measured: Option<documents::MeasuredSites>,
}

/// One layer's eigenvalues.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerEigenvalues {
    /// The layer, counted from 0.
    pub layer: usize,
    /// The eigenvalue of largest size in each run, with its sign.
    #[serde(deserialize_with = "number::list")]
    pub eigenvalues: Vec<f64>,
    /// Their mean.
    #[serde(deserialize_with = "number::one")]
    pub mean: f64,
    /// Their deviation.
    #[serde(deserialize_with = "number::one")]
    pub std: f64,
    /// |mean| + std (paper, Eq. 2).
    #[serde(deserialize_with = "number::one")]
    pub omega: f64,
    /// The lowest eigenvalue of each run, where it is known.
    #[serde(deserialize_with = "number::list")]
    pub lowest: Vec<f64>,
    /// Trace per parameter, where it was estimated.
    pub trace: Option<f64>,
}

impl From<documents::Sensitivity> for SensitivityPart {
    fn from(file: documents::Sensitivity) -> Self {
        let metrics = if file.measured.is_some() { file.metrics() } else { Vec::new() };
        let documents::AnalysisSubject { task, model, data, .. } = file.subject;
        Self {
            task,
            model,
            data,
            settings: file.settings,
            layers: file.layers.into_iter().map(LayerEigenvalues::from).collect(),
            agreement_of_halves: file.agreement_of_halves,
            warnings: file.warnings,
            metrics,
            measured: file.measured,
        }
    }
}

impl From<documents::AnalyzedLayer> for LayerEigenvalues {
    fn from(file: documents::AnalyzedLayer) -> Self {
        let documents::AnalyzedLayer { layer, eigenvalues, mean, std, omega, lowest, trace, .. } = file;
        Self { layer, eigenvalues, mean, std, omega, lowest, trace }
    }
}

/// Widths of a layered model: sites × layers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BitPlan {
    /// The sites that every layer has.
    pub sites: Vec<String>,
    /// Bits: `layers[layer][site]`; 32 is full precision.
    pub layers: Vec<Vec<BitCount>>,
    /// Sites outside the layers, and activations, with their bits.
    pub others: Vec<SiteBits>,
    /// Groups and ranges in words.
    pub setting: String,
}

/// The width of a site outside the layers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteBits {
    /// The site.
    pub site: String,
    /// Its bits.
    pub bits: BitCount,
}

/// The loss over planes through the model: what the page shows of a `landscape.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LandscapePart {
    /// The task's name.
    pub task: String,
    /// Hash of the weights.
    pub model: String,
    /// How it was made.
    pub settings: serde_json::Value,
    /// Sequences whose loss is shown.
    pub examples: usize,
    /// The model's own loss.
    #[serde(deserialize_with = "number::one")]
    pub loss: f64,
    /// One plane per layer.
    pub layers: Vec<LayerPlane>,
}

/// The plane of one layer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerPlane {
    /// The layer, counted from 0.
    pub layer: usize,
    /// Eigenvalues of the two directions.
    #[serde(deserialize_with = "number::list")]
    pub eigenvalues: Vec<f64>,
    /// Steps along the first direction.
    #[serde(deserialize_with = "number::list")]
    pub rows: Vec<f64>,
    /// Steps along the second direction.
    #[serde(deserialize_with = "number::list")]
    pub columns: Vec<f64>,
    /// `losses[row][column]`.
    #[serde(deserialize_with = "number::grid")]
    pub losses: Vec<Vec<f64>>,
}

impl From<documents::LossLandscapes> for LandscapePart {
    fn from(file: documents::LossLandscapes) -> Self {
        let documents::LossLandscapes { task, model, settings, examples, loss, layers, .. } = file;
        Self { task, model, settings, examples, loss, layers: layers.into_iter().map(LayerPlane::from).collect() }
    }
}

impl From<documents::LayerLandscape> for LayerPlane {
    fn from(file: documents::LayerLandscape) -> Self {
        let documents::LayerLandscape { layer, eigenvalues, rows, columns, losses, .. } = file;
        Self { layer, eigenvalues, rows, columns, losses }
    }
}

/// KL divergence of attention, full precision from quantized, per layer and head (paper, Fig. 5).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AttentionPart {
    /// The task's name.
    pub task: String,
    /// Sequences it was averaged over.
    pub examples: usize,
    /// The layers.
    pub layers: Vec<LayerHeads>,
}

/// One layer's heads.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerHeads {
    /// The layer, counted from 0.
    pub layer: usize,
    /// KL of each head.
    #[serde(deserialize_with = "number::list")]
    pub heads: Vec<f64>,
}

impl From<documents::AttentionKl> for AttentionPart {
    fn from(file: documents::AttentionKl) -> Self {
        let documents::AttentionKl { task, examples, layers, .. } = file;
        let layers = layers.into_iter().map(|own| LayerHeads { layer: own.layer, heads: own.heads }).collect();
        Self { task, examples, layers }
    }
}

/// A training run, reduced to what a curve can show.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingRun {
    /// Its name, such as `fine-tuning`.
    pub name: String,
    /// Steps taken.
    pub steps: usize,
    /// The loss curve: steps averaged into at most [`crate::read::CURVE_POINTS`] points.
    pub curve: Vec<CurvePoint>,
    /// Steps whose loss was not a number.
    pub lost: usize,
    /// The metric's name.
    pub metric: String,
    /// The metric after epochs.
    pub evaluations: Vec<EpochMetric>,
    /// Epochs, batch, rates, seed.
    pub settings: serde_json::Value,
}

/// A group of consecutive steps.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CurvePoint {
    /// The middle of the steps.
    #[serde(deserialize_with = "number::one")]
    pub step: f64,
    /// Passes over the data at their end.
    #[serde(deserialize_with = "number::one")]
    pub epoch: f64,
    /// Mean loss.
    #[serde(deserialize_with = "number::one")]
    pub loss: f64,
    /// Lowest loss.
    #[serde(deserialize_with = "number::one")]
    pub low: f64,
    /// Highest loss.
    #[serde(deserialize_with = "number::one")]
    pub high: f64,
    /// Learning rate.
    #[serde(deserialize_with = "number::one")]
    pub rate: f64,
}

/// The metric after an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EpochMetric {
    /// Epochs done.
    #[serde(deserialize_with = "number::one")]
    pub epoch: f64,
    /// The metric.
    #[serde(deserialize_with = "number::one")]
    pub value: f64,
}

/// Results per class or entity type, before and after.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassResults {
    /// What a row is: `class` or `entity type`.
    pub kind: String,
    /// The classes.
    pub rows: Vec<ClassRow>,
}

/// One class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassRow {
    /// Its name, as the data file has it.
    pub name: String,
    /// True examples of it.
    pub support: u64,
    /// Full precision.
    pub before: Option<Scores>,
    /// Quantized.
    pub after: Option<Scores>,
}

/// Shares from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Scores {
    /// The share of predictions that are right.
    #[serde(deserialize_with = "number::one")]
    pub precision: f64,
    /// The share of true ones that were found.
    #[serde(deserialize_with = "number::one")]
    pub recall: f64,
    /// Their harmonic mean.
    #[serde(deserialize_with = "number::one")]
    pub f1: f64,
}
