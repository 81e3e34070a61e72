//! `landscape.json`: the loss around the model, over a plane for each layer (paper, Fig. 1, 3 and 6).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document::{Document, Header};
use crate::number;

/// The loss over planes through the model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LossLandscapes {
    /// The task's name.
    pub task: String,
    /// Hash of the model's weights.
    pub model: String,
    /// Size and hash of the data.
    pub data: Value,
    /// The settings, as their own type writes them.
    pub settings: Value,
    /// Sequences whose loss is shown.
    pub examples: usize,
    /// The model's own loss on them: the middle of every grid.
    #[serde(deserialize_with = "number::one")]
    pub loss: f64,
    /// One plane for each layer that was asked for.
    pub layers: Vec<LayerLandscape>,
}

impl Document for LossLandscapes {
    const HEADER: Option<Header> = Some(Header { format: "qbert-landscape", version: 1 });
}

/// The plane of one layer's first two Hessian eigenvectors.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerLandscape {
    /// The layer, counted from 0.
    pub layer: usize,
    /// The eigenvalues of the two directions.
    #[serde(deserialize_with = "number::list")]
    pub eigenvalues: Vec<f64>,
    /// How far the directions are from being eigenvectors: `‖Hv − λv‖`.
    #[serde(deserialize_with = "number::list")]
    pub residuals: Vec<f64>,
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
