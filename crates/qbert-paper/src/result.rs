//! The result of a row: one JSON file with the figures and everything that decided them.
//!
//! Nothing in it depends on the machine's speed, the number of threads or interruptions, so making a row twice gives the
//! same file.

use std::collections::BTreeMap;
use std::path::Path;

use qbert_quant::{Embedding, Matrix, ModelShape, Plan, Precision};
use qbert_tasks::Task;
use qbert_tasks::metrics::outcomes::Outcomes;
use qbert_train::evaluate::{Details, Evaluation};
use qbert_train::qat::student::QatSettings;
use qbert_train::trainer::Settings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rows::RowTreatment;
use qbert_pipeline::{Error, ErrorKind, Result};

/// The `format` of a result.
const FORMAT: &str = "qbert-reproduce";
/// Its version.
const VERSION: u32 = 1;

/// Figures by the name of their metric, in percent: `accuracy`; `f1`; `em` and `f1`.
pub type Metrics = BTreeMap<String, f64>;

/// A file or checkpoint that figures come from, without its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// The sha256 of its content; for a checkpoint, of its weights.
    pub sha256: String,
}

/// Everything that decides the figures of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowSettings {
    /// The task.
    pub task: Task,
    /// The method, as `qbert_train::qat::method` names it.
    pub method: String,
    /// How the model of a row is treated.
    #[serde(flatten)]
    pub treatment: RowTreatment,
    /// The resulting widths.
    pub bits: Bits,
    /// Groups per encoder matrix: a number, `head` or `neuron`.
    pub groups: String,
    /// Steps or epochs, batch, rates and the like; none for the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Settings>,
    /// What else quantization-aware training decides; none for the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QatSettings>,
    /// Longest sequence in tokens.
    pub max_len: usize,
    /// The fine-tuned model.
    pub model: Source,
    /// One sha256 of everything in the checkpoint that decides what it computes: configuration and tokenizer, too.
    /// Results of an earlier version have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_files: Option<String>,
    /// Training files; none for the baseline.
    pub train: Vec<Source>,
    /// The dev file.
    pub dev: Source,
    /// Only the first training examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_train: Option<usize>,
    /// Only the first dev examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dev: Option<usize>,
    /// How files were read, if not by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<String>,
}

impl RowSettings {
    /// The first setting that would change the figures, in words; the names of files do not count.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let both_know = self.model_files.is_some() && other.model_files.is_some();
        // Through text, as a file is: then equal numbers are equal.
        let comparable = |settings: &Self| {
            let model_files = settings.model_files.clone().filter(|_| both_know);
            let text = serde_json::to_string(&Self { model_files, ..settings.clone() }).unwrap_or_default();
            without_names(serde_json::from_str(&text).unwrap_or_default())
        };
        first_difference("", &comparable(self), &comparable(other))
    }
}

fn without_names(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            if map.contains_key("sha256") {
                map.remove("name");
            }
            map.values_mut().for_each(|inner| *inner = without_names(inner.take()));
        }
        Value::Array(all) => all.iter_mut().for_each(|inner| *inner = without_names(inner.take())),
        _ => {}
    }
    value
}

fn first_difference(at: &str, one: &Value, other: &Value) -> Option<String> {
    let (Value::Object(a), Value::Object(b)) = (one, other) else {
        return (one != other).then(|| format!("{at} is {one} there and {other} now"));
    };
    let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
    keys.filter_map(|key| {
        let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        first_difference(&at, a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null))
    })
    .next()
}

/// The widths of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits {
    /// Self-attention, by layer.
    pub attention: Vec<Precision>,
    /// Feed-forward network, by layer.
    pub feed_forward: Vec<Precision>,
    /// Word embedding.
    pub word: Precision,
    /// Position embedding.
    pub position: Precision,
    /// Activations.
    pub activations: Precision,
}

impl Bits {
    pub(super) fn of(plan: &Plan) -> Self {
        let by_layer = |matrix| plan.layers().iter().map(|layer| layer.get(matrix).bits).collect();
        Self {
            attention: by_layer(Matrix::Query),
            feed_forward: by_layer(Matrix::Intermediate),
            word: plan.embedding().get(Embedding::Word).bits,
            position: plan.embedding().get(Embedding::Position).bits,
            activations: plan.activation().bits,
        }
    }
}

