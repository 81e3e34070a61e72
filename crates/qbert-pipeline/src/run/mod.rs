//! From a checkpoint and data to a packed model and a report in one call: what `qbert run` does.
//!
//! A [`Job`] holds the settings; [`run`] takes it through the stages of [`Stage`]. All stages write into one directory, each
//! the same files as its own command. `run.json` records what every stage was made from. A stage is skipped if its results
//! are there and its inputs are the same. So the same job can be started again after a crash, after an edit of `plan.toml`
//! or with other settings, and does only what is left. The files do not depend on where it was interrupted.
//!
//! For a single step, call the function behind it: [`qbert_train::finetune::finetune`],
//! [`qbert_train::sensitivity::analyze`], [`crate::planning::make`], [`qbert_train::qat::run::quantize`],
//! [`crate::packing::Packing`], [`crate::packed_evaluation::evaluate_packed`].

mod analyze;
mod card;
mod check;
mod context;
mod evaluate;
mod figures;
mod finetune;
mod helpers;
mod pack;
mod plan;
mod quantize;
mod record;
mod report;
mod speed;
mod summary;
mod terms;
mod verify;

use std::fmt;
use std::path::{Path, PathBuf};

use qbert_documents::{Document, Summary};
use qbert_kernels::Compute;
use qbert_quant::{BitWidth, Precision};
use qbert_tasks::{DataSource, Evaluation};
use qbert_train::qat::student::QatSettings;
use qbert_train::{sensitivity, trainer};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::hashes;
use crate::planning::PlanRequest;
use context::Context;

pub use helpers::help;
pub use summary::Finished;

/// The record of what every stage was made from.
pub const RECORD: &str = "run.json";
/// The seconds that every stage took, for people: one line each time it is done.
pub const TIMES: &str = "times.jsonl";
/// The fine-tuned checkpoint's directory.
pub const FINETUNED: &str = "finetuned";
/// The plan.
pub const PLAN: &str = "plan.toml";
/// The quantized checkpoint's directory.
pub const CHECKPOINT: &str = "checkpoint";
/// The metrics of every stage.
pub const METRICS: &str = "metrics.json";
/// Where replaced results go.
pub const OLD: &str = "old";

/// A stage of a run, in the order they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// A head for the task: `finetuned/`.
    Finetune,
    /// The sensitivity of each layer: `sensitivity.json`.
    Analyze,
    /// Bits for every part: `plan.toml`.
    Plan,
    /// Quantization-aware training: `checkpoint/`.
    Quantize,
    /// One small file: `model.qbert`.
    Pack,
    /// The metrics of every model: `metrics.json`, `changes.json`, `speed.json`.
    Evaluate,
    /// The loss landscape and the attention's divergence: `landscape.json`, `attention-kl.json`.
    Figures,
    /// `summary.json`, `report.html` and the model card `README.md`.
    Report,
}

impl Stage {
    /// All stages in their order.
    pub const ALL: [Self; 8] = [
        Self::Finetune,
        Self::Analyze,
        Self::Plan,
        Self::Quantize,
        Self::Pack,
        Self::Evaluate,
        Self::Figures,
        Self::Report,
    ];

