//! `--list`: which rows there are, how large they are, and which are done.

use qbert_cli::json;
use qbert_cli::table::Table;
use qbert_paper::{Bits, Row, State, Study};
use qbert_pipeline::Result;
use qbert_quant::Precision;

/// A row of `--list`.
#[derive(Debug, serde::Serialize)]
struct Listed {
    row: String,
    method: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<String>,
    encoder_mib: f64,
    total_mib: f64,
    encoder_times: f64,
    bits: Bits,
}

/// Lists the rows, as text or JSON.
pub(super) fn run(study: &Study, rows: &[Row], as_json: bool) -> Result<String> {
    let listed = rows.iter().map(|row| {
        let (size, [encoder_times, _]) = study.paper_sizes(row)?;
        let (state, difference) = match study.state(row)? {
            State::Done(_) => ("done", None),
            State::Differs(difference) => ("made with other settings", Some(difference)),
            State::Begun => ("begun", None),
            State::Open => ("not yet", None),
        };
        Ok(Listed {
            row: row.id(),
            method: row.method.to_string(),
            state,
            difference,
            encoder_mib: size.encoder,
            total_mib: size.total,
            encoder_times,
            bits: study.settings(row)?.bits,
        })
    });
    let listed = listed.collect::<Result<Vec<Listed>>>()?;
    if as_json {
        return Ok(json(&listed));
    }
    let mut table = Table::new(["row", "bits per layer", "encoder MiB", "times", "with embedding", "state"]);
    for row in &listed {
        let Listed { bits, .. } = row;
        let digits = |all: &[Precision]| all.iter().map(Precision::to_string).collect::<Vec<_>>().join(" ");
        let (attention, feed_forward) = (digits(&bits.attention), digits(&bits.feed_forward));
        table.row([
            row.row.clone(),
            if attention == feed_forward { attention } else { format!("{attention} | {feed_forward}") },
            format!("{:.2}", row.encoder_mib),
            format!("{:.1}", row.encoder_times),
            format!("{:.2}", row.total_mib),
            row.state.to_owned(),
        ]);
    }
    let done = listed.iter().filter(|row| row.state == "done").count();
    Ok(format!("{table}\n{done} of {} rows are done\n", listed.len()))
}
