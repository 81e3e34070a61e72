//! `qbert attention-kl`: how far the attention of two models diverges, per head and layer.

use std::path::PathBuf;

use clap::Args;
use qbert_documents::AttentionKl;
use qbert_model::atomic;
use qbert_pipeline::Result;
use qbert_train::attention_kl::{Job, Settings, attention_kl};

use super::progress::Progress;
use super::reading::{Reading, limit};
use super::{compute, model, note};

/// Compare the attention of two models, per head and layer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert attention-kl tuned small --task sst2 --data train.tsv --out attention-kl.json
  qbert attention-kl tuned small --task sst2 --data train.tsv --max-examples all --json --out attention-kl.json

The first model is the reference: KL(first || second), in nats, averaged over all tokens. A directory that
`qbert quantize` wrote stands for the quantized model.")]
pub(crate) struct Options {
    /// The reference: a checkpoint directory or hub id.
    first: String,
    /// The model to compare with it.
    second: String,
    /// Data files.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    data: Vec<PathBuf>,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// Share of the data to average over.
    #[arg(long, default_value_t = 0.1, help_heading = "Sample")]
    fraction: f64,
    /// Most sequences, or `all` for no limit.
    #[arg(long, default_value = "2000", help_heading = "Sample")]
    max_examples: String,
    /// Seed of the sample.
    #[arg(long, default_value_t = 1, help_heading = "Sample")]
    seed: u64,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
    /// Also print the result as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let settings = Settings {
        fraction: options.fraction,
        max_examples: limit("--max-examples", &options.max_examples)?,
        seed: options.seed,
    };
    atomic::check_file(&options.out)?;
    let first = model::directory(&options.first, quiet)?;
    let job = Job {
        second: model::directory(&options.second, quiet)?,
        data: options.reading.source(&options.data, &first)?,
        first,
        settings,
    };
    let mut progress = Progress::new("attention", quiet);
    let found = attention_kl(&job, &compute(options.threads)?, &mut |done, total| progress.at(done, total, "batches"))?;
    drop(progress);
    let text = qbert_documents::to_json(&found);
    atomic::write_file(&options.out, |writer| writer.write_all(text.as_bytes()))?;
    if !quiet {
        note(&format!("wrote {}", options.out.display()));
    }
    Ok(if options.json { text } else { table(&found) })
}

fn table(found: &AttentionKl) -> String {
    let mut text = format!("mean KL divergence of attention over {} tokens, per head\n", found.tokens);
    for layer in &found.layers {
        let heads: Vec<String> = layer.heads.iter().map(|value| format!("{value:7.4}")).collect();
        text += &format!("  layer {:<2} mean {:7.4}  {}\n", layer.layer, layer.mean, heads.join(" "));
    }
    text
}
