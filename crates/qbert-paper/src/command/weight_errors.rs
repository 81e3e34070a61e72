//! `--weight-errors`: what the plan of each row does to the weights.

use qbert_cli::progress::Progress;
use qbert_cli::table::Table;
use qbert_cli::{compute, json};
use qbert_paper::{Row, Study};
use qbert_pipeline::Result;

use super::Options;

/// Measures the error that quantization adds to the weights, without any training, and writes it to the file of `--out`.
pub(super) fn run(study: &Study, rows: &[Row], options: &Options, quiet: bool) -> Result<String> {
    let mut progress = Progress::new("weights", quiet);
    let compute = compute(options.threads)?;
    let found = study.weight_errors(rows, compute.threads(), |done, total| progress.at(done, total, ""))?;
    drop(progress);
    found.write(&options.out)?;
    if options.json {
        return Ok(json(&found));
    }
    let mut table = Table::new(["plan", "ranges", "encoder", "word embedding", "position embedding"]);
    for row in &found.rows {
        let [encoder, word, position] = [row.encoder, row.word, row.position].map(|value| format!("{value:.4}"));
        table.row([row.name.clone(), row.ranges.name().to_owned(), encoder, word, position]);
    }
    Ok(format!("squared error of the weights, relative to their squares\n{table}\n{}\n", options.out.display()))
}
