//! `qbert landscape`: the loss around a fine-tuned model, over the plane of a layer's first two Hessian eigenvectors.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use qbert_documents::LossLandscapes;
use qbert_pipeline::Result;
use qbert_train::landscape::{Job, Settings, landscapes};

use super::progress::Progress;
use super::reading::{Reading, limit};
use super::{compute, model, note};

/// Compute the loss over the plane of a layer's first two Hessian eigenvectors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert landscape --model tuned --task sst2 --data train.tsv --layer 3 --out landscape.json
  qbert landscape --model tuned --task ner --data train.conll --layer 0 5 --points 31 --extent 1 --out landscape.json")]
pub(crate) struct Options {
    /// Fine-tuned checkpoint: a directory or hub id.
    #[arg(long)]
    model: String,
    /// Data files.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    data: Vec<PathBuf>,
    /// Layers, counted from 0.
    #[arg(long, required = true, num_args = 1.., value_name = "I")]
    layer: Vec<usize>,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    grid: Grid,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
    /// Also print the landscapes as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Grid")]
struct Grid {
    /// Points along each direction: an odd number, since the model itself is in the middle.
    #[arg(long, default_value_t = 21)]
    points: usize,
    /// How far the weights are moved along each direction.
    #[arg(long, default_value_t = 0.5)]
    extent: f64,
    /// Most sequences to compute the loss on, or `all` for no limit.
    #[arg(long, default_value = "64")]
    max_examples: String,
    /// Most products in the search for eigenvectors.
    #[arg(long, default_value_t = 40)]
    iterations: usize,
    /// Residual of an eigenvector, relative to the largest eigenvalue, at which the search stops.
    #[arg(long, default_value_t = 0.05)]
    tol: f64,
    /// Seed of the sample and the starting vectors.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let Grid { points, extent, iterations, tol, seed, .. } = options.grid;
    let max_examples = limit("--max-examples", &options.grid.max_examples)?;
    let stop = qbert_hessian::Stop { iterations, tolerance: tol };
    qbert_model::atomic::check_file(&options.out)?;
    let model = model::directory(&options.model, quiet)?;
    let job = Job {
        data: options.reading.source(&options.data, &model)?,
        model,
        layers: each_once(&options.layer),
        settings: Settings { points, extent, max_examples, stop, seed },
    };
    let mut progress = Progress::new("landscape", quiet);
    let mut watch = |what: &str, done: usize, total: usize| progress.at(done, total, what);
    let found = landscapes(&job, &compute(options.threads)?, &mut watch)?;
    drop(progress);
    let text = qbert_documents::to_json(&found);
    qbert_model::atomic::write_file(&options.out, |writer| writer.write_all(text.as_bytes()))?;
    if !quiet {
        note(&format!("wrote {}", options.out.display()));
    }
    Ok(if options.json { text } else { summary(&found) })
}

/// The layers in the order they were given, each once.
fn each_once(named: &[usize]) -> Vec<usize> {
    let mut layers = Vec::new();
    for &layer in named {
        if !layers.contains(&layer) {
            layers.push(layer);
        }
    }
    layers
}

fn summary(found: &LossLandscapes) -> String {
    let mut text = format!("loss {:.4} on {} sequences\n", found.loss, found.examples);
    for layer in &found.layers {
        let all = layer.losses.iter().flatten();
        let (low, high) =
            all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &loss| (low.min(loss), high.max(loss)));
        let eigenvalues: Vec<String> = layer.eigenvalues.iter().map(|value| format!("{value:.4}")).collect();
        let _ = writeln!(
            text,
            "layer {}: eigenvalues {}, loss from {low:.4} to {high:.4} over the grid",
            layer.layer,
            eigenvalues.join(", ")
        );
    }
    text
}
