//! `qbert data`: what is in a data file, read and checked as training would read it.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use qbert_pipeline::Result;
use qbert_tasks::qa::QaOptions;
use qbert_tasks::stats::statistics;
use qbert_tasks::{DataStatistics, LeftOut, Task, Tokenizer, read};

use super::reading::Reading;
use super::table::Table;
use super::{model, versioned_json};

/// Read and check data files; count examples, labels and tokens.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert data --task sst2 train.tsv
  qbert data --task classify --text review --label stars --model minilm reviews.csv
  qbert data --task ner --model minilm train.conll --json")]
pub(crate) struct Options {
    #[command(flatten)]
    reading: Reading,
    /// The data files, read in this order.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Count tokens with the tokenizer of this model: a directory, a hub id, or `minilm`.
    #[arg(long, help_heading = "Run")]
    model: Option<String>,
    /// Accept examples without a label.
    #[arg(long, help_heading = "Run")]
    unlabelled: bool,
    /// Print as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let task = options.reading.task()?;
    let dataset = read(task, &options.files, &options.reading.options(!options.unlabelled)?)?;
    let directory = options.model.as_deref().map(|name| model::directory(name, quiet)).transpose()?;
    let tokenizer = directory.as_deref().map(Tokenizer::from_directory).transpose()?;
    let max_len = match &directory {
        Some(directory) => options.reading.max_len(directory)?,
        None => options.reading.max_len_within(usize::MAX, None)?,
    };
    let found = statistics(&dataset, tokenizer.as_ref(), &QaOptions { max_len, ..QaOptions::default() })?;
    Ok(if options.json { versioned_json("qbert-data", &found) } else { text(task, &found, dataset.left_out()) })
}

fn text(task: Task, found: &DataStatistics, left_out: Option<LeftOut>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{task}: {} {}", found.examples, task.kind().profile().examples);
    if let Some(LeftOut { count, why }) = left_out {
        let _ = writeln!(text, "  left out    {count}: {why}");
    }
    if found.unlabelled > 0 {
        let _ = writeln!(text, "  unlabelled  {}", found.unlabelled);
    }
    if let Some(words) = found.words {
        let _ = writeln!(text, "  words       {words}");
    }
    if let Some(contexts) = found.contexts {
        let _ = writeln!(text, "  contexts    {contexts}");
    }
    if !found.labels.is_empty() {
        let mut table = Table::new(["label", "count", "share"]);
        let total: usize = found.labels.iter().map(|l| l.count).sum();
        for label in &found.labels {
            let share = 100.0 * label.count as f64 / total.max(1) as f64;
            table.row([label.label.clone(), label.count.to_string(), format!("{share:.1} %")]);
        }
        let _ = write!(text, "\n{table}");
    }
    if let Some(tokens) = &found.tokens {
        let lengths = &tokens.lengths;
        let _ = writeln!(text, "\n  tokens      {} in all, {:.1} on average", tokens.total, lengths.mean);
        let (p50, p90, p99, max) = (lengths.p50, lengths.p90, lengths.p99, lengths.max);
        let _ = writeln!(text, "  lengths     half up to {p50}, 90 % up to {p90}, 99 % up to {p99}, longest {max}");
        let (cut, share) = (tokens.truncated, 100.0 * tokens.truncated_share);
        let _ = writeln!(text, "  longer than {} tokens: {cut} ({share:.1} %)", tokens.max_len);
        if tokens.windows > 0 {
            let _ = writeln!(text, "  sequences   {}", tokens.windows);
        }
    }
    text
}
