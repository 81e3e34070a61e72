//! `qbert inspect` for a packed model: plan, sizes per site, origin, and a check of all checksums.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use qbert_model::PackedModel;
use qbert_pipeline::Result;
use qbert_quant::{Precision, Site, SitePlan};

use super::describe::Described;
use super::machine::Computer;
use super::table::{Table, beside_f32};
use super::versioned_json;

#[derive(Debug, serde::Serialize)]
struct Report {
    file: String,
    file_bytes: usize,
    /// All checksums were compared.
    verified: bool,
    #[serde(flatten)]
    described: Described,
    task: String,
    parameters: usize,
    f32_bytes: usize,
    activation_bits: Precision,
    sites: Vec<SiteReport>,
    /// Biases, LayerNorm, pooler, head and activation ranges.
    float_bytes: usize,
    tokenizer_bytes: usize,
    header_bytes: usize,
    provenance: BTreeMap<String, String>,
    /// What would run the model here.
    #[serde(flatten)]
    computer: Computer,
}

#[derive(Debug, serde::Serialize)]
struct SiteReport {
    site: Site,
    #[serde(flatten)]
    plan: SitePlan,
    rows: usize,
    cols: usize,
    bytes: usize,
}

pub(super) fn run(path: &Path, as_json: bool) -> Result<String> {
    let model = PackedModel::open(path)?;
    model.verify()?;
    let report = Report::new(&model)?;
    Ok(if as_json { versioned_json("qbert-packed-model", &report) } else { report.text() })
}

impl Report {
    fn new(model: &PackedModel) -> Result<Self> {
        let (config, plan) = (model.config(), model.plan());
        let size = |name: &str| model.sizes().iter().find(|(own, _)| own == name).map_or(0, |(_, bytes)| *bytes);
        let mut sites = Vec::new();
        for tensor in config.shape(None).tensors {
            let site = tensor.site;
            let full = model.layout().site(site).map_or(0, |parameter| size(&parameter.name));
            let bytes = size(&format!("{site}.codes")) + size(&format!("{site}.groups")) + full;
            sites.push(SiteReport { site, plan: *plan.site(site)?, rows: tensor.rows, cols: tensor.cols, bytes });
        }
        let tokenizer_bytes = size("vocabulary") + size("tokenizer");
        let all: usize = model.sizes().iter().map(|(_, bytes)| bytes).sum();
        let of_sites: usize = sites.iter().map(|site| site.bytes).sum();
        Ok(Self {
            file: model.path().display().to_string(),
            file_bytes: model.file_len(),
            verified: true,
            described: Described::new(config, model.head(), model.labels().to_vec()),
            task: model.task().to_owned(),
            parameters: model.layout().len(),
            f32_bytes: 4 * model.layout().len(),
            activation_bits: plan.activation().bits,
            sites,
            float_bytes: all - of_sites - tokenizer_bytes,
            tokenizer_bytes,
            header_bytes: model.file_len() - all,
            provenance: model.provenance().clone(),
            computer: Computer::here()?,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let size = beside_f32(self.file_bytes as u64, self.f32_bytes as u64);
        let _ = writeln!(text, "{}", self.file);
        let _ = writeln!(text, "  file        {size}; all checksums match");
        text += &self.described.lines();
        if !self.task.is_empty() {
            let _ = writeln!(text, "  task        {}", self.task);
        }
        let _ = writeln!(text, "  activations {} bits", self.activation_bits);
        text += &self.computer.lines();
        for (key, value) in &self.provenance {
            let value = value.trim_end();
            // The table shows the plan.
            if !value.contains('\n') && !value.is_empty() {
                let _ = writeln!(text, "  {key:<11} {value}");
            }
        }
        let mut table = Table::new(["site", "bits", "groups", "range", "shape", "bytes"]);
        for own in &self.sites {
            let SitePlan { groups, range, .. } = own.plan;
            let shape = format!("{}x{}", own.rows, own.cols);
            let cells = [own.site.to_string(), own.plan.width().to_string(), groups.to_string(), range.to_string()];
            let [site, bits, groups, range] = cells;
            table.row([site, bits, groups, range, shape, own.bytes.to_string()]);
        }
        for (name, bytes) in
            [("other f32", self.float_bytes), ("tokenizer", self.tokenizer_bytes), ("header", self.header_bytes)]
        {
            let none = String::new;
            table.row([name.to_owned(), none(), none(), none(), none(), bytes.to_string()]);
        }
        let _ = write!(text, "\n{table}");
        text
    }
}
