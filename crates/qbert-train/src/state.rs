//! The state that survives a crash: weights, optimizer moments and the place in the data, in one file that is written whole
//! or not at all. It has a checksum of all its bytes: a damaged one is refused, since it would give another result.
//!
//! Random numbers need no state: every stream is named by seed and position ([`crate::random`]). So a resumed run ends with
//! the same bytes as one that never stopped.

use std::collections::HashMap;
use std::path::Path;

use qbert_documents::BeforeTraining;
use qbert_model::{FloatTensor, sealed};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::qat::activations::Learned;

/// Where a run is, and the settings that identify it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Everything that decides the result: a run is continued only with the same.
    pub settings: serde_json::Value,
    /// Optimizer steps taken.
    pub steps: usize,
    /// Bytes of the log that belong to those steps.
    pub log_bytes: u64,
    /// Their CRC-32.
    pub log_crc32: u32,
    /// Epochs whose evaluation is done.
    pub evaluated: usize,
    /// The best metric so far, and its epoch.
    pub best: Option<(f64, usize)>,
    /// The metrics of a model that is being quantized, before training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<BeforeTraining>,
    /// What was learned about the activations of a model that is being quantized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<Learned>,
}

impl Position {
    /// The start of a run.
    pub fn start(settings: serde_json::Value) -> Self {
        Self {
            settings,
            steps: 0,
            log_bytes: 0,
            log_crc32: 0,
            evaluated: 0,
            best: None,
            before: None,
            activations: None,
        }
    }
}

const POSITION: &str = "position";

/// Writes the state to `path`: the position and these named arrays.
pub fn write(path: &Path, position: &Position, arrays: &[(&str, &[f32])]) -> Result<()> {
    let text = serde_json::to_string(position)
        .map_err(|e| Error::Resume { path: path.to_owned(), problem: format!("cannot be written: {e}") })?;
    let metadata = HashMap::from([(POSITION.to_owned(), text)]);
    let shapes: Vec<[usize; 1]> = arrays.iter().map(|(_, values)| [values.len()]).collect();
    let tensors = arrays.iter().zip(&shapes).map(|((name, values), shape)| (*name, FloatTensor { shape, values }));
    sealed::write_tensors(path, tensors, metadata)?;
    Ok(())
}

/// Reads a file with a checksum. If it is damaged, `delete` is what has to go to start again.
pub(crate) fn read_sealed(path: &Path, delete: &Path) -> Result<Vec<u8>> {
    sealed::read(path).map_err(|error| match error {
        qbert_model::Error::Checksum { path, problem } => Error::State { path, problem, delete: delete.to_owned() },
        other => other.into(),
    })
}

/// Reads the state into arrays of the same names and lengths.
pub fn read(path: &Path, targets: &mut [(&str, &mut [f32])]) -> Result<Position> {
    let directory = path.parent().unwrap_or(path);
    let bytes = read_sealed(path, directory)?;
    let damaged = |problem: String| Error::Resume { path: path.to_owned(), problem };
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(format!("damaged: {e}")))?;
    let text = header.metadata().as_ref().and_then(|m| m.get(POSITION));
    let text = text.ok_or_else(|| damaged("not the state of a run".to_owned()))?;
    let position = serde_json::from_str(text).map_err(|e| damaged(format!("damaged: {e}")))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(format!("damaged: {e}")))?;
    for (name, target) in targets {
        let tensor = file.tensor(name).map_err(|e| damaged(format!("damaged: {e}")))?;
        let (values, _) = tensor.data().as_chunks::<4>();
        if tensor.dtype() != Dtype::F32 || values.len() != target.len() {
            return Err(damaged(format!("`{name}` has {} values, the model {}", values.len(), target.len())));
        }
        for (target, value) in target.iter_mut().zip(values) {
            *target = f32::from_le_bytes(*value);
        }
    }
    Ok(position)
}

/// The first place where two settings differ, for people.
pub fn difference(saved: &serde_json::Value, now: &serde_json::Value) -> String {
    use serde_json::Value;
    if let (Value::Object(a), Value::Object(b)) = (saved, now) {
        for (key, value) in a {
            match b.get(key) {
                Some(other) if other == value => {}
                Some(other) if value.is_object() && other.is_object() => return difference(value, other),
                Some(other) => return format!("`{key}` was {value}, now it is {other}"),
                None => return format!("`{key}` was {value}"),
            }
        }
    }
    format!("it was {saved}, now it is {now}")
}
