//! `qbert bench`: speed, one JSON line per measurement, in the fields of the peers' scripts.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use qbert::Result;

use super::{compute, model};

/// Measure speed on a quiet machine.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Train(Train),
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
    /// Threads; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Print one JSON line per measurement.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let What::Train(train) = &options.what;
    let directory = model::directory(&train.model, quiet)?;
    let found = qbert::train::bench::train(&directory, train.sst2.as_deref(), &compute(train.threads)?)?;
    let mut text = String::new();
    for row in found {
        if train.json {
            text += &serde_json::to_string(&row).unwrap_or_default();
        } else {
            let (work, threads, ms, best) = (&row.work, row.threads, row.ms, row.best_ms);
            text += &format!("{work}, {threads} threads: {ms:.1} ms (best {best:.1} of {})", row.n);
        }
        text.push('\n');
    }
    Ok(text)
}
