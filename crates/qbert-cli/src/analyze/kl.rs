//! `qbert analyze --method kl`: what quantizing one matrix at a time does to the answers.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use qbert_documents::{BitCount, LayerMetric, MeasuredSite, Sensitivity};
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_quant::{Metric, Precision, rank_correlation};
use qbert_train::sensitivity::SAVE_EVERY;
use qbert_train::sensitivity::measured::{MeasureSettings, Measurement, Trial, measure};

use super::{Options, Protocol, number, without_effect};
use crate::progress::{Progress, Sink};
use crate::reading::limit;
use crate::table::Table;
use crate::{compute, model};

fn settings(protocol: &Protocol) -> Result<MeasureSettings> {
    let given = [
        ("--runs", protocol.runs.is_some()),
        ("--fraction", protocol.fraction.is_some()),
        ("--iterations", protocol.iterations.is_some()),
        ("--tol", protocol.tol.is_some()),
        ("--trace", protocol.trace.is_some()),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
        return Err(without_effect(flag, "--method kl"));
    }
    let mut settings = MeasureSettings { seed: protocol.seed, ..MeasureSettings::default() };
    settings.examples = limit("--max-examples", &protocol.max_examples)?;
    if !protocol.widths.is_empty() {
        let width = |bits: &Precision| match bits {
            Precision::Bits(width) => Ok(*width),
            Precision::Full => {
                let hint = "full precision costs nothing and need not be measured";
                Err(Error::new(ErrorKind::BadInput, "--widths: 32 is full precision".to_owned(), hint.to_owned()))
            }
        };
        settings.widths = protocol.widths.iter().map(width).collect::<Result<_>>()?;
    }
    Ok(settings)
}

pub(super) fn perform(options: &Options, sink: Option<&Arc<dyn Sink>>, quiet: bool) -> Result<Sensitivity> {
    if options.shard.is_some() {
        return Err(without_effect("--shard", "--method kl"));
    }
    let settings = settings(&options.protocol)?;
    let model = model::directory(options.model.as_deref().unwrap_or_default(), quiet)?;
    let measurement = Measurement {
        data: options.reading.source(&options.data, &model)?,
        model,
        settings,
        out: options.out.clone(),
        resume: options.resume,
    };
    let mut progress = Progress::shown_by(sink, "analyze", quiet).stoppable();
    let mut watch = |trial: Trial| {
        let Trial { site, bits, divergence, done, total } = trial;
        progress.at(done, total, &format!("trials  {site} at {bits} bits: divergence {}", number(divergence)));
        if progress.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let save_every = options.save_every.map_or(SAVE_EVERY, Duration::from_secs);
    Ok(measure(&measurement, &compute(options.threads)?, save_every, &mut watch)?)
}

/// A row for each layer with the sums over its matrices, then what the lowest width costs where it costs most.
pub(super) fn text(found: &Sensitivity, path: &str) -> String {
    let Some(measured) = &found.measured else { return String::new() };
    let layers = measured.sites.iter().map(|site| site.layer + 1).max().unwrap_or(0);
    let widths: Vec<BitCount> =
        measured.sites.first().iter().flat_map(|site| &site.widths).map(|own| own.bits).collect();
    let heading = widths.iter().map(|bits| format!("{bits} bits"));
    let mut table = Table::with_titles(std::iter::once(String::new()).chain(heading).chain(["most at".to_owned()]));
    for layer in 0..layers {
        let own = || measured.sites.iter().filter(|site| site.layer == layer);
        let sum = |index: usize| own().filter_map(|site| site.widths.get(index)).map(|own| own.divergence).sum::<f64>();
        let lowest = |site: &&MeasuredSite| site.widths.first().map_or(0.0, |own| own.divergence);
        let worst = own().max_by(|a, b| lowest(a).total_cmp(&lowest(b)));
        let worst = worst.map_or(String::new(), |site| site.site.clone());
        let cells = (0..widths.len()).map(|index| number(sum(index)));
        table.push(std::iter::once(format!("layer {layer}")).chain(cells).chain([worst]));
    }
    let examples = measured.examples;
    let mut text = format!(
        "divergence of the answers with one matrix at a time quantized, summed over the layer, on {examples} sequences\n{table}\n"
    );
    for line in agreements(found, layers) {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "{path}");
    text
}

/// How well the other measures in the file rank the layers, and their depth, judged by the divergence.
fn agreements(found: &Sensitivity, layers: usize) -> Vec<String> {
    let mut metrics = found.metrics();
    let Some(divergence) = metrics.pop_if(|metric| metric.name == Metric::Divergence.name()) else { return Vec::new() };
    metrics
        .push(LayerMetric { name: "depth".to_owned(), values: (0..layers).rev().map(|layer| layer as f64).collect() });
    let agreement = |LayerMetric { name, values }| {
        let correlation = rank_correlation(&values, &divergence.values)?;
        let early = if name == "depth" { " (early layers first)" } else { "" };
        Some(format!("rank correlation with {name}{early}: {correlation:.2}"))
    };
    metrics.into_iter().filter_map(agreement).collect()
}
