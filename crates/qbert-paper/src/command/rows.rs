//! Making the rows, and their figures as a table.

use qbert_cli::note;
use qbert_cli::progress::Progress;
use qbert_cli::table::Table;
use qbert_kernels::Compute;
use qbert_paper::{Metrics, Ran, Row, RowResult, RowTreatment, State, Study};
use qbert_pipeline::{Error, ErrorKind, Result};

/// Makes all rows. A row that fails does not stop the others; its error is reported at the end.
pub(super) fn run(study: &Study, rows: &[Row], compute: &Compute, quiet: bool) -> Result<Vec<RowResult>> {
    let mut progress = Progress::new("baseline", quiet);
    let ran = study.baseline(compute, |done, total| progress.at(done, total, ""))?;
    drop(progress);
    let (Ran::Before(baseline) | Ran::Now(baseline)) = ran else { return Ok(Vec::new()) };
    let say = |text: String| (!quiet).then(|| note(&text));
    say(format!("baseline: {}", figures(&baseline)));
    let (mut results, mut failed) = (Vec::new(), Vec::new());
    for (index, row) in rows.iter().enumerate() {
        if row.treatment == RowTreatment::FullPrecision {
            results.push((*baseline).clone());
            continue;
        }
        let place = format!("[{}/{}] {row}", index + 1, rows.len());
        if !matches!(study.state(row)?, State::Done(_)) {
            say(place.clone());
        }
        match study.run(row, &baseline, compute, &mut Progress::new("quantize", quiet).stoppable()) {
            Ok(Ran::Before(result)) => results.push(*result),
            Ok(Ran::Now(result)) => {
                say(format!("{place}: {}", figures(&result)));
                results.push(*result);
            }
            Ok(Ran::Elsewhere) => {
                say(format!("{place}: another process is making it"));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                note(&format!("{place}: error: {error}"));
                failed.push((row.id(), error));
            }
        }
    }
    let count = failed.len();
    match failed.into_iter().next() {
        None => Ok(results),
        Some((id, error)) if count == 1 => Err(error.about(&id)),
        Some((id, error)) => {
            let message = format!("{count} of {} rows failed; the first is {id}: {error}", rows.len());
            Err(Error::new(error.kind(), message, error.hint().map(str::to_owned)))
        }
    }
}

/// The figures of a row in one line.
fn figures(result: &RowResult) -> String {
    let value = |metrics: &Metrics| metrics.get(&result.metric).copied().unwrap_or(f64::NAN);
    let full = value(&result.full_precision);
    let beside = |what: &str, own: f64| format!("{what} {own:.2} ({:+.2})", own - full);
    let mut parts = vec![format!("{} {full:.2} in full precision", result.metric)];
    parts.extend(result.post_training.as_ref().map(|own| beside("without training", value(own))));
    parts.extend(result.last.as_ref().map(|own| beside("trained", value(&own.metrics))));
    parts.join(", ")
}

/// All figures as a table.
pub(super) fn table(results: &[RowResult]) -> String {
    let Some(first) = results.first() else { return "no rows were made\n".to_owned() };
    let header = ["row", "not trained", "trained", "drop", "encoder MiB", "times", "file MB"];
    let mut table = Table::new(header);
    for result in results {
        let value = |metrics: Option<&Metrics>| {
            metrics.and_then(|own| own.get(&result.metric)).map_or("–".to_owned(), |value| format!("{value:.2}"))
        };
        let trained = result.last.as_ref().map(|epoch| &epoch.metrics);
        let drop = result.drop.last.as_ref().or(result.drop.post_training.as_ref());
        let sizes = &result.sizes;
        table.row([
            result.id.clone(),
            value(Some(result.post_training.as_ref().unwrap_or(&result.full_precision))),
            value(trained),
            value(drop),
            format!("{:.2}", sizes.paper_mib.encoder),
            format!("{:.1}", sizes.compression.encoder),
            format!("{:.2}", sizes.file_bytes as f64 / 1e6),
        ]);
    }
    format!("{} on {} examples\n{table}", first.metric, first.examples)
}
