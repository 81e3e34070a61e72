//! `plan-search.json`: every plan that was tried for a limit on the metric's drop, and what is worth trying.
//!
//! The file is also the memory of the search: a plan in it is not measured again as long as [`PlanSearch::inputs`] is the
//! same.

use serde::{Deserialize, Serialize};

use crate::bits::BitCount;
use crate::document::{Document, Header};
use crate::number;

/// A search for the smallest file whose metric drops by no more than a limit. Drops are in points of the metric.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanSearch {
    /// The task's name.
    pub task: String,
    /// The metric's name.
    pub metric: String,
    /// Dev examples.
    pub examples: u64,
    /// The metric in full precision, in percent.
    #[serde(deserialize_with = "number::one")]
    pub full_precision: f64,
    /// The largest drop that was asked for.
    #[serde(deserialize_with = "number::one")]
    pub max_drop: f64,
    /// How sure the limit should hold; `None` if the measured drop itself decides.
    pub confidence: Option<f64>,
    /// The share of cases in which the true drop is below an interval's upper end, and as often above its lower end.
    #[serde(deserialize_with = "number::one")]
    pub interval: f64,
    /// Hash of everything that decides a measurement besides the widths: model, data, calibration, details of the plan.
    pub inputs: String,
    /// Whether the chosen plan keeps the limit; if not, it is the nearest.
    pub holds: bool,
    /// What came out, in a sentence.
    pub outcome: String,
    /// Every plan that was measured, in the order of trying.
    pub plans: Vec<TriedPlan>,
    /// The best plan of every size by the sum of divergences, or some of them, smallest first.
    pub frontier: Vec<FrontierPoint>,
}

impl Document for PlanSearch {
    const HEADER: Option<Header> = Some(Header { format: "qbert-plan-search", version: 1 });
}

impl PlanSearch {
    /// The chosen plan.
    pub fn chosen(&self) -> Option<&TriedPlan> {
        self.plans.iter().find(|plan| plan.chosen)
    }

    /// The end of a measurement that the limit is held against.
    pub fn judged(&self, measured: &MeasuredDrop) -> f64 {
        if self.confidence.is_some() { measured.high } else { measured.drop }
    }
}

/// A plan that was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TriedPlan {
    /// Bits of the encoder: `bits[layer][matrix]`, with query, key, value, attention output, intermediate and output.
    pub bits: Vec<Vec<BitCount>>,
    /// The whole packed file, at most.
    pub bytes: u64,
    /// The sum of its matrices' measured divergences, in nats.
    #[serde(deserialize_with = "number::one")]
    pub divergence: f64,
    /// The drop that the plans measured before it let expect; `None` for the first.
    pub predicted: Option<f64>,
    /// The drop that the search aimed at when it tried this plan; `None` for a plan of an earlier search.
    pub aim: Option<f64>,
    /// What was measured without training.
    pub measured: Option<MeasuredDrop>,
    /// What was measured after training, if the plan was trained.
    pub trained: Option<TrainedDrop>,
    /// Whether this plan was chosen.
    pub chosen: bool,
}

/// What a plan does to the metric, on the dev data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredDrop {
    /// The metric in percent.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub value: f64,
    /// Full precision minus this.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub drop: f64,
    /// The standard error of the drop, from the examples on which both models differ.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub standard_error: f64,
    /// The lower end of the drop's interval.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub low: f64,
    /// Its upper end.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub high: f64,
}

/// What a plan does to the metric after training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainedDrop {
    /// Hash of everything that decides the training besides plan, model and data.
    pub training: String,
    /// The measurement.
    #[serde(flatten)]
    pub measured: MeasuredDrop,
    /// Whether another plan was trained after it because of this result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub went_on: bool,
}

/// The best plan of a size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FrontierPoint {
    /// The whole packed file, at most.
    pub bytes: u64,
    /// The sum of its matrices' measured divergences, in nats.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub divergence: f64,
    /// The drop that the measured plans let expect without training.
    pub predicted: Option<f64>,
}
