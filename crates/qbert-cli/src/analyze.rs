//! `qbert analyze`: the sensitivity of every encoder layer, by the top eigenvalue of its Hessian or by measurement.

mod kl;

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_quant::Precision;
use qbert_train::sensitivity::{self, Analysis, FILE, Method, Outcome, Sensitivity, Settings, Shard, Step};

use super::progress::{Progress, Sink};
use super::reading::{Reading, limit};
use super::table::Table;
use super::{compute, model};

/// Measure how sensitive every layer is to quantization (top Hessian eigenvalues, Ω; or by quantizing it).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert analyze --model tuned --task sst2 --data train.tsv --out analysis
  qbert analyze --model tuned --task sst2 --data train.tsv --out analysis --resume
  qbert analyze --model tuned --task sst2 --data train.tsv --out analysis --shard 1/4   on each of 4 machines
  qbert analyze --merge --out analysis                                                 then once
  qbert analyze --model tuned --task sst2 --data dev.tsv --out analysis --method kl    measured, matrix by matrix
  qbert plan --model tuned --sensitivity analysis/sensitivity.json --bits 2,3 --high 3 --out plan.toml

The model must be fine-tuned for the task; the data is what it was trained on, or with --method kl data that
it was not trained on. Both kinds of figures in one --out directory go into one file. The paper's own protocol
is --fraction 0.1 --runs 10 --max-examples all --method power, which takes hours on two cores (docs/guide/analyze.md).")]
#[command(mut_arg("task", |task| task.required(false).required_unless_present("merge")))]
pub(crate) struct Options {
    /// Fine-tuned checkpoint: a directory or hub id.
    #[arg(long, required_unless_present = "merge")]
    model: Option<String>,
    /// Data files.
    #[arg(long, required_unless_present = "merge", num_args = 1.., value_name = "FILE")]
    data: Vec<PathBuf>,
    /// Directory to write sensitivity.json to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    protocol: Protocol,
    /// Do only this part of runs × layers: part/parts, such as 2/4.
    #[arg(long, value_name = "PART/PARTS", help_heading = "Run", conflicts_with = "merge")]
    shard: Option<String>,
    /// Join the parts of all shards: those given, or those in --out.
    #[arg(long, num_args = 0.., value_name = "FILE", help_heading = "Run", conflicts_with_all = ["model", "data"])]
    merge: Option<Vec<PathBuf>>,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
    /// Seconds between two saves of the state; 0 saves after every pass [default: 30].
    #[arg(long, value_name = "SECONDS", help_heading = "Run")]
    save_every: Option<u64>,
    /// Continue an interrupted analysis.
    #[arg(long, help_heading = "Run")]
    resume: bool,
    /// Print all results as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Protocol")]
struct Protocol {
    /// Samples of the data, each with its own starting vectors [default: 10].
    #[arg(long)]
    runs: Option<usize>,
    /// Share of the data in a sample [default: 0.1].
    #[arg(long)]
    fraction: Option<f64>,
    /// Most sequences in a sample, or `all` for no limit.
    #[arg(long, default_value = "256")]
    max_examples: String,
    /// Most products per eigenvalue [default: 50].
    #[arg(long)]
    iterations: Option<usize>,
    /// Relative error of an eigenvalue at which the iteration stops [default: 0.01].
    #[arg(long)]
    tol: Option<f64>,
    /// power (the paper's Alg. 1), lanczos (fewer products, both ends of the spectrum), or kl (quantize one matrix at a
    /// time and measure how far the answers move).
    #[arg(long, value_enum, default_value_t = MethodName::Lanczos)]
    method: MethodName,
    /// Random vectors per run and layer for the trace of the Hessian (HAWQ-V2's sensitivity) [default: 0, none].
    #[arg(long, value_name = "N")]
    trace: Option<usize>,
    /// With --method kl: widths to try [default: 2,3,4,8].
    #[arg(long, value_name = "BITS,BITS", value_delimiter = ',')]
    widths: Vec<Precision>,
    /// Seed of samples and starting vectors.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum MethodName {
    Power,
    Lanczos,
    Kl,
}

impl Protocol {
    fn settings(&self, method: Method) -> Result<Settings> {
        if !self.widths.is_empty() {
            return Err(without_effect("--widths", "--method power and lanczos"));
        }
        let (usual, max_examples) = (Settings::default(), limit("--max-examples", &self.max_examples)?);
        let stop = qbert_hessian::Stop {
            iterations: self.iterations.unwrap_or(usual.stop.iterations),
            tolerance: self.tol.unwrap_or(usual.stop.tolerance),
        };
        Ok(Settings {
            runs: self.runs.unwrap_or(usual.runs),
            fraction: self.fraction.unwrap_or(usual.fraction),
            max_examples,
            method,
            stop,
            trace: self.trace.unwrap_or(usual.trace),
            seed: self.seed,
        })
    }
}

impl Options {
    /// Whether several ranks do this together: joining parts is a moment's work of one.
    pub(crate) fn is_shared_by_ranks(&self) -> bool {
        self.merge.is_none()
    }
}

fn without_effect(flag: &str, with: &str) -> Error {
    Error::new(ErrorKind::BadInput, format!("{flag} has no effect with {with}"), "leave it out".to_owned())
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    if let Some(parts) = &options.merge {
        let parts = if parts.is_empty() { sensitivity::parts_in(&options.out)? } else { parts.clone() };
        return show(&sensitivity::merge(&parts, &options.out)?, options);
    }
    match perform(options, None, quiet)? {
        Outcome::Part(path) => Ok(format!("{}\n", path.display())),
        Outcome::Whole(found) => show(&found, options),
    }
}

/// Does the analysis; its progress goes to stderr, or to a program that shows it itself.
pub(crate) fn perform(options: &Options, sink: Option<&Arc<dyn Sink>>, quiet: bool) -> Result<Outcome> {
    let method = match options.protocol.method {
        MethodName::Kl => {
            super::ranks::refuse("--method kl")?;
            return kl::perform(options, sink, quiet).map(|found| Outcome::Whole(Box::new(found)));
        }
        MethodName::Power => Method::Power,
        MethodName::Lanczos => Method::Lanczos,
    };
    let shard = options.shard.as_deref().map(str::parse).transpose()?;
    let model = model::directory(options.model.as_deref().unwrap_or_default(), quiet)?;
    let analysis = Analysis {
        data: options.reading.source(&options.data, &model)?,
        model,
        settings: options.protocol.settings(method)?,
        shard: shard.unwrap_or(Shard::WHOLE),
        out: options.out.clone(),
        resume: options.resume,
    };
    let mut progress = Progress::shown_by(sink, "analyze", quiet).stoppable();
    let mut watch = |step: Step| {
        progress.analysis(&step, &analysis.settings);
        if progress.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let save_every = options.save_every.map_or(sensitivity::SAVE_EVERY, Duration::from_secs);
    Ok(sensitivity::analyze_saving(&analysis, &compute(options.threads)?, save_every, &mut watch)?)
}

fn show(found: &Sensitivity, options: &Options) -> Result<String> {
    if options.json {
        return Ok(qbert_documents::to_json(found));
    }
    if matches!(options.protocol.method, MethodName::Kl) && options.merge.is_none() {
        return Ok(kl::text(found, &options.out.join(FILE).display().to_string()));
    }
    let path = options.out.join(FILE);
    Ok(text(found, &sensitivity::settings_of(found, &path)?, &path.display().to_string()))
}

fn text(found: &Sensitivity, settings: &Settings, path: &str) -> String {
    let mut table = Table::new(["", "rank", "omega", "mean", "std", "lowest", "iterations"]);
    for layer in &found.layers {
        let rank = found.ranking.iter().position(|&index| index == layer.layer).map_or(0, |place| place + 1);
        let lowest = layer.lowest.iter().copied().reduce(f64::min);
        let most = layer.iterations.iter().max().copied().unwrap_or(0);
        table.row([
            format!("layer {}", layer.layer),
            rank.to_string(),
            number(layer.omega),
            number(layer.mean),
            number(layer.std),
            lowest.map_or("-".to_owned(), number),
            format!("up to {most}"),
        ]);
    }
    let examples = found.runs.iter().map(|run| run.examples).max().unwrap_or(0);
    let sequences = found.subject.data.get("sequences").and_then(serde_json::Value::as_u64).unwrap_or(0) as usize;
    let (used, asked) = settings.examples(sequences);
    let mut text = format!(
        "top Hessian eigenvalue per layer, {} runs on {examples} of {sequences} sequences each, {}\n{table}",
        settings.runs, settings.method
    );
    let left_out = found.subject.data.get("left_out");
    let part = |key: &str| left_out.and_then(|left_out| left_out.get(key));
    if let (Some(count), Some(why)) = (part("count"), part("why").and_then(serde_json::Value::as_str)) {
        let _ = writeln!(text, "\n{count} left out: {why}");
    }
    if used < asked {
        let _ = writeln!(
            text,
            "\na run looks at {used} of the {asked} sequences that --fraction asks for (--max-examples)"
        );
    }
    if let Some(agreement) = found.agreement_of_halves {
        let _ =
            writeln!(text, "ranking of the first half of the runs against the second: {agreement:.2} (1 = the same)");
    }
    for warning in &found.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    let _ = writeln!(text, "{path}");
    text
}

/// Four significant digits: eigenvalues span many orders of magnitude.
fn number(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (3 - value.abs().log10().floor() as i32).clamp(0, 9) };
    format!("{value:.*}", digits as usize)
}
