//! What a report is made from: plain data, every part optional, read from and written to JSON.
//!
//! These types describe *results*, not models: a layer is a number and a row of figures, a site is a name and a width.
//! Nothing here computes; readers that fill them from a run's files are in [`crate::read`]. Layers count from 0.
//!
//! JSON has no NaN. Numbers that a measurement may fail to give are written as `null` and read back as NaN; figures
//! leave them out.

use serde::{Deserialize, Serialize};

use crate::number;

/// What [`Report::format`] says.
pub const FORMAT: &str = "qbert-report";

/// The version of the JSON form.
pub const VERSION: u32 = 1;

/// Everything a report shows. A part that is `None` or empty is left out, and the page says how to make it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The page's title; made from the summary when empty.
    pub title: String,
    /// What came out, in a few figures.
    pub summary: Option<Summary>,
    /// Accuracy against size, over several models or methods.
    pub models: Option<Models>,
    /// Eigenvalues per layer and run.
    pub sensitivity: Option<Sensitivity>,
    /// Bits per layer and site.
    pub plan: Option<BitPlan>,
    /// The loss around the model.
    pub landscape: Option<Landscapes>,
    /// How far attention moved by quantization.
    pub attention: Option<AttentionKl>,
    /// Training runs in the order they happened.
    pub training: Vec<TrainingRun>,
    /// Results per class or entity type.
    pub classes: Option<ClassResults>,
    /// Predictions that quantization changed.
    pub changes: Option<Changes>,
    /// How all this was made.
    pub provenance: Provenance,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            title: String::new(),
            summary: None,
            models: None,
            sensitivity: None,
            plan: None,
            landscape: None,
            attention: None,
            training: Vec::new(),
            classes: None,
            changes: None,
            provenance: Provenance::default(),
        }
    }
}

/// The outcome in a few figures. Values are in the metric's own unit, which is percent for all built-in tasks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// The task's name.
    pub task: String,
    /// The model's name.
    pub model: String,
    /// How it was quantized, such as `Q-BERT mixed precision`.
    pub method: String,
    /// Widths in words, such as `2/3-bit weights, 8-bit embedding, 8-bit activations`.
    pub bits: String,
    /// The metric's name.
    pub metric: String,
    /// Examples that the metric was measured on.
    pub examples: Option<u64>,
    /// The metric before quantization.
    pub full_precision: Option<f64>,
    /// The metric right after quantization, without training.
    pub post_training: Option<f64>,
    /// The metric after quantization-aware training.
    pub trained: Option<f64>,
    /// Bytes on disk.
    pub file_size: Option<BeforeAfter>,
    /// Bytes as the paper counts them: never to be mixed with [`Self::file_size`].
    pub paper_size: Option<BeforeAfter>,
    /// How fast it runs.
    pub speed: Option<Speed>,
    /// Sentences to be read with the figures.
    pub notes: Vec<String>,
}

/// A figure in full precision and quantized.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BeforeAfter {
    /// Full precision.
    #[serde(deserialize_with = "number::one")]
    pub full: f64,
    /// Quantized.
    #[serde(deserialize_with = "number::one")]
    pub quantized: f64,
}

/// Throughput; more is better.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Speed {
    /// What is counted, such as `sentences/s`.
    pub unit: String,
    /// Full precision, in the same setting.
    pub full: Option<f64>,
    /// Quantized.
    #[serde(deserialize_with = "number::one")]
    pub quantized: f64,
    /// Threads, batch, lengths and machine in words.
    pub setting: String,
}

/// Several models of one task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Models {
    /// The metric's name.
    pub metric: String,
    /// Which size the points have, such as `file` or `as the paper counts`.
    pub size: String,
    /// The models.
    pub points: Vec<ModelPoint>,
}

/// One model: how large, how good.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelPoint {
    /// What it is called.
    pub name: String,
    /// The method; models of one method look alike.
    pub method: String,
    /// Bytes.
    #[serde(deserialize_with = "number::one")]
    pub bytes: f64,
    /// The metric.
    #[serde(deserialize_with = "number::one")]
    pub value: f64,
    /// Whether this is the model that the report is about.
    pub this: bool,
}

/// Eigenvalues of each layer's Hessian over several runs; the fields are those of a `sensitivity.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sensitivity {
    /// The task's name.
    pub task: String,
    /// Hash of the weights.
    pub model: String,
    /// Size and hash of the data.
    pub data: serde_json::Value,
    /// What decided the numbers.
    pub settings: serde_json::Value,
    /// The layers.
    pub layers: Vec<LayerSensitivity>,
    /// Spearman's correlation of Ω between the halves of the runs.
    pub agreement_of_halves: Option<f64>,
    /// What the analysis warned of.
    pub warnings: Vec<String>,
}

/// One layer's eigenvalues.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerSensitivity {
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

/// Widths of a layered model: sites × layers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BitPlan {
    /// The sites that every layer has.
    pub sites: Vec<String>,
    /// Bits: `layers[layer][site]`; 32 is full precision.
    pub layers: Vec<Vec<u8>>,
    /// Sites outside the layers, and activations, with their bits.
    pub others: Vec<SiteBits>,
    /// Groups and ranges in words.
    pub setting: String,
}

/// The width of a site outside the layers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteBits {
    /// The site.
    pub site: String,
    /// Its bits.
    pub bits: u8,
}

/// Losses over planes through the model; the fields are those of a `qbert-landscape` file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Landscapes {
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
    pub layers: Vec<LayerLandscape>,
}

/// The plane of one layer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerLandscape {
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

/// KL divergence of attention, full precision from quantized, per layer and head (paper, Fig. 5).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AttentionKl {
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

/// A training run, thinned out to what a curve can show.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingRun {
    /// What was trained, such as `fine-tuning`.
    pub name: String,
    /// Steps taken.
    pub steps: usize,
    /// The curve: steps summed up in at most [`crate::read::CURVE_POINTS`] points.
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

/// Neighbouring steps.
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
    /// Of those predicted, the share that is right.
    #[serde(deserialize_with = "number::one")]
    pub precision: f64,
    /// Of those that are true, the share found.
    #[serde(deserialize_with = "number::one")]
    pub recall: f64,
    /// Their harmonic mean.
    #[serde(deserialize_with = "number::one")]
    pub f1: f64,
}

/// Predictions that differ between the full-precision and the quantized model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// Predictions compared.
    pub compared: usize,
    /// Labels that changed.
    pub flipped: usize,
    /// Wrong before, right now.
    pub fixed: usize,
    /// Right before, wrong now.
    pub broken: usize,
    /// The ones that changed most, most first.
    pub examples: Vec<Change>,
}

/// One example's predictions. The texts come from data files: they are untrusted and escaped wherever they are shown.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// The text.
    pub text: String,
    /// The right answer, where it is known.
    pub gold: Option<String>,
    /// Full precision.
    pub before: Answer,
    /// Quantized.
    pub after: Answer,
}

/// A predicted label.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The label.
    pub label: String,
    /// Its probability, from 0 to 1.
    pub confidence: Option<f64>,
}

/// How the results were made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Command lines in the order they were run.
    pub commands: Vec<String>,
    /// Seeds, versions, hashes.
    pub facts: Vec<Fact>,
}

/// One line of provenance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fact {
    /// What it belongs to, such as `fine-tuning`.
    pub group: String,
    /// What it is, such as `seed`.
    pub name: String,
    /// Its value.
    pub value: String,
}