    /// What the stage is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finetune => "finetune",
            Self::Analyze => "analyze",
            Self::Plan => "plan",
            Self::Quantize => "quantize",
            Self::Pack => "pack",
            Self::Evaluate => "evaluate",
            Self::Figures => "figures",
            Self::Report => "report",
        }
    }

    /// Its place, counted from 1.
    pub fn number(self) -> usize {
        1 + Self::ALL.iter().position(|stage| *stage == self).unwrap_or(0)
    }

    /// Whether the stage can be stopped in the middle and continued. The others take little time and write nothing
    /// before they are done.
    pub fn keeps_state(self) -> bool {
        matches!(self, Self::Finetune | Self::Analyze | Self::Quantize)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What happens to a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// It starts or continues. If it was done before, the text says why it is repeated.
    Begins(Option<&'a str>),
    /// It is skipped, for this reason.
    Skipped(&'a str),
    /// It is done.
    Done,
}

/// Observes a run. [`trainer::Watch::stop`] is also called between stages.
pub trait Watch: trainer::Watch {
    /// A stage starts, ends or is skipped.
    fn stage(&mut self, stage: Stage, event: Event<'_>);
    /// The analysis made a pass over its sample.
    fn analysis(&mut self, step: sensitivity::Step, settings: &sensitivity::Settings);
    /// Some other work is at `done` of `total`.
    fn progress(&mut self, done: usize, total: usize, what: &str);
    /// A message for the user.
    fn say(&mut self, text: &str);
}

/// A watcher that says nothing and never asks the run to stop.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl trainer::Watch for Silent {
    fn step(&mut self, _: &trainer::StepRecord, _: usize) {}
    fn evaluated(&mut self, _: usize, _: &Evaluation, _: bool) {}
}

impl Watch for Silent {
    fn stage(&mut self, _: Stage, _: Event<'_>) {}
    fn analysis(&mut self, _: sensitivity::Step, _: &sensitivity::Settings) {}
    fn progress(&mut self, _: usize, _: usize, _: &str) {}
    fn say(&mut self, _: &str) {}
}

/// How a model is trained, in full precision or quantized.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Training {
    /// Epochs, rates and the like.
    pub settings: trainer::Settings,
    /// Take only the first examples.
    pub max_train: Option<usize>,
}

/// What decides the figures that only the report needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// The landscapes; of the most and the least sensitive layer.
    pub landscape: qbert_train::landscape::Settings,
    /// How far attention moved, on the dev data.
    pub attention: qbert_train::attention_kl::Settings,
}

impl Default for Figures {
    /// Enough for a picture: some seconds on a small model.
    fn default() -> Self {
        let stop = qbert_hessian::Stop { iterations: 20, tolerance: 0.1 };
        let landscape = qbert_train::landscape::Settings {
            points: 13,
            max_examples: Some(16),
            stop,
            ..qbert_train::landscape::Settings::default()
        };
        let attention = qbert_train::attention_kl::Settings { fraction: 1.0, max_examples: Some(256), seed: 1 };
        Self { landscape, attention }
    }
}

/// Everything a run is made from.
#[derive(Debug, Clone)]
pub struct Job {
    /// The model as it was named.
    pub model: String,
    /// Its directory.
    pub directory: PathBuf,
    /// The data to learn from.
    pub data: DataSource,
    /// The file that decides which epoch is the best, read as `data` is.
    pub dev: PathBuf,
    /// The run's directory.
    pub out: PathBuf,
    /// Fine-tuning; skipped if the model already has a head for the task.
    pub finetune: Training,
    /// Fine-tune even then.
    pub always_finetune: bool,
    /// The analysis; skipped if there is only one width.
    pub analysis: sensitivity::Settings,
    /// What the plan should be like. Without `high`, `size`, `budget` and `max_drop`, half of the layers get the higher of two
    /// widths. With `max_drop`, matrices are measured instead of eigenvalues, and larger plans are trained until one keeps
    /// the limit.
    pub plan: PlanRequest,
    /// A plan's file to use instead of making a plan.
    pub own_plan: Option<PathBuf>,
    /// Quantization-aware training.
    pub quantize: Training,
    /// What distinguishes it from fine-tuning: calibration, rounding, distillation.
    pub qat: QatSettings,
    /// Figures for the report; `None` for none.
    pub figures: Option<Figures>,
    /// Whether to measure the speed, the only result that differs from run to run.
    pub speed: bool,
    /// The licence of the result, for its card; the original model's if it is known.
    pub license: Option<String>,
    /// The languages of the result, for its card; the original model's if they are known.
    pub languages: Vec<String>,
    /// The command that started the job, for the record.
    pub command: String,
    /// Notes on these settings for readers of the results.
    pub notes: Vec<String>,
}

impl Job {
    /// A job with default settings: the task's recipes, ten runs of the analysis on 256 sequences, 2 and 3 bits by
    /// sensitivity, 4 bits for the word embedding, 8 for the other tables, and distillation.
    pub fn new(model: &str, directory: &Path, data: DataSource, dev: &Path, out: &Path) -> Self {
        let task = data.task;
        Self {
            model: model.to_owned(),
            directory: directory.to_owned(),
            data,
            dev: dev.to_owned(),
            out: out.to_owned(),
            finetune: Training { settings: qbert_train::finetune::recipe(task), max_train: None },
            always_finetune: false,
            analysis: sensitivity::Settings::default(),
            plan: PlanRequest {
                bits: [BitWidth::TWO, BitWidth::THREE].map(Precision::Bits).to_vec(),
                embedding_bits: [BitWidth::FOUR, BitWidth::EIGHT].map(|width| Precision::Bits(width).into()).to_vec(),
                ..PlanRequest::default()
            },
            own_plan: None,
            quantize: Training { settings: qbert_train::qat::run::recipe(task), max_train: None },
            qat: QatSettings::default(),
            figures: Some(Figures::default()),
            speed: true,
            license: None,
            languages: Vec::new(),
            command: "qbert run".to_owned(),
            notes: Vec::new(),
        }
    }

    /// The data that decides which epoch is the best.
    pub fn dev_data(&self) -> DataSource {
        self.data.with_files([&self.dev])
    }

    /// A file of the run.
    pub fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

/// Does whatever is left of a job. With ranks, this is for the one that writes; the others [`help`].
///
/// # Errors
/// A problem with model, data or settings, if possible before anything is written; a directory that holds another run or
/// something else; [`crate::ErrorKind::Interrupted`] if `watch` asked to stop: everything done so far is kept.
pub fn run(job: &Job, compute: &Compute, watch: &mut dyn Watch) -> Result<Finished> {
    let (checked, alone) = (check::check(job)?, compute.alone());
    let mut context = Context::open(job, (&alone, compute), watch, checked)?;
    for note in std::mem::take(&mut context.checked.notes) {
        context.watch.say(&note);
    }
    finetune::stage(&mut context)?;
    analyze::stage(&mut context)?;
    // A limit on the metric's drop may ask for another plan once the first is trained.
    loop {
        plan::stage(&mut context)?;
        quantize::stage(&mut context)?;
        if verify::is_settled(&mut context)? {
            break;
        }
    }
    pack::stage(&mut context)?;
    evaluate::stage(&mut context)?;
    figures::stage(&mut context)?;
    report::stage(&mut context)?;
    let search = verify::result(&context)?;
    helpers::Call::Done.send(compute);
    Finished::read(job, search)
}

/// The summary of a run that is done, as `summary.json` has it.
///
/// # Errors
/// When the file is not there or not a summary.
pub fn read_summary(directory: &Path) -> Result<Summary> {
    Ok(qbert_documents::read(&directory.join(summary::FILE))?)
}

/// A JSON file, whole or not at all.
fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::environment(format!("{}: cannot be written: {error}", path.display()), None))?;
    Ok(qbert_model::atomic::write_file(path, |writer| writeln!(writer, "{text}"))?)
}

/// Reads a document that an earlier stage wrote.
fn read_document<T: Document>(path: &Path) -> Result<T> {
    qbert_documents::read(path).map_err(|error| match error {
        qbert_documents::Error::Read { .. } => Error::from(error),
        damaged => damaged_file(damaged.to_string()),
    })
}

fn damaged_file(message: String) -> Error {
    Error::new(ErrorKind::BadInput, message, "delete it: the same command writes it again".to_owned())
}

/// Writes a document that other crates also read, whole or not at all.
fn write_document(path: &Path, document: &impl Document) -> Result<()> {
    let text = qbert_documents::to_json(document);
    Ok(qbert_model::atomic::write_file(path, |writer| writer.write_all(text.as_bytes()))?)
}
