//! `qbert plan`: bits, groups and ranges for every part of the model, and the resulting sizes.
//!
//! Flags are checked against each other before anything is read ([`flags`]); [`qbert_pipeline::planning`] turns them into a
//! plan and records how it was made; [`report`] shows it. A plan for `--max-drop` is found by measuring ([`search`]).

mod flags;
mod report;
mod search;

use std::path::PathBuf;

use clap::Args;
use qbert_pipeline::planning::search::{DropLimit, FoundPlan};
use qbert_pipeline::planning::{self, Model, NewPlan, Origin, PlanRequest};
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_quant::{Precision, TableWidth};

use self::report::Report;
pub(crate) use self::search::text as search_text;
use super::progress::Progress;
use super::reading::Reading;
use super::{compute, model, note, print, versioned_json};

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
  qbert plan --model tuned --sensitivity sensitivity.json --max-drop 0.5 --task sst2 --train train.tsv \
      --dev dev.tsv --out plan.toml

--size and --budget limit the whole packed file, in MB of 10^6 bytes: weights, embedding, everything
in f32, tokenizer and header. --budget reads the weights of the model; for all else a directory with
nothing but config.json is enough, but without a tokenizer its size does not count.

--max-drop measures plans on the dev data, without training, and keeps every plan tried in
plan-search.json beside --out; the same command again continues from there. The exit code is 3 if no
plan keeps the limit; the nearest is then written.")]
#[command(group = clap::ArgGroup::new("source").required(true).multiple(true))]
#[command(mut_arg("task", |argument| argument.required(false)))]
pub(crate) struct Options {
    /// Checkpoint directory, hub id, or `minilm`.
    #[arg(long)]
    model: String,
    /// Width of every encoder matrix: 1 to 8, 1.6 (ternary), or 32 for none; with --sensitivity
    /// the widths to choose from, low to high: 2,3.
    #[arg(long, group = "source", value_delimiter = ',', value_name = "N[,N]")]
    bits: Vec<Precision>,
    /// Width of the self-attention matrices, independent of --bits.
    #[arg(long, group = "source", value_name = "N")]
    attention_bits: Option<Precision>,
    /// Width of the feed-forward matrices, independent of --bits.
    #[arg(long, group = "source", value_name = "N")]
    ffn_bits: Option<Precision>,
    /// One of the paper's published plans (Tab. 6 and 7), such as sst2-2-3.
    #[arg(long, group = "source")]
    preset: Option<String>,
    /// Check this plan against the model instead of making one.
    #[arg(long, group = "source", value_name = "FILE")]
    check: Option<PathBuf>,
    /// Groups per encoder matrix: a number, `head` or `neuron` [default: 128, or one per neuron in a
    /// smaller model].
    #[arg(long)]
    groups: Option<String>,
    /// How ranges are found: `mse`, `min-max` or `percentile:99.9` [default: mse].
    #[arg(long)]
    range: Option<String>,
    /// Width of the word, position and type embedding: one number for all, or WORD,REST; 8/6 stores
    /// the word embedding as product codes, a byte for six values [default: 8].
    #[arg(long, value_delimiter = ',', value_name = "N[,N]")]
    embedding_bits: Vec<TableWidth>,
    /// Groups per embedding table: a number, `neuron` (a range per column) or `row` (a range per row)
    /// [default: row below 8 bits, otherwise 128, or one per column in a smaller model; 1 in a preset].
    #[arg(long)]
    embedding_groups: Option<String>,
    /// Width of the activations between the matrices: 1 to 8, or 32 to leave them in f32 [default: 8].
    #[arg(long, value_name = "N")]
    activation_bits: Option<Precision>,
    /// How ranges of activations are found: `min-max`, `mse` or `percentile:99.99` [default: min-max].
    #[arg(long, value_name = "HOW")]
    activation_range: Option<String>,
    /// Let the sensitivities of the layers, measured by `qbert analyze`, choose among --bits.
    #[arg(long, value_name = "FILE", help_heading = "Widths from sensitivities")]
    sensitivity: Option<PathBuf>,
    /// This many layers, the most sensitive, get the higher width; with three or more widths one
    /// number for each higher width: 3,1.
    #[arg(long, value_delimiter = ',', value_name = "N[,N]", help_heading = "Widths from sensitivities")]
    high: Vec<usize>,
    /// As many of the most sensitive layers get a higher width as fit in a packed file of this size.
    #[arg(long, value_name = "MB", help_heading = "Widths from sensitivities")]
    size: Option<f64>,
    /// The widths with the least sensitivity times squared quantization error in a packed file of
    /// this size.
    #[arg(long, value_name = "MB", help_heading = "Widths from sensitivities")]
    budget: Option<f64>,
    /// The smallest packed file whose metric drops by at most this many points on the dev data,
    /// found by measuring.
    #[arg(long, group = "source", value_name = "POINTS", help_heading = "Widths by measurement")]
    max_drop: Option<f64>,
    /// How sure the drop should be within --max-drop, above 0.5 and below 1: the upper end of its
    /// interval decides [default: the measured drop itself decides].
    #[arg(long, value_name = "SHARE", help_heading = "Widths by measurement")]
    confidence: Option<f64>,
    /// Most plans to measure [default: 12].
    #[arg(long, value_name = "N", help_heading = "Widths by measurement")]
    tries: Option<usize>,
    /// Training files to calibrate with.
    #[arg(long, visible_alias = "data", num_args = 1.., value_name = "FILE", help_heading = "Widths by measurement")]
    train: Vec<PathBuf>,
    /// File to measure the drop on.
    #[arg(long, value_name = "FILE", help_heading = "Widths by measurement")]
    dev: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// What shares a width with --budget or --max-drop: a `layer`, a `module` (self-attention or feed-forward) or
    /// a `site` (a matrix) [default: site].
    #[arg(long, help_heading = "Widths from sensitivities")]
    granularity: Option<String>,
    /// Sensitivity by `omega` (the paper's), `mean` (HAWQ's), `trace` (HAWQ-V2's), `trace-error` or
    /// `kl` (measured) [default: omega; kl with --max-drop].
    #[arg(long, help_heading = "Widths from sensitivities")]
    metric: Option<String>,
    /// Reverse the order, as the paper's MP-rev: lower widths for as many of the sensitive layers. Of a
    /// preset, swap the two widths.
    #[arg(long, help_heading = "Widths from sensitivities")]
    reverse: bool,
    /// Threads for --budget and --max-drop [default: one per core].
    #[arg(long, help_heading = "Widths from sensitivities")]
    threads: Option<usize>,
    /// Write the plan to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print bits per site, sizes and how the plan was made as JSON.
    #[arg(long)]
    json: bool,
}

