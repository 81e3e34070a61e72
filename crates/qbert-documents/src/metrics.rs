//! The two files called `metrics.json`: that of a training run, beside its checkpoint, and that of a whole `qbert run`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document::{Document, Header};
use crate::number;

/// What a training run reached, and what it was made from. The file names no format.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingMetrics {
    /// The evaluation of the checkpoint that was kept.
    pub dev: DevMetrics,
    /// Its epoch, counted from 1; 0 is a quantized model before its first step.
    pub epoch: Option<usize>,
    /// Settings, task, hashes of model and data, as the trainer compares them.
    pub run: Value,
    /// The figures of a quantized model before its training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<BeforeTraining>,
}

impl Document for TrainingMetrics {
    const HEADER: Option<Header> = None;
}

impl TrainingMetrics {
    /// Whether this was quantization-aware training rather than fine-tuning.
    pub fn is_quantization(&self) -> bool {
        self.before.is_some()
    }

    /// Whether training improved on calibration; always so for fine-tuning.
    pub fn is_trained(&self) -> bool {
        self.epoch != Some(0)
    }

    /// The task's name, or nothing.
    pub fn task(&self) -> &str {
        self.run.pointer("/run/task").and_then(Value::as_str).unwrap_or_default()
    }

    /// The trainer's settings.
    pub fn settings(&self) -> &Value {
        self.run.get("settings").unwrap_or(&Value::Null)
    }

    /// Sequences in the training data.
    pub fn training_sequences(&self) -> Option<u64> {
        self.run.pointer("/run/train/sequences")?.as_u64()
    }
}

/// An evaluation on the dev data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DevMetrics {
    /// The metric's name.
    #[serde(default)]
    pub metric: String,
    /// Its value, in percent.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub value: f64,
    /// Examples that were scored.
    #[serde(default)]
    pub examples: Option<u64>,
    /// Examples of the file that were not scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
    /// Everything else that was measured, as the task's own report writes it.
    #[serde(default)]
    pub details: Value,
}

impl Default for DevMetrics {
    /// Nothing measured.
    fn default() -> Self {
        Self { metric: String::new(), value: f64::NAN, examples: None, left_out: None, details: Value::Null }
    }
}

/// A model's dev figures before its quantization-aware training, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BeforeTraining {
    /// In full precision.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub full_precision: f64,
    /// Quantized and calibrated, but not trained.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub post_training: f64,
}

/// What each model of a whole run reaches on the dev data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunMetrics {
    /// The task's name.
    #[serde(default)]
    pub task: String,
    /// The metric's name.
    #[serde(default)]
    pub metric: String,
    /// Examples that were scored.
    #[serde(default)]
    pub examples: Option<u64>,
    /// Examples of the file that were not scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
    /// The models, in the order they were made.
    pub stages: Vec<StageMetrics>,
}

impl Document for RunMetrics {
    const HEADER: Option<Header> = Some(Header { format: "qbert-metrics", version: 1 });
}

impl RunMetrics {
    /// The stage of the model before quantization.
    pub const FULL_PRECISION: &str = "full precision";
    /// The stage of the quantized model before its training.
    pub const NOT_TRAINED: &str = "quantized, not trained";
    /// The stage of the quantized checkpoint.
    pub const QUANTIZED: &str = "quantized";
    /// The stage of the packed model.
    pub const PACKED: &str = "packed";

    /// The model of a stage.
    pub fn stage(&self, name: &str) -> Option<&StageMetrics> {
        self.stages.iter().find(|own| own.stage == name)
    }

    /// The figure of a stage, in percent.
    pub fn value(&self, stage: &str) -> Option<f64> {
        number::known(self.stage(stage)?.value)
    }
}

/// One model on the dev data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageMetrics {
    /// The stage that made the model.
    pub stage: String,
    /// Where the model is, relative to the run's directory.
    #[serde(default)]
    pub model: String,
    /// The metric, in percent.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub value: f64,
    /// Everything else that was measured, as the task's own report writes it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
}