/// The extent of quantization-aware training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// Optimizer steps.
    pub steps: usize,
    /// Passes over the data.
    pub epochs: f64,
    /// Sequences in the training data.
    pub sequences: u64,
}

/// The figures after an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Counted from 1; the last may be part of one.
    pub epoch: usize,
    /// The figures.
    pub metrics: Metrics,
}

/// Points below full precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drops {
    /// Without training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_training: Option<Metrics>,
    /// After the best epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Metrics>,
    /// After the last epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Metrics>,
}

/// How large the model is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sizes {
    /// As the paper counts.
    pub paper_mib: PaperMib,
    /// The packed file, measured.
    pub file_bytes: u64,
    /// All parameters in f32.
    pub f32_bytes: u64,
    /// How many times smaller than full precision.
    pub compression: Compression,
}

/// The paper's "Size" and its parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PaperMib {
    /// "Size".
    pub total: f64,
    /// "Size-w/o-e".
    pub encoder: f64,
    /// The difference.
    pub embedding: f64,
}

/// How many times smaller than full precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compression {
    /// The encoder as the paper counts.
    pub encoder: f64,
    /// Encoder and embedding as the paper counts.
    pub total: f64,
    /// The packed file against all parameters in f32.
    pub file: f64,
}

/// The paper's size of a plan, and how many times smaller than full precision the encoder and the whole are.
pub(super) fn paper_sizes(shape: &ModelShape, plan: &Plan, full: &Plan) -> Result<(PaperMib, [f64; 2])> {
    let (size, whole) = (shape.paper_size(plan)?, shape.paper_size(full)?);
    let mib = PaperMib { total: size.total(), encoder: size.without_embedding(), embedding: size.embedding() };
    let ratios = [whole.without_embedding() / size.without_embedding(), whole.total() / size.total()];
    Ok((mib, ratios))
}

/// A row's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    format: String,
    version: u32,
    /// The row's name.
    pub id: String,
    /// The command that makes it.
    pub command: String,
    /// The program's version.
    pub qbert: String,
    /// Everything that decides the figures.
    pub settings: RowSettings,
    /// Where the order of the layers comes from, if it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<Source>,
    /// The extent of training, if there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// The metric that decides which epoch is the best.
    pub metric: String,
    /// Examples that were scored.
    pub examples: usize,
    /// What the metric is a share of: examples, questions, or entities.
    pub counted: usize,
    /// The model before quantization.
    pub full_precision: Metrics,
    /// Quantized, not trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_training: Option<Metrics>,
    /// After each epoch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<Epoch>,
    /// The best epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Epoch>,
    /// The last epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Epoch>,
    /// Points below full precision.
    pub drop: Drops,
    /// The mean divergence of the last epoch's answers from full precision on the dev set, in nats. It tells models apart
    /// that the metric cannot. Results of an earlier version, and those on a part of the dev set, have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<f64>,
    /// Sizes.
    pub sizes: Sizes,
    /// The outcome of each dev example; results of an earlier version have none.
    #[serde(default, skip_serializing_if = "RowOutcomes::is_empty")]
    pub outcomes: RowOutcomes,
}

/// The outcome of each dev example.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RowOutcomes {
    /// With the model before quantization; only in the baseline's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_precision: Option<Outcomes>,
    /// Quantized, not trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_training: Option<Outcomes>,
    /// After the last epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Outcomes>,
}

