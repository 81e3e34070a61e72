//! What survives a crash: weights, optimizer moments and the place in the data, in one file written whole or not at all.
//!
//! The random numbers need no state: every stream is named by seed and position (see [`crate::random`]). Picking a run
//! up from this file therefore ends with the same bytes as never having stopped.

use std::collections::HashMap;
use std::path::Path;

use qbert_model::{FloatTensor, atomic};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The place of a run, and what it is a run of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Everything that decides the result: a run is only continued with the same.
    pub settings: serde_json::Value,
    /// Optimizer steps taken.
    pub steps: usize,
    /// Bytes of the log that belong to those steps.
    pub log_bytes: u64,
    /// Epochs whose evaluation is done.
    pub evaluated: usize,
    /// The best figure so far, and after which epoch.
    pub best: Option<(f64, usize)>,
}

const POSITION: &str = "position";
const TENSORS: [&str; 3] = ["weights", "first", "second"];

/// Writes the state to `path`.
pub fn write(path: &Path, position: &Position, [weights, first, second]: [&[f32]; 3]) -> Result<()> {
    let text = serde_json::to_string(position)
        .map_err(|e| Error::Resume { path: path.to_owned(), problem: format!("cannot be written: {e}") })?;
    let metadata = HashMap::from([(POSITION.to_owned(), text)]);
    let shape = [weights.len()];
    let tensors = TENSORS.into_iter().zip([weights, first, second].map(|values| FloatTensor { shape: &shape, values }));
    atomic::write_tensors(path, tensors, metadata)?;
    Ok(())
}

/// Reads the state into three slices of the model's length.
pub fn read(path: &Path, targets: [&mut [f32]; 3]) -> Result<Position> {
    let damaged = |problem: String| Error::Resume { path: path.to_owned(), problem };
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), action: "read", source })?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(format!("damaged: {e}")))?;
    let text = header.metadata().as_ref().and_then(|m| m.get(POSITION));
    let text = text.ok_or_else(|| damaged("not the state of a run".to_owned()))?;
    let position = serde_json::from_str(text).map_err(|e| damaged(format!("damaged: {e}")))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(format!("damaged: {e}")))?;
    for (name, target) in TENSORS.into_iter().zip(targets) {
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
