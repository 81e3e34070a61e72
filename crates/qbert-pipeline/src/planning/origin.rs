//! How a plan was made: for the comment in the plan's file, the terminal and JSON.

use qbert_quant::allocate::budget::Granularity;
use qbert_quant::{LayerSensitivity, Metric, Precision, Widths};

/// How a plan was made.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(tag = "method", rename_all = "lowercase")]
pub enum Origin {
    /// It was read from this file.
    Checked {
        /// The file.
        plan: String,
    },
    /// All layers are treated alike.
    Uniform,
    /// The paper published it.
    Preset {
        /// Its name.
        preset: String,
        /// Whether its two widths are swapped.
        reverse: bool,
    },
    /// From measured sensitivities.
    Sensitivity(Box<Sensitive>),
}

/// What decided how many layers or matrices get a higher width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// A number of layers.
    High,
    /// A size, layer by layer.
    Size,
    /// A size, the optimum over all matrices.
    Budget,
    /// A drop of the metric, measured plan by plan.
    #[serde(rename = "max_drop")]
    MaxDrop,
}

/// A plan from sensitivities.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Sensitive {
    /// What decided.
    pub by: By,
    /// The file of sensitivities.
    pub file: String,
    /// The task they were measured on, if the file says so.
    pub task: Option<String>,
    /// What sensitivity is.
    pub metric: Metric,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// The widths to choose from.
    pub widths: Widths,
    /// The width of self-attention, if the request fixed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_bits: Option<Precision>,
    /// The width of the feed-forward network, if the request fixed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ffn_bits: Option<Precision>,
    /// Most sensitive first.
    pub ranking: Vec<Ranked>,
    /// How many layers have each higher width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub higher: Option<Vec<usize>>,
    /// The size that it fits in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// What the optimum within a budget is predicted to cost.
    #[serde(flatten)]
    pub cost: Option<Cost>,
    /// What measuring found.
    #[serde(flatten)]
    pub found: Option<Found>,
}

/// A layer in the ranking.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Ranked {
    /// The layer, counted from 0.
    pub layer: usize,
    /// By the requested metric.
    pub sensitivity: f64,
    /// |mean| + std (Eq. 2).
    pub omega: f64,
    /// What was measured.
    #[serde(flatten)]
    pub measured: LayerSensitivity,
}

/// A size limit on the packed file.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Limit {
    /// As it was given.
    pub megabytes: f64,
    /// In bytes.
    pub bytes: u64,
}

impl Limit {
    /// A limit in MB of 10^6 bytes, as file managers and download pages count.
    pub fn new(megabytes: f64) -> Self {
        // A float too large for the number of bytes becomes the largest: no limit at all.
        Self { megabytes, bytes: (megabytes * 1e6) as u64 }
    }
}

/// What the budget's optimum is predicted to cost, beside what one width for all would.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Cost {
    /// What has one width.
    pub granularity: Granularity,
    /// The sum of sensitivity times squared quantization error.
    pub predicted_cost: f64,
    /// The same with one width for all.
    pub uniform: Vec<UniformCost>,
}

/// What a search by measurement found.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Found {
    /// The largest drop that was asked for, in points.
    pub max_drop: f64,
    /// Whether the plan keeps it; if not, it is the nearest.
    pub holds: bool,
    /// What came out, in a sentence.
    pub outcome: String,
}

/// All matrices without a fixed width, at one width.
#[derive(Debug, Clone, serde::Serialize)]
pub struct UniformCost {
    /// The width.
    pub bits: Precision,
    /// What it is predicted to cost.
    pub predicted_cost: f64,
    /// What it takes in the packed file.
    pub file_bytes: u64,
}

impl Origin {
    /// How the plan was made, for people; nothing if the plan itself shows it.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Checked { .. } | Self::Uniform => Vec::new(),
            Self::Preset { preset, reverse } => {
                let exchanged = if *reverse { ", its two widths exchanged (App. C.1)" } else { "" };
                vec![format!("from the paper's plan {preset} (Tab. 6 and 7){exchanged}")]
            }
            Self::Sensitivity(sensitive) => sensitive.lines(),
        }
    }
}

impl Sensitive {
    /// How the plan was made, for people.
    pub fn lines(&self) -> Vec<String> {
        let task = self.task.as_ref().map(|task| format!(" ({task})")).unwrap_or_default();
        let mut lines =
            vec![format!("from {}{task} by {}: {}{}", self.file, self.metric, self.decision(), self.given())];
        let order: Vec<String> =
            self.ranking.iter().map(|ranked| format!("{} ({})", ranked.layer, short(ranked.sensitivity))).collect();
        lines.push(format!("layers, most sensitive first: {}", order.join(", ")));
        if let Some(cost) = &self.cost {
            let others: Vec<String> =
                cost.uniform.iter().map(|one| format!("{} bits {}", one.bits, short(one.predicted_cost))).collect();
            lines.push(format!("predicted cost {}; with one width: {}", short(cost.predicted_cost), others.join(", ")));
        }
        lines
    }

    fn decision(&self) -> String {
        if let Some(found) = &self.found {
            return found.outcome.clone();
        }
        let limit = self.limit.as_ref().map(|limit| format!(" within {} MB", limit.megabytes)).unwrap_or_default();
        if let Some(cost) = &self.cost {
            let whose = match cost.granularity {
                Granularity::Layer => "layer",
                Granularity::Module => "self-attention and feed-forward",
                Granularity::Site => "matrix",
            };
            return format!("least predicted cost{limit}, one width for each {whose}");
        }
        let higher = self.higher.as_deref().unwrap_or_default();
        let lowest = self.ranking.len().saturating_sub(higher.iter().sum());
        let counts = self.widths.as_slice().iter().zip(std::iter::once(&lowest).chain(higher));
        let mut counts: Vec<String> = counts
            .filter(|&(_, &count)| count > 0)
            .map(|(width, count)| format!("{count} {} at {width} bits", if *count == 1 { "layer" } else { "layers" }))
            .collect();
        counts.reverse();
        let counts = counts.join(", ");
        let reversed = if self.reverse { "; reversed: the least sensitive get the higher width" } else { "" };
        let fit = if self.limit.is_some() { format!(", as many as fit{limit}") } else { String::new() };
        format!("{counts}{fit}{reversed}")
    }

    fn given(&self) -> String {
        let module = |name: &str, bits: Option<Precision>| bits.map(|bits| format!("; {name} at {bits} bits as given"));
        let attention = module("self-attention", self.attention_bits);
        attention.or(module("feed-forward", self.ffn_bits)).unwrap_or_default()
    }

    /// The heading of the column of sensitivities.
    pub fn heading(&self) -> &'static str {
        match self.metric {
            Metric::Omega => "Ω",
            Metric::Mean => "|mean λ|",
            Metric::Trace => "|trace|",
            Metric::TraceError => "|trace| × error",
            Metric::Divergence => "divergence",
        }
    }
}

/// A number with four significant digits.
pub fn short(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let places = 3.0 - number.abs().log10().floor();
    if (0.0..=7.0).contains(&places) {
        format!("{number:.width$}", width = places as usize)
    } else {
        format!("{number:.3e}")
    }
}
