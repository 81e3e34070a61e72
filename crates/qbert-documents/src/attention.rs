//! `attention-kl.json`: how far the attention of two models is apart, per layer and head (paper, §5.2, Fig. 5).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document::{Document, Header};
use crate::number;

/// KL divergence of attention between two models.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AttentionKl {
    /// The task's name.
    pub task: String,
    /// Hashes of the two models' weights.
    pub models: [String; 2],
    /// Size and hash of the data.
    pub data: Value,
    /// The settings, as their own type writes them.
    pub settings: Value,
    /// Sequences that were averaged over.
    pub examples: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Every layer, in order.
    pub layers: Vec<LayerDivergence>,
}

impl Document for AttentionKl {
    const HEADER: Option<Header> = Some(Header { format: "qbert-attention-kl", version: 1 });
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerDivergence {
    /// The layer, counted from 0.
    pub layer: usize,
    /// Mean divergence of every head, in nats.
    #[serde(deserialize_with = "number::list")]
    pub heads: Vec<f64>,
    /// Their mean.
    #[serde(deserialize_with = "number::one")]
    pub mean: f64,
}
