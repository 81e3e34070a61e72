//! `qbert report`: one page from the files of a run.

use std::path::PathBuf;

use clap::Args;
use qbert_pipeline::Result;

/// Make one HTML page, with Markdown and JSON beside it, from the files of a run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert report run
  qbert report run --out shown

The page shows whatever is there: sensitivity.json, plan.toml, landscape*.json, attention*.json, metrics.json and
train.jsonl of the directory and of its immediate subdirectories.")]
pub(crate) struct Options {
    /// Directory with the files of a run.
    directory: PathBuf,
    /// Directory to write to [default: the run's own].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<String> {
    let report = qbert_report::read::directory(&options.directory)?;
    let out = options.out.as_ref().unwrap_or(&options.directory);
    for (name, text) in report.render().files() {
        qbert_model::atomic::write_file(&out.join(name), |writer| writer.write_all(text.as_bytes()))?;
    }
    Ok(format!("{}\n", out.join("report.html").display()))
}
