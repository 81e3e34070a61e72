//! What is said of a plan: on the terminal, as JSON, and as a comment in the plan itself.

use std::fmt::Write as _;

use qbert::Result;
use qbert::quant::allocate::budget::Granularity;
use qbert::quant::size::mebibytes;
use qbert::quant::{LayerPlan, LayerSensitivity, Matrix, Metric, ModelShape, Plan, Site, Widths};

use super::super::table::Table;
use super::make::Made;

/// How a plan came about.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(tag = "method", rename_all = "lowercase")]
pub(super) enum Origin {
    /// It was there already, in this file.
    Checked { plan: String },
    /// Every layer is alike.
    Uniform,
    /// The paper publishes it.
    Preset { preset: String, reverse: bool },
    /// From measured sensitivities.
    Sensitivity(Box<Sensitive>),
}

/// Which flag decided how far widths go up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum By {
    High,
    Size,
    Budget,
}

/// A plan from sensitivities.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Sensitive {
    pub(super) by: By,
    /// The file of sensitivities.
    pub(super) file: String,
    pub(super) task: Option<String>,
    pub(super) metric: Metric,
    pub(super) reverse: bool,
    /// The widths to choose from.
    pub(super) widths: Widths,
    /// A width that was given and not chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attention_bits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ffn_bits: Option<u32>,
    /// Most sensitive first.
    pub(super) ranking: Vec<Ranked>,
    /// How many layers have each higher width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) higher: Option<Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Limit>,
    #[serde(flatten)]
    pub(super) cost: Option<Cost>,
}

/// A layer in the ranking.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Ranked {
    pub(super) layer: usize,
    /// By the metric that was asked for.
    pub(super) sensitivity: f64,
    pub(super) omega: f64,
    #[serde(flatten)]
    pub(super) measured: LayerSensitivity,
}

/// The size limit of `--size` and `--budget`, on the weights of the packed file.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Limit {
    pub(super) mib: f64,
    pub(super) bytes: u64,
}

impl Limit {
    pub(super) fn new(mib: f64) -> Self {
        // A float too large for the number of bytes becomes the largest: no limit at all.
        Self { mib, bytes: (mib * f64::from(1 << 20)) as u64 }
    }
}

/// What the budget's optimum is predicted to cost, beside what one width for all would.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Cost {
    pub(super) granularity: Granularity,
    /// The sum of sensitivity times squared quantization error.
    pub(super) predicted_cost: f64,
    pub(super) uniform: Vec<UniformCost>,
}

/// All matrices that were open at one width.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct UniformCost {
    pub(super) bits: u8,
    pub(super) predicted_cost: f64,
    pub(super) file_bytes: u64,
}

impl Origin {
    /// How the plan came about, for people; nothing where the plan shows it itself.
    pub(super) fn lines(&self) -> Vec<String> {
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
    fn lines(&self) -> Vec<String> {
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
        let limit = self.limit.as_ref().map(|limit| format!(" within {} MiB", limit.mib)).unwrap_or_default();
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
        let module = |name: &str, bits: Option<u32>| bits.map(|bits| format!("; {name} at {bits} bits as given"));
        let attention = module("self-attention", self.attention_bits);
        attention.or(module("feed-forward", self.ffn_bits)).unwrap_or_default()
    }

    /// The heading of the column of sensitivities.
    fn heading(&self) -> &'static str {
        match self.metric {
            Metric::Omega => "Ω",
            Metric::Mean => "|mean λ|",
            Metric::Trace => "|trace|",
        }
    }
}

/// A number to four places that matter.
fn short(number: f64) -> String {
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

/// What `--json` prints.
#[derive(Debug, serde::Serialize)]
pub(super) struct Report {
    bits: serde_json::Map<String, serde_json::Value>,
    paper_mib: PaperMib,
    file_bytes: u64,
    f32_bytes: u64,
    origin: Origin,
}

#[derive(Debug, serde::Serialize)]
struct PaperMib {
    total: f64,
    encoder: f64,
    embedding: f64,
}

impl Report {
    pub(super) fn new(made: &Made, shape: &ModelShape) -> Result<Self> {
        let Made { plan, origin } = made;
        let paper = shape.paper_size(plan)?;
        let parameters: usize = shape.tensors.iter().map(|t| t.rows * t.cols + t.companions).sum();
        Ok(Self {
            bits: plan.sites().map(|(site, planned)| (site.to_string(), planned.bits.number().into())).collect(),
            paper_mib: PaperMib {
                total: paper.total(),
                encoder: paper.without_embedding(),
                embedding: paper.embedding(),
            },
            file_bytes: shape.file_size(plan)?.total(),
            f32_bytes: 4 * (parameters + shape.uncounted) as u64,
            origin: origin.clone(),
        })
    }

    pub(super) fn text(&self, plan: &Plan) -> String {
        let mut text = format!("bits per site\n{}", self.table(plan));
        let embedding = plan.sites().filter(|(site, _)| matches!(site, Site::Embedding(_)));
        let embedding: Vec<String> =
            embedding.map(|(site, planned)| format!("{site} {}", planned.bits.number())).collect();
        let _ = writeln!(text, "  {}; activations {}\n", embedding.join(", "), plan.activation().bits.number());
        if let Origin::Sensitivity(sensitive) = &self.origin {
            let _ = writeln!(text, "{}\n", sensitive.lines().join("\n"));
        }
        let PaperMib { total, encoder, embedding } = &self.paper_mib;
        let _ = writeln!(
            text,
            "size as the paper counts    {total:.1} MiB (encoder {encoder:.1}, embedding {embedding:.1})"
        );
        let file = mebibytes(8 * self.file_bytes);
        let times = self.f32_bytes as f64 / self.file_bytes as f64;
        let whole = mebibytes(8 * self.f32_bytes);
        let _ = writeln!(
            text,
            "weights in a packed file    {file:.1} MiB, {times:.1} times smaller than {whole:.1} MiB in f32"
        );
        text
    }

    /// A row for each layer, with its sensitivity where that is known.
    fn table(&self, plan: &Plan) -> Table {
        let bits = |layer: &LayerPlan| Matrix::ALL.map(|matrix| layer.get(matrix).bits.to_string());
        let header = ["", "query", "key", "value", "attention out", "intermediate", "output"];
        let layers = plan.layers().iter().enumerate();
        let Origin::Sensitivity(sensitive) = &self.origin else {
            let mut table = Table::new(header);
            for (index, layer) in layers {
                let [query, key, value, attention, intermediate, output] = bits(layer);
                table.row([format!("layer {index}"), query, key, value, attention, intermediate, output]);
            }
            return table;
        };
        let [first, query, key, value, attention, intermediate, output] = header;
        let mut table = Table::new([first, query, key, value, attention, intermediate, output, sensitive.heading()]);
        for (index, layer) in layers {
            let ranked = sensitive.ranking.iter().find(|ranked| ranked.layer == index);
            let sensitivity = ranked.map(|ranked| short(ranked.sensitivity)).unwrap_or_default();
            let [query, key, value, attention, intermediate, output] = bits(layer);
            table.row([format!("layer {index}"), query, key, value, attention, intermediate, output, sensitivity]);
        }
        table
    }
}
