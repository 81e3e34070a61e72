//! The arguments of `qbert-paper reproduce`, and what they mean.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use qbert_cli::WhichWeights;
use qbert_cli::reading::Reading;
use qbert_paper::{PaperTable, Ranges, Recipe, Selection};
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_train::qat::weights::WeightRanges;
use qbert_train::trainer::{Settings, TrainingPrecision};

/// Make the rows of the paper's tables on a fine-tuned checkpoint; each is a run with a result file of its own.
#[derive(Debug, Args)]
#[command(mut_arg("task", |argument| argument.required(false).required_unless_present("render")))]
#[command(after_help = "\
Examples:
  qbert-paper reproduce --task sst2 --table main --model tuned --train train.tsv --dev dev.tsv \\
      --sensitivity sensitivity.json --steps 500 --seeds 1,2,3 --out results/reproduce
  qbert-paper reproduce … --table main,groups --list          rows, sizes, and which are done
  qbert-paper reproduce … --rows qbert-mp-2-3,directq-2 --ranges optimal --distill
  qbert-paper reproduce … --steps 0                           quantized without training
  qbert-paper reproduce … --weight-errors --out results/weight-errors-sst2.json
  qbert-paper reproduce --render results/reproduce --out docs/results/paper.md --readme README.md

A result is OUT/TASK/ROW.json, written when the row is done. Rows that are done are skipped, an
interrupted one resumes, and several processes may share the work. Without --table all tables are
made, without --ranges each row with both kinds of range.")]
pub(crate) struct Options {
    /// Tables: main (Tab. 1), groups (2), modules (3), reverse (4), embedding (5), headline.
    #[arg(long, value_delimiter = ',', value_name = "TABLE[,TABLE]")]
    pub(super) table: Vec<String>,
    /// Fine-tuned checkpoint directory, or a hub id.
    #[arg(long, required_unless_present = "render")]
    pub(super) model: Option<String>,
    /// Training files.
    #[arg(long, required_unless_present = "render", num_args = 1.., value_name = "FILE")]
    pub(super) train: Vec<PathBuf>,
    /// Dev file.
    #[arg(long, required_unless_present = "render", value_name = "FILE")]
    pub(super) dev: Option<PathBuf>,
    /// Sensitivities of the layers from `qbert analyze`, for rows with mixed precision.
    #[arg(long, value_name = "FILE")]
    pub(super) sensitivity: Option<PathBuf>,
    /// Directory of the results; with --render the page to write, with --weight-errors the file.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Render the results in this directory as a Markdown page with figures, instead of making rows.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["task", "table", "model", "train", "dev", "sensitivity", "list"])]
    pub(super) render: Option<PathBuf>,
    /// With --render, also write a short table between `<!-- results -->` and `<!-- /results -->` in this file.
    #[arg(long, value_name = "FILE", requires = "render")]
    pub(super) readme: Option<PathBuf>,
    #[command(flatten)]
    pub(super) reading: Reading,
    #[command(flatten)]
    pub(super) choice: Choice,
    #[command(flatten)]
    pub(super) budget: Budget,
    /// Keep the quantized checkpoints and packed models next to the results.
    #[arg(long, help_heading = "Run")]
    pub(super) keep: bool,
    /// Make rows again if they were made with other settings.
    #[arg(long, help_heading = "Run")]
    pub(super) redo: bool,
    /// Only list the rows with their sizes, and which are done.
    #[arg(long, help_heading = "Run")]
    pub(super) list: bool,
    /// Only measure how far each row's plan moves the weights before training; --out is the file.
    #[arg(long, help_heading = "Run", conflicts_with_all = ["list", "render"])]
    pub(super) weight_errors: bool,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    pub(super) threads: Option<usize>,
    /// Print results as JSON.
    #[arg(long, help_heading = "Run")]
    pub(super) json: bool,
}