impl Options {
    fn request(&self) -> Result<PlanRequest> {
        Ok(PlanRequest {
            bits: self.bits.clone(),
            attention_bits: self.attention_bits,
            ffn_bits: self.ffn_bits,
            preset: self.preset.clone(),
            groups: parse_if("--groups", self.groups.as_deref())?,
            range: parse_if("--range", self.range.as_deref())?,
            embedding_bits: self.embedding_bits.clone(),
            embedding_groups: parse_if("--embedding-groups", self.embedding_groups.as_deref())?,
            activation_bits: self.activation_bits,
            activation_range: parse_if("--activation-range", self.activation_range.as_deref())?,
            sensitivity: self.sensitivity.clone(),
            high: self.high.clone(),
            size: self.size,
            budget: self.budget,
            granularity: parse_if("--granularity", self.granularity.as_deref())?,
            metric: parse_if("--metric", self.metric.as_deref())?,
            reverse: self.reverse,
            max_drop: self.max_drop.map(|points| DropLimit {
                confidence: self.confidence,
                tries: self.tries.unwrap_or(DropLimit::TRIES),
                ..DropLimit::new(points)
            }),
        })
    }

    fn make(&self, model: &Model<'_>, quiet: bool) -> Result<NewPlan> {
        if let Some(path) = &self.check {
            let origin = Origin::Checked { plan: path.display().to_string() };
            return Ok(NewPlan { plan: planning::read(path)?, origin });
        }
        let request = self.request()?;
        let mut progress = Progress::new("quantization error", quiet);
        // The last step is not shown, since the plan itself follows at once.
        let mut watch = |done, all| {
            if done < all {
                progress.at(done, all, "");
            }
        };
        planning::make(&request, model, compute(self.threads)?.threads(), &mut watch)
    }
}

/// Parses the value of a flag.
pub(crate) fn parse<T: std::str::FromStr<Err = qbert_quant::Error>>(flag: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| Error::from(error).about(flag))
}

pub(crate) fn parse_if<T: std::str::FromStr<Err = qbert_quant::Error>>(
    flag: &str,
    text: Option<&str>,
) -> Result<Option<T>> {
    text.map(|text| parse(flag, text)).transpose()
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    flags::check(options)?;
    let directory = model::directory(&options.model, quiet)?;
    let shape = planning::shape(&directory)?;
    let model = Model { directory: &directory, shape: &shape };
    let (new, search) = match options.max_drop {
        Some(_) => {
            let FoundPlan { new, search } = search::run(options, &model, quiet)?;
            (new, Some(search))
        }
        None => (options.make(&model, quiet)?, None),
    };
    let report = Report::new(&new, &shape, &directory, search)?;
    if let (Some(path), false) = (&options.sensitivity, quiet) {
        let measured = planning::read_sensitivity(path, shape.layers)?;
        if measured.is_of_other_weights(&directory) == Some(true) {
            let path = path.display();
            note(&format!("warning: {path} was measured on other weights than those of {}", options.model));
        }
    }
    if let Some(out) = &options.out {
        let text = new.to_toml();
        qbert_model::atomic::write_file(out, |writer| writer.write_all(text.as_bytes()))?;
        if !quiet {
            note(&format!("wrote {}", out.display()));
        }
    }
    let text = if options.json { versioned_json("qbert-plan", &report) } else { report.text(&new.plan) };
    match report.missed() {
        None => Ok(text),
        Some(missed) => {
            // The plans tried are what explains it.
            print(&text);
            let hint = "allow a larger --max-drop, offer wider --bits, or train: `qbert run --max-drop`".to_owned();
            Err(Error::new(ErrorKind::MissedLimit, format!("--max-drop: {missed}"), hint))
        }
    }
}
