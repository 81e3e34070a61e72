//! `qbert plan`: bits, groups and ranges for every part of the model, and the sizes that follow.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use qbert::model::{Config, Head, Layout};
use qbert::quant::size::mebibytes;
use qbert::quant::{EmbeddingPlan, GroupSpec, ModelShape, Plan, Precision, Preset, RangeMethod, Site, SitePlan};
use qbert::{Error, ErrorKind, Result};

use super::table::Table;
use super::{json, model, note};

/// Make a bit plan, or check one, and show the sizes it gives.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert plan --model minilm --bits 3 --out plan.toml
  qbert plan --model minilm --bits 2 --embedding-bits 4,8 --embedding-groups 128 --json
  qbert plan --model ./bert-base --preset sst2-2-3 --out plan.toml
  qbert plan --model minilm --check plan.toml

A directory with nothing but config.json is enough.")]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub(crate) struct Options {
    /// Checkpoint directory, hub id, or `minilm`.
    #[arg(long)]
    model: String,
    /// The same width for every encoder matrix: 1 to 8, or 32 for none.
    #[arg(long, group = "source")]
    bits: Option<u32>,
    /// One of the paper's published plans (Tab. 6 and 7), such as sst2-2-3.
    #[arg(long, group = "source")]
    preset: Option<String>,
    /// Check this plan against the model instead of making one.
    #[arg(long, group = "source", value_name = "FILE")]
    check: Option<PathBuf>,
    /// Groups per encoder matrix: a number, `head` or `neuron`.
    #[arg(long, default_value = "128")]
    groups: String,
    /// How ranges are found: `mse`, `min-max` or `percentile:99.9`.
    #[arg(long, default_value = "mse")]
    range: String,
    /// Width of the word, position and type embedding: one number for all, or WORD,REST.
    #[arg(long, default_value = "8", value_delimiter = ',', num_args = 1..=2)]
    embedding_bits: Vec<u32>,
    /// Groups per embedding table.
    #[arg(long, default_value = "1")]
    embedding_groups: String,
    /// Write the plan to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print bits per site and sizes as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let directory = model::directory(&options.model, quiet)?;
    let config_path = directory.join("config.json");
    if !config_path.exists() {
        let missing = "config.json".to_owned();
        return Err(qbert::model::Error::MissingFile { directory, missing }.into());
    }
    let config = Config::read(&config_path)?;
    let plan = make(options, config.layers)?;
    let shape = config.shape(Some(&layout(&config)));
    let report = Report::new(&plan, &shape)?;
    if let Some(out) = &options.out {
        let text = plan.to_toml();
        qbert::model::atomic::write_file(out, |writer| writer.write_all(text.as_bytes()))?;
        if !quiet {
            note(&format!("wrote {}", out.display()));
        }
    }
    Ok(if options.json { json(&report) } else { report.text(&plan) })
}

/// The whole model as it will be packed: with the head that the configuration declares.
fn layout(config: &Config) -> Layout {
    let head = config.declared_head.unwrap_or(Head::None);
    let outputs = if head == Head::QuestionAnswering { 2 } else { config.labels.len().max(2) };
    Layout::new(config, head, outputs, head == Head::None)
}

fn make(options: &Options, layers: usize) -> Result<Plan> {
    if let Some(path) = &options.check {
        return read(path);
    }
    if let Some(name) = &options.preset {
        let plan = Preset::parse(name).and_then(|preset| preset.plan(layers));
        return plan.map_err(|error| Error::from(error).of_flag("--preset"));
    }
    let bits = precision("--bits", options.bits.unwrap_or(8))?;
    let range: RangeMethod = parse("--range", &options.range)?;
    let groups: GroupSpec = parse("--groups", &options.groups)?;
    let embedding_groups: GroupSpec = parse("--embedding-groups", &options.embedding_groups)?;
    let table = |bits: u32| -> Result<SitePlan> {
        Ok(SitePlan { bits: precision("--embedding-bits", bits)?, groups: embedding_groups, range })
    };
    let (word, rest) = match options.embedding_bits.as_slice() {
        [word, rest] => (*word, *rest),
        [both] => (*both, *both),
        _ => (8, 8),
    };
    let embedding = EmbeddingPlan { word: table(word)?, position: table(rest)?, token_type: table(rest)? };
    Ok(Plan::uniform(layers, bits, groups, range).with_embedding(embedding))
}

fn precision(flag: &str, bits: u32) -> Result<Precision> {
    Precision::from_number(i64::from(bits)).map_err(|error| Error::from(error).of_flag(flag))
}

pub(crate) fn parse<T: std::str::FromStr<Err = qbert::quant::Error>>(flag: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| Error::from(error).of_flag(flag))
}

/// Reads and checks a plan file.
pub(crate) fn read(path: &Path) -> Result<Plan> {
    let bytes = std::fs::read(path).map_err(|error| {
        Error::from(qbert::model::Error::Io { path: path.to_owned(), action: "read the plan", source: error })
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        let message = format!("{}:{line}: the line is not valid UTF-8", path.display());
        Error::new(ErrorKind::BadInput, message, "save the plan as UTF-8 text".to_owned())
    })?;
    Ok(Plan::parse(&text, &path.display().to_string())?)
}

/// What `--json` prints.
#[derive(Debug, serde::Serialize)]
struct Report {
    bits: serde_json::Map<String, serde_json::Value>,
    paper_mib: PaperMib,
    file_bytes: u64,
    f32_bytes: u64,
}

#[derive(Debug, serde::Serialize)]
struct PaperMib {
    total: f64,
    encoder: f64,
    embedding: f64,
}

impl Report {
    fn new(plan: &Plan, shape: &ModelShape) -> Result<Self> {
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
        })
    }

    fn text(&self, plan: &Plan) -> String {
        let mut table = Table::new(["", "query", "key", "value", "attention out", "intermediate", "output"]);
        for (index, layer) in plan.layers().iter().enumerate() {
            let bits = |site: &SitePlan| site.bits.number().to_string();
            table.row([
                format!("layer {index}"),
                bits(&layer.query),
                bits(&layer.key),
                bits(&layer.value),
                bits(&layer.attention_output),
                bits(&layer.intermediate),
                bits(&layer.output),
            ]);
        }
        let mut text = format!("bits per site\n{table}");
        let embedding = plan.sites().filter(|(site, _)| matches!(site, Site::Embedding(_)));
        let embedding: Vec<String> =
            embedding.map(|(site, planned)| format!("{site} {}", planned.bits.number())).collect();
        let _ = writeln!(text, "  {}; activations {}\n", embedding.join(", "), plan.activation().bits.number());
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
}