/// Which rows.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rows")]
pub(super) struct Choice {
    /// Weight ranges: the paper's (`min-max`), those with the least squared error, or every row with both.
    #[arg(long, value_enum, default_value = "both")]
    pub(super) ranges: WhichRanges,
    /// Compensate for rounding errors in the remaining weights, which the paper does not do: `no`, `yes`, or every row
    /// `both` ways.
    #[arg(long, value_enum, num_args = 0..=1, default_value = "no", default_missing_value = "yes")]
    pub(super) compensate: Extra,
    /// Distill from the full-precision model, which the paper does not do: `no`, `yes`, or every row `both` ways.
    #[arg(long, value_enum, num_args = 0..=1, default_value = "no", default_missing_value = "yes")]
    pub(super) distill: Extra,
    /// Which weights get a gradient.
    #[arg(long, value_enum, default_value = "clamp")]
    pub(super) mask: WhichWeights,
    /// How weight ranges change in training: `follow` the weights, or `learn` by gradient, at 10 times the learning rate
    /// or another multiple (`learn:3`).
    #[arg(long, value_name = "HOW", default_value = "follow")]
    pub(super) weight_ranges: WeightRanges,
    /// Before training, fit each layer's output to that of the full-precision layer, in this many steps.
    #[arg(long, value_name = "STEPS", default_value_t = 0, hide_default_value = true)]
    pub(super) fit_layers: usize,
    /// Seeds; every row is trained once with each.
    #[arg(long, value_delimiter = ',', value_name = "N[,N]", default_value = "1")]
    pub(super) seeds: Vec<u64>,
    /// Only these rows or methods, those of no table included: qbert-mp-2-3, directq:4, q-bert:2,groups=neuron.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    pub(super) rows: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum WhichRanges {
    MinMax,
    Optimal,
    Both,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Extra {
    No,
    Yes,
    Both,
}

impl Extra {
    fn choices(self) -> Vec<bool> {
        match self {
            Self::No => vec![false],
            Self::Yes => vec![true],
            Self::Both => vec![false, true],
        }
    }
}

/// The same for every row.
#[derive(Debug, Args)]
#[command(next_help_heading = "Budget (the task's own recipe if not given)")]
pub(super) struct Budget {
    /// Optimizer steps; 0 to quantize without training.
    #[arg(long, conflicts_with = "epochs")]
    pub(super) steps: Option<usize>,
    /// Passes over the data.
    #[arg(long)]
    pub(super) epochs: Option<usize>,
    /// Highest learning rate.
    #[arg(long)]
    pub(super) lr: Option<f64>,
    /// Sequences per batch.
    #[arg(long)]
    pub(super) batch: Option<usize>,
    /// Products of training in f32 or bf16.
    #[arg(long, value_name = "f32|bf16", default_value = "f32")]
    pub(super) precision: TrainingPrecision,
    /// Train on the first N examples only.
    #[arg(long, value_name = "N")]
    pub(super) max_train: Option<usize>,
    /// Evaluate on the first N examples only.
    #[arg(long, value_name = "N")]
    pub(super) max_dev: Option<usize>,
}

impl Budget {
    pub(super) fn apply(&self, mut settings: Settings) -> Settings {
        settings.steps = self.steps;
        settings.epochs = self.epochs.unwrap_or(settings.epochs);
        settings.batch = self.batch.unwrap_or(settings.batch);
        settings.precision = self.precision;
        settings.optimizer.learning_rate = self.lr.unwrap_or(settings.optimizer.learning_rate);
        settings
    }
}

impl Choice {
    pub(super) fn selection(&self, tables: &[String], trained: bool) -> Result<Selection> {
        if self.fit_layers > 0 && !trained {
            let message = "--fit-layers is a piece of training, and with --steps 0 nothing is trained".to_owned();
            let hint = "measure it with `qbert quantize --epochs 0 --fit-layers STEPS`".to_owned();
            return Err(Error::new(ErrorKind::BadInput, message, hint));
        }
        let tables: Vec<PaperTable> = tables
            .iter()
            .map(|text| text.parse().map_err(|error: Error| error.about("--table")))
            .collect::<Result<_>>()?;
        Ok(Selection {
            tables: if tables.is_empty() { PaperTable::ALL.to_vec() } else { tables },
            ranges: match self.ranges {
                WhichRanges::MinMax => vec![Ranges::MinMax],
                WhichRanges::Optimal => vec![Ranges::Optimal],
                WhichRanges::Both => Ranges::ALL.to_vec(),
            },
            compensate: self.compensate.choices(),
            distill: self.distill.choices(),
            recipe: Recipe { mask: self.mask.into(), weight_ranges: self.weight_ranges, fit_steps: self.fit_layers },
            seeds: self.seeds.clone(),
            trained,
            names: self.rows.iter().flat_map(|text| names(text)).collect(),
        })
    }
}

/// Splits names at commas; a comma before an option of a method (`q-bert:4,groups=head`) is part of the name.
fn names(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in text.split(',') {
        match all.last_mut().filter(|_| part.contains('=')) {
            Some(last) => *last += &format!(",{part}"),
            None => all.push(part.to_owned()),
        }
    }
    all
}