impl RowOutcomes {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The parts of a result.
pub(super) struct Parts {
    pub(super) id: String,
    pub(super) command: String,
    pub(super) settings: RowSettings,
    pub(super) sensitivity: Option<Source>,
    pub(super) training: Option<Training>,
    pub(super) full_precision: Measured,
    /// By epoch; 0 is before training.
    pub(super) evaluations: BTreeMap<usize, Measured>,
    pub(super) divergence: Option<f64>,
    pub(super) sizes: Sizes,
}

impl From<Parts> for RowResult {
    fn from(parts: Parts) -> Self {
        let Parts { id, command, settings, sensitivity, training, full_precision, evaluations, divergence, sizes } =
            parts;
        let Measured { metric, examples, counted, metrics: full, outcomes } = full_precision;
        let post_training = evaluations.get(&0).map(|measured| measured.metrics.clone());
        let after_training = evaluations.last_key_value().filter(|(epoch, _)| **epoch > 0);
        let outcomes = RowOutcomes {
            full_precision: outcomes,
            post_training: evaluations.get(&0).and_then(|measured| measured.outcomes.clone()),
            last: after_training.and_then(|(_, measured)| measured.outcomes.clone()),
        };
        let trained = evaluations.into_iter().filter(|(epoch, _)| *epoch > 0);
        let epochs: Vec<Epoch> = trained.map(|(epoch, own)| Epoch { epoch, metrics: own.metrics }).collect();
        let value = |epoch: &Epoch| epoch.metrics.get(&metric).copied().unwrap_or(0.0);
        // Of equally good epochs the first, as the trainer keeps it.
        let best = epochs.iter().rev().max_by(|a, b| value(a).total_cmp(&value(b))).cloned();
        let last = epochs.last().cloned();
        let below = |metrics: &Metrics| -> Metrics {
            let own = |(name, value): (&String, &f64)| (name.clone(), full.get(name).unwrap_or(value) - value);
            metrics.iter().map(own).collect()
        };
        let drop = Drops {
            post_training: post_training.as_ref().map(below),
            best: best.as_ref().map(|epoch| below(&epoch.metrics)),
            last: last.as_ref().map(|epoch| below(&epoch.metrics)),
        };
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            id,
            command,
            qbert: env!("CARGO_PKG_VERSION").to_owned(),
            settings,
            sensitivity,
            training,
            metric,
            examples,
            counted,
            full_precision: full,
            post_training,
            epochs,
            best,
            last,
            drop,
            divergence,
            sizes,
            outcomes,
        }
    }
}

impl RowResult {
    /// Reads a result.
    ///
    /// # Errors
    /// When the file cannot be read or has another format or version.
    pub fn read(path: &Path) -> Result<Self> {
        let hint = "delete the file: its row is then made again";
        let result: Self = read_json(path, "result of a row", hint)?;
        check_format(path, (&result.format, result.version), (FORMAT, VERSION), hint)?;
        Ok(result)
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        write_json(path, self)
    }

    /// The full-precision model's figures, as they were measured; its outcomes stay in its own file.
    pub(super) fn measured_full(&self) -> Measured {
        let Self { metric, examples, counted, full_precision, .. } = self.clone();
        Measured { metric, examples, counted, metrics: full_precision, outcomes: None }
    }
}

/// Reads a JSON file; errors name `what` it should hold and give the `hint`.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path, what: &str, hint: &str) -> Result<T> {
    let bytes = std::fs::read(path).map_err(io(path, "read"))?;
    serde_json::from_slice(&bytes).map_err(|error| damaged(path, format!("not a {what}: {error}"), hint))
}

/// Refuses a file of another format or version.
pub(super) fn check_format(path: &Path, found: (&str, u32), known: (&str, u32), hint: &str) -> Result<()> {
    if found == known {
        return Ok(());
    }
    let ((format, version), (own, newest)) = (found, known);
    Err(damaged(path, format!("{format} version {version}; this program reads {own} version {newest}"), hint))
}

fn damaged(path: &Path, problem: String, hint: &str) -> Error {
    Error::new(ErrorKind::BadInput, format!("{}: {problem}", path.display()), hint.to_owned())
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| {
        Error::new(ErrorKind::Environment, format!("{}: cannot be written: {error}", path.display()), None)
    })?;
    Ok(qbert_model::atomic::write_file(path, |writer| writeln!(writer, "{text}"))?)
}

pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| qbert_model::Error::Io { path, action, source }.into()
}

/// The part of an evaluation that results keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) metric: String,
    pub(super) examples: usize,
    pub(super) counted: usize,
    pub(super) metrics: Metrics,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) outcomes: Option<Outcomes>,
}

impl From<&Evaluation> for Measured {
    fn from(evaluation: &Evaluation) -> Self {
        let Evaluation { metric, value, examples, details, outcomes, .. } = evaluation;
        let mut metrics = Metrics::from([((*metric).to_owned(), *value)]);
        let mut counted = *examples;
        match details {
            Details::Classification(_)
            | Details::Values(_)
            | Details::Similarity(_)
            | Details::Retrieval(_)
            | Details::Probe(_) => {}
            Details::MultiLabel(report) => counted = report.overall.support,
            Details::Entities(report) => counted = report.overall.support,
            Details::Squad(report) => {
                metrics.insert("em".to_owned(), report.exact_match);
            }
        }
        let outcomes = Some(outcomes.clone());
        Self { metric: (*metric).to_owned(), examples: *examples, counted, metrics, outcomes }
    }
}
