//! `qbert plan`: bits, groups and ranges for every part of the model, and the sizes that follow.
//!
//! Flags are checked against each other before anything is read ([`flags`]); [`make`] turns them into a plan and
//! remembers how it came about; [`report`] says it.

mod flags;
pub(super) mod make;
mod report;
pub(super) mod sensitivity;

use std::path::{Path, PathBuf};

use clap::Args;
use qbert::model::{Config, Head, Layout};
use qbert::quant::Plan;
use qbert::{Error, ErrorKind, Result};

use self::make::Model;
use self::report::Report;
use super::{json, model, note};

/// Make a bit plan, or check one, and show the sizes it gives.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert plan --model minilm --bits 3 --out plan.toml
  qbert plan --model minilm --bits 2 --embedding-bits 4,8 --embedding-groups 128 --json
  qbert plan --model minilm --attention-bits 2 --ffn-bits 4
  qbert plan --model ./bert-base --preset sst2-2-3 --out plan.toml
  qbert plan --model minilm --check plan.toml
  qbert plan --model tuned --sensitivity sensitivity.json --bits 2,3 --high 3 --out plan.toml
  qbert plan --model tuned --sensitivity sensitivity.json --bits 2,3,4 --budget 15 --out plan.toml

The limit of --size and --budget is on the weights of the packed file, embedding and everything in
f32 included; that is never less than the size as the paper counts. --budget reads the weights of
the model; for all else a directory with nothing but config.json is enough.")]
#[command(group = clap::ArgGroup::new("source").required(true).multiple(true))]
pub(crate) struct Options {
    /// Checkpoint directory, hub id, or `minilm`.
    #[arg(long)]
    model: String,
    /// Width of every encoder matrix: 1 to 8, or 32 for none; with --sensitivity the widths to
    /// choose from, low to high: 2,3.
    #[arg(long, group = "source", value_delimiter = ',', value_name = "N[,N]")]
    bits: Vec<u32>,
    /// Width of the self-attention matrices, whatever the others have.
    #[arg(long, group = "source", value_name = "N")]
    attention_bits: Option<u32>,
    /// Width of the feed-forward matrices, whatever the others have.
    #[arg(long, group = "source", value_name = "N")]
    ffn_bits: Option<u32>,
    /// One of the paper's published plans (Tab. 6 and 7), such as sst2-2-3.
    #[arg(long, group = "source")]
    preset: Option<String>,
    /// Check this plan against the model instead of making one.
    #[arg(long, group = "source", value_name = "FILE")]
    check: Option<PathBuf>,
    /// Groups per encoder matrix: a number, `head` or `neuron` [default: 128].
    #[arg(long)]
    groups: Option<String>,
    /// How ranges are found: `mse`, `min-max` or `percentile:99.9` [default: mse].
    #[arg(long)]
    range: Option<String>,
    /// Width of the word, position and type embedding: one number for all, or WORD,REST [default:
    /// 8].
    #[arg(long, value_delimiter = ',', value_name = "N[,N]")]
    embedding_bits: Vec<u32>,
    /// Groups per embedding table [default: 1].
    #[arg(long)]
    embedding_groups: Option<String>,
    /// Let the sensitivities of the layers, measured by `qbert analyze`, choose among --bits.
    #[arg(long, value_name = "FILE", help_heading = "Widths from sensitivities")]
    sensitivity: Option<PathBuf>,
    /// This many layers, the most sensitive, get the higher width; with three or more widths one
    /// number for each higher width: 3,1.
    #[arg(long, value_delimiter = ',', value_name = "N[,N]", help_heading = "Widths from sensitivities")]
    high: Vec<usize>,
    /// As many of the most sensitive layers get a higher width as fit in this size.
    #[arg(long, value_name = "MiB", help_heading = "Widths from sensitivities")]
    size: Option<f64>,
    /// The widths with the least sensitivity times squared quantization error in this size.
    #[arg(long, value_name = "MiB", help_heading = "Widths from sensitivities")]
    budget: Option<f64>,
    /// What has one width with --budget: a `layer`, a `module` (self-attention or feed-forward) or
    /// a `site` (a matrix) [default: site].
    #[arg(long, help_heading = "Widths from sensitivities")]
    granularity: Option<String>,
    /// Sensitivity by `omega` (the paper's), `mean` (HAWQ's) or `trace` (HAWQ-V2's) [default:
    /// omega].
    #[arg(long, help_heading = "Widths from sensitivities")]
    metric: Option<String>,
    /// Turn it round, as the paper's MP-rev: lower widths for the sensitive layers, as many as
    /// before; of a preset, the two widths exchanged.
    #[arg(long, help_heading = "Widths from sensitivities")]
    reverse: bool,
    /// Threads for --budget; as many as there are cores if not given.
    #[arg(long, help_heading = "Widths from sensitivities")]
    threads: Option<usize>,
    /// Write the plan to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print bits per site, sizes and how the plan came about as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    flags::check(options)?;
    let directory = model::directory(&options.model, quiet)?;
    let config_path = directory.join("config.json");
    if !config_path.exists() {
        let missing = "config.json".to_owned();
        return Err(qbert::model::Error::MissingFile { directory, missing }.into());
    }
    let config = Config::read(&config_path)?;
    let shape = config.shape(Some(&layout(&config)));
    let made = make::make(options, &Model { directory: &directory, shape: &shape }, quiet)?;
    let report = Report::new(&made, &shape)?;
    if let Some(out) = &options.out {
        let text = made.plan.to_toml_from(&made.origin.lines().join("\n"));
        qbert::model::atomic::write_file(out, |writer| writer.write_all(text.as_bytes()))?;
        if !quiet {
            note(&format!("wrote {}", out.display()));
        }
    }
    Ok(if options.json { json(&report) } else { report.text(&made.plan) })
}

/// The whole model as it will be packed: with the head that the configuration declares.
fn layout(config: &Config) -> Layout {
    let head = config.declared_head.unwrap_or(Head::None);
    let outputs = if head == Head::QuestionAnswering { 2 } else { config.labels.len().max(2) };
    Layout::new(config, head, outputs, head == Head::None)
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
