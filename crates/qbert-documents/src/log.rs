//! `train.jsonl`: a line for each optimizer step, and one for the dev figure after each epoch.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::number;

/// An optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Steps taken, this one included.
    pub step: usize,
    /// Passes over the data so far.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub epoch: f64,
    /// Mean loss of the step's sequences.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub loss: f64,
    /// Learning rate.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub rate: f64,
    /// Norm of the gradient before clipping.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub gradient_norm: f64,
    /// Tokens in the step's sequences.
    #[serde(default)]
    pub tokens: usize,
}

/// An evaluation after an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The epoch, counted from 1; 0 is a quantized model before its first step.
    pub epoch: usize,
    /// What was measured.
    pub dev: DevFigure,
}

/// A dev figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DevFigure {
    /// The metric's name.
    #[serde(default)]
    pub metric: String,
    /// Its value, in percent.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub value: f64,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LogRecord {
    /// An optimizer step.
    Step(StepRecord),
    /// An evaluation.
    Epoch(EpochRecord),
    /// A line of another kind: logs may say more than readers know.
    Other(Value),
}

impl LogRecord {
    /// Reads a whole log; empty lines are skipped. `file` names it in errors.
    ///
    /// # Errors
    /// A line that is not JSON, or has a field of the wrong type.
    pub fn parse_all(text: &str, file: &str) -> Result<Vec<Self>> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines
            .map(|(index, line)| {
                let wrong = |error: serde_json::Error| {
                    let problem = place_in_line(&error);
                    Error::Line { file: file.to_owned(), line: index + 1, problem }
                };
                Self::parse(line).map_err(wrong)
            })
            .collect()
    }

    fn parse(line: &str) -> serde_json::Result<Self> {
        let value: Value = serde_json::from_str(line)?;
        let has = |name: &str| value.get(name).is_some_and(|value| !value.is_null());
        // By the fields of the line rather than by trying one type after another: then errors name what is wrong.
        if has("dev") && has("epoch") {
            Ok(Self::Epoch(serde_json::from_str(line)?))
        } else if has("step") {
            Ok(Self::Step(serde_json::from_str(line)?))
        } else {
            Ok(Self::Other(value))
        }
    }
}

/// What the parser says; every line of a log is line 1 to it.
fn place_in_line(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let problem = said.rsplit_once(" at line ").map_or(said.as_str(), |(problem, _)| problem);
    format!("{problem} at column {}", error.column())
}
