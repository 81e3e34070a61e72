//! `qbert compare`: two models on the same data. Does the small one still answer what the large one did?

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use qbert_documents::{Answer, Changes};
use qbert_pipeline::comparison::{Answered, Comparison, compare};
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_quant::shorten;
use qbert_runtime::{Session, SessionOptions};
use qbert_tasks::DataSource;

use super::progress::Progress;
use super::reading::Reading;
use super::table::file_size;
use super::{compute, model, one_line, print, versioned_json};

/// Compare a small model with the checkpoint it was made from.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert compare tuned small/model.qbert --task sst2 --data dev.tsv
  qbert compare tuned small --task conll03 --data eng.testa --changes 20
  qbert compare tuned small/model.qbert --task classify --data texts.csv --fail-below 99
  qbert compare tuned small/model.qbert --task sst2 --data dev.tsv --max-drop 0.5 --json

Either model may be a checkpoint (also a quantized one) or a packed file. The data may have no labels:
then there is no metric, but everything else. With --fail-below or --max-drop the exit code is 3 if the
limit is missed, after everything has been printed.")]
pub(crate) struct Options {
    /// The model to hold the other against: a checkpoint directory, a hub id, or a packed file.
    reference: String,
    /// The model in question: a packed file, a checkpoint directory, or a hub id.
    candidate: String,
    /// The data file.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// Fail if less than this share of the answers is the same, in percent.
    #[arg(long, value_name = "PERCENT", help_heading = "Limits")]
    fail_below: Option<f64>,
    /// Fail if the metric drops by more points than this.
    #[arg(long, value_name = "POINTS", help_heading = "Limits")]
    max_drop: Option<f64>,
    /// How many of the largest changes to show.
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Run")]
    changes: usize,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
    /// Print as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    check(options)?;
    let reference = answers(options, &options.reference, quiet)?;
    let candidate = answers(options, &options.candidate, quiet)?;
    let found = compare(&reference, &candidate, options.changes)?;
    let text = if options.json { versioned_json("qbert-comparison", &found) } else { text(&found) };
    match missed(options, &found)? {
        None => Ok(text),
        Some(missed) => {
            // The comparison is what explains the failure.
            print(&text);
            Err(Error::new(ErrorKind::MissedLimit, missed, None))
        }
    }
}

fn check(options: &Options) -> Result<()> {
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
    match (options.fail_below, options.max_drop) {
        (Some(percent), _) if !(0.0..=100.0).contains(&percent) => {
            refuse(format!("--fail-below is {percent}: it must be a percentage"), "give a number from 0 to 100")
        }
        (_, Some(points)) if !(points.is_finite() && points >= 0.0) => {
            refuse(format!("--max-drop is {points}: it must be a number of points"), "give a number such as 0.5")
        }
        _ => Ok(()),
    }
}

fn answers(options: &Options, name: &str, quiet: bool) -> Result<Answered> {
    let mut progress = Progress::new("compare", quiet);
    let watch = |done, total| progress.at(done, total, "");
    let source = |max_len: usize| -> Result<DataSource> {
        let (task, read) = (options.reading.task()?, options.reading.options(false)?);
        Ok(DataSource { task, files: vec![options.data.clone()], read, max_len })
    };
    let compute = compute(options.threads)?;
    if Path::new(name).is_file() {
        let session = Session::open(name, SessionOptions::default().threads(compute.threads().count()))?;
        let config = session.config();
        let max_len = options.reading.max_len_within(config.max_positions, config.embedder.as_ref())?;
        return Answered::by_packed(&session, &source(max_len)?, watch);
    }
    let directory = model::directory(name, quiet)?;
    Answered::by_checkpoint(&directory, &source(options.reading.max_len(&directory)?)?, &compute, watch)
}

/// The limit that the candidate misses, in words.
fn missed(options: &Options, found: &Comparison) -> Result<Option<String>> {
    let mut missed = Vec::new();
    let agreement = found.agreement.percent;
    if let Some(limit) = options.fail_below.filter(|&limit| agreement < limit) {
        missed.push(format!("--fail-below {limit}: {agreement:.2} % of the {} are the same", found.agreement.unit));
    }
    match (options.max_drop, &found.metric) {
        (Some(_), None) => {
            let hint = "leave it out, or give data with labels".to_owned();
            return Err(Error::new(ErrorKind::BadInput, "--max-drop: the data has examples without a label", hint));
        }
        (Some(limit), Some(metric)) if -metric.change > limit => {
            missed.push(format!("--max-drop {limit}: {} drops by {:.2} points", metric.name, -metric.change));
        }
        _ => {}
    }
    Ok((!missed.is_empty()).then(|| missed.join("; ")))
}

fn text(found: &Comparison) -> String {
    let mut text = String::new();
    for (role, model) in [("reference", &found.reference), ("candidate", &found.candidate)] {
        let _ = writeln!(text, "{role}    {} ({})", model.model, file_size(model.bytes));
    }
    let agreement = &found.agreement;
    let _ = writeln!(text, "data         {} examples ({})\n", found.examples, found.task);
    let _ = writeln!(
        text,
        "agreement    {:.2} %: {} of {} {} are the same",
        agreement.percent, agreement.equal, agreement.compared, agreement.unit
    );
    if let Some(metric) = &found.metric {
        let error = metric.standard_error.map(|error| format!(" ± {error:.2}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "{:<12} {:.2}, {:+.2}{error} points from {:.2}",
            metric.name, metric.candidate, metric.change, metric.reference
        );
    }
    match &found.logits {
        Some(logits) => {
            let _ = writeln!(
                text,
                "logits       differ by {:.4} on average and {:.4} at most; they are {:.4} large on average",
                logits.mean, logits.largest, logits.scale
            );
        }
        None => text += "logits       cannot be compared: the models split the texts differently\n",
    }
    if let Some(divergence) = found.divergence {
        let _ = writeln!(text, "divergence   {divergence:.5} nats on average");
    }
    text + &changes(&found.changes)
}

fn changes(found: &Changes) -> String {
    if found.examples.is_empty() {
        return String::new();
    }
    let known = found.examples.iter().any(|change| change.gold.is_some());
    let of_gold =
        if known { format!(": {} now right, {} now wrong", found.fixed, found.broken) } else { String::new() };
    let flipped = if found.flipped == 1 { "answer" } else { "answers" };
    let mut text = format!("\n{} {flipped} changed{of_gold}; the largest changes\n", found.flipped);
    for change in &found.examples {
        let answer = |answer: &Answer| match answer.confidence {
            Some(sure) => format!("{} {:.1} %", one_line(&answer.label), 100.0 * sure),
            None => one_line(&answer.label),
        };
        let gold = change.gold.as_ref().map(|gold| format!(" (right: {})", one_line(gold))).unwrap_or_default();
        let _ = writeln!(text, "  {} -> {}{gold}", answer(&change.before), answer(&change.after));
        let line = change.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "      {}", shorten(&line));
    }
    text
}
