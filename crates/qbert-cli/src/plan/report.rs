//! How a plan is shown: on the terminal and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use qbert_documents::PlanSearch;
use qbert_pipeline::Result;
use qbert_pipeline::planning::{NewPlan, Origin, short, whole_file};
use qbert_quant::{LayerPlan, Matrix, ModelShape, Plan, Site};

use super::super::table::{Table, beside_f32, is_small, size};

/// What `--json` prints.
#[derive(Debug, serde::Serialize)]
pub(super) struct Report {
    bits: serde_json::Map<String, serde_json::Value>,
    paper_mib: PaperMib,
    /// The whole packed file, at most.
    file_bytes: u64,
    f32_bytes: u64,
    origin: Origin,
    /// Every plan tried, if it was found by measuring.
    #[serde(skip_serializing_if = "Option::is_none")]
    search: Option<PlanSearch>,
}

#[derive(Debug, serde::Serialize)]
struct PaperMib {
    total: f64,
    encoder: f64,
    embedding: f64,
}

impl Report {
    pub(super) fn new(new: &NewPlan, shape: &ModelShape, directory: &Path, search: Option<PlanSearch>) -> Result<Self> {
        let NewPlan { plan, origin } = new;
        let paper = shape.paper_size(plan)?;
        let parameters: usize = shape.tensors.iter().map(|t| t.rows * t.cols + t.companions).sum();
        Ok(Self {
            bits: plan.sites().map(|(site, planned)| (site.to_string(), serde_json::json!(planned.width()))).collect(),
            paper_mib: PaperMib {
                total: paper.total(),
                encoder: paper.without_embedding(),
                embedding: paper.embedding(),
            },
            file_bytes: whole_file(directory, shape, plan)?,
            f32_bytes: 4 * (parameters + shape.uncounted) as u64,
            origin: origin.clone(),
            search,
        })
    }

    /// Why the plan does not keep the limit that was asked for.
    pub(super) fn missed(&self) -> Option<&str> {
        self.search.as_ref().filter(|search| !search.holds).map(|search| search.outcome.as_str())
    }

    pub(super) fn text(&self, plan: &Plan) -> String {
        let mut text = self.search.as_ref().map(super::search::text).unwrap_or_default();
        let _ = write!(text, "bits per site\n{}", self.table(plan));
        let embedding = plan.sites().filter(|(site, _)| matches!(site, Site::Embedding(_)));
        let embedding: Vec<String> = embedding.map(|(site, planned)| format!("{site} {}", planned.width())).collect();
        let _ = writeln!(text, "  {}; activations {}\n", embedding.join(", "), plan.activation().bits);
        if let Origin::Sensitivity(sensitive) = &self.origin {
            let _ = writeln!(text, "{}\n", sensitive.lines().join("\n"));
        }
        let PaperMib { total, encoder, embedding } = self.paper_mib;
        // A unit that all share is shown once.
        let is_mixed = [encoder, embedding].into_iter().any(is_small);
        let part = |mib: f64| if is_mixed { size(mib) } else { format!("{mib:.1}") };
        let (total, encoder, embedding) = (size(total), part(encoder), part(embedding));
        let _ = writeln!(text, "size as the paper counts    {total} (encoder {encoder}, embedding {embedding})");
        let _ = writeln!(text, "packed file, at most        {}", beside_f32(self.file_bytes, self.f32_bytes));
        text
    }

    /// A row for each layer, with its sensitivity if it is known.
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
