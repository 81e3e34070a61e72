//! `qbert bench`: speed, one JSON line per measurement, in the fields that the compared programs' scripts print.

mod classifier;
mod hvp;
mod infer;
mod python_random;
mod train;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use qbert_pipeline::Result;
use qbert_train::trainer::TrainingPrecision;

use super::{compute, model};

/// Measure speed. Use a machine that does nothing else.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Train(Train),
    Hvp(Hvp),
    Infer(infer::Options),
}

/// Forward and backward pass: 32 sequences of 64 tokens, and real SST-2 batches of 32.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert bench train --model minilm --threads 2 --json
  qbert bench train --model minilm --sst2 train.tsv --json")]
struct Train {
    /// Checkpoint directory, hub id, or `minilm`.
    #[arg(long)]
    model: String,
    /// SST-2's train.tsv, for the second measurement.
    #[arg(long, value_name = "FILE")]
    sst2: Option<PathBuf>,
    /// Products in f32 or bf16.
    #[arg(long, value_name = "f32|bf16", default_value = "f32")]
    precision: TrainingPrecision,
    /// Threads [default: one per core].
    #[arg(long)]
    threads: Option<usize>,
    /// Print one JSON line per measurement.
    #[arg(long)]
    json: bool,
}

/// One exact Hessian-vector product for every encoder layer, over four real SST-2 batches of 32.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert bench hvp --model minilm --sst2 train.tsv --threads 2 --json")]
struct Hvp {
    /// Checkpoint directory, hub id, or `minilm`.
    #[arg(long)]
    model: String,
    /// SST-2's train.tsv.
    #[arg(long, value_name = "FILE")]
    sst2: PathBuf,
    /// Threads [default: one per core].
    #[arg(long)]
    threads: Option<usize>,
    /// Print one JSON line per measurement.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let (found, json) = match &options.what {
        What::Infer(given) => return infer::run(given, quiet),
        What::Train(given) => {
            let directory = model::directory(&given.model, quiet)?;
            let compute = compute(given.threads)?.with_products(given.precision.products());
            (train::train(&directory, given.sst2.as_deref(), &compute)?, given.json)
        }
        What::Hvp(given) => {
            let directory = model::directory(&given.model, quiet)?;
            (hvp::hvp(&directory, &given.sst2, &compute(given.threads)?)?, given.json)
        }
    };
    let mut text = match found.first() {
        Some(row) if !json => format!("{}\n", row.computer),
        _ => String::new(),
    };
    for row in found {
        if json {
            text += &serde_json::to_string(&row).unwrap_or_default();
        } else {
            let (work, threads, ms, best) = (&row.work, row.threads, row.ms, row.best_ms);
            text += &format!("{work}, {threads} threads: {ms:.1} ms (best {best:.1} of {})", row.n);
        }
        text.push('\n');
    }
    Ok(text)
}
