//! `qbert prune`: a checkpoint without the rows of the word table that some texts never use.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use qbert_pipeline::Result;
use qbert_pipeline::pruning::{PruneSettings, Pruned, Spelling, prune};
use qbert_tasks::DataSource;

use super::reading::Reading;
use super::table::file_size;
use super::{model, versioned_json};

/// Make the vocabulary of a checkpoint smaller: keep the tokens that your texts use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert prune xlm-r --task embed texts.txt --out xlm-r-en
  qbert prune tuned --task ner train.conll dev.conll --min-count 3 --out smaller

Every character stays, so nothing becomes unknown that was not: words without a token of their own are
spelled with shorter pieces. Give all the texts you have, of all the kinds that the model will see. The result is a
checkpoint like any other, to fine-tune, quantize and pack.")]
pub(crate) struct Options {
    /// Checkpoint directory, a hub id, or `minilm`.
    model: String,
    /// Files with the texts, of the form that the task has.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Directory to write.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Keep the tokens that occur at least this often.
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_count: usize,
    /// Keep positions for texts of up to this many tokens, special ones included [default: all].
    #[arg(long, value_name = "N")]
    positions: Option<usize>,
    #[command(flatten)]
    reading: Reading,
    /// Print the result as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let directory = model::directory(&options.model, quiet)?;
    let source = DataSource {
        task: options.reading.task()?,
        files: options.files.clone(),
        read: options.reading.options(false)?,
        max_len: options.reading.whole_len(&directory),
    };
    let settings = PruneSettings { min_count: options.min_count, positions: options.positions };
    let pruned = prune(&directory, &source, settings, &options.out)?;
    Ok(if options.json { versioned_json("qbert-prune", &pruned) } else { text(&pruned, options) })
}

fn text(pruned: &Pruned, options: &Options) -> String {
    let Pruned { tokens, kept, used, positions, kept_positions, bytes, kept_bytes, ref texts, .. } = *pruned;
    let Spelling { sequences, same, length, kept_length, unknown, .. } = *texts;
    let mut text = String::new();
    let _ = writeln!(text, "{}: {kept} of {tokens} tokens, {used} of them from the texts", options.out.display());
    if kept_positions < positions {
        let _ = writeln!(text, "  longest text     {kept_positions} tokens instead of {positions}");
    }
    let _ = writeln!(text, "  weights in f32   {} instead of {}", file_size(kept_bytes), file_size(bytes));
    let _ = writeln!(text, "  split as before  {same} of {sequences} sequences");
    let more = 100.0 * (kept_length as f64 / length.max(1) as f64 - 1.0);
    let _ = writeln!(text, "  tokens in all    {kept_length} instead of {length} ({more:+.2} %)");
    let _ = writeln!(text, "  unknown tokens   {unknown}, as before");
    if let Some(longest) = pruned.reachable_positions {
        let _ = writeln!(
            text,
            "  the model's files cut texts at {longest} tokens: --positions {longest} drops the {} rows behind them",
            kept_positions - longest
        );
    }
    text
}
