//! `summary.json`: the outcome of a run in a few figures; `models.json`: its models by size and metric.

use serde::{Deserialize, Serialize};

use crate::document::{Document, Header};
use crate::number;

/// The outcome in a few figures. Values are in the metric's own unit: percent for all built-in tasks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// The task's name.
    pub task: String,
    /// The model's name.
    pub model: String,
    /// The quantization method, such as `Q-BERT mixed precision`.
    pub method: String,
    /// Bit widths in words, such as `2/3-bit weights, 8-bit embedding, 8-bit activations`.
    pub bits: String,
    /// The metric's name.
    pub metric: String,
    /// Dev examples.
    pub examples: Option<u64>,
    /// The metric before quantization.
    pub full_precision: Option<f64>,
    /// The metric right after quantization, without training.
    pub post_training: Option<f64>,
    /// The metric after quantization-aware training.
    pub trained: Option<f64>,
    /// Bytes on disk.
    pub file_size: Option<BeforeAfter>,
    /// Bytes as the paper counts them; not comparable with [`Self::file_size`].
    pub paper_size: Option<BeforeAfter>,
    /// How fast it runs.
    pub speed: Option<Speed>,
    /// Notes that qualify the figures.
    pub notes: Vec<String>,
}

impl Document for Summary {
    const HEADER: Option<Header> = Some(Header { format: "qbert-summary", version: 1 });
}

/// A figure in full precision and quantized.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BeforeAfter {
    /// Full precision.
    #[serde(deserialize_with = "number::one", serialize_with = "number::whole")]
    pub full: f64,
    /// Quantized.
    #[serde(deserialize_with = "number::one", serialize_with = "number::whole")]
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
    /// Threads, batch, sequence lengths and machine, in words.
    pub setting: String,
}

/// Several models of one task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Models {
    /// The metric's name.
    pub metric: String,
    /// What the sizes measure, such as `file` or `as the paper counts`.
    pub size: String,
    /// The models.
    pub points: Vec<ModelPoint>,
}

impl Document for Models {
    const HEADER: Option<Header> = Some(Header { format: "qbert-models", version: 1 });
}

/// One model: how large, how good.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelPoint {
    /// Its name.
    pub name: String,
    /// Its method; models of one method share a mark.
    pub method: String,
    /// Bytes.
    #[serde(deserialize_with = "number::one", serialize_with = "number::whole")]
    pub bytes: f64,
    /// The metric.
    #[serde(deserialize_with = "number::one")]
    pub value: f64,
    /// Whether this is the report's own model.
    pub this: bool,
}
