//! Fine-tuning from files: a checkpoint and a task's data in, a checkpoint with the task's head out.

use std::path::{Path, PathBuf};

use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Parameters};
use qbert_tasks::features::qa::QaOptions;
use qbert_tasks::{Dataset, Kind, LabelSource, Labels, ReadOptions, Task, Tokenizer, read};

use crate::bert::Bert;
use crate::error::{Error, Result};
use crate::evaluate::{self, Evaluation, Predictions};
use crate::features::{Features, head_of};
use crate::loading::{Loaded, labels_of_head, usable};
use crate::optimizer::OptimizerSettings;
use crate::random::{Stream, mix};
use crate::trainer::{Outcome, Run, Settings, Trainer, Watch};

/// The settings of a task; a user's own task takes those of its kind. All four reached their targets on the real data
/// (`results/finetune-*.json`).
pub fn recipe(task: Task) -> Settings {
    let (epochs, batch, learning_rate) = match task.kind() {
        Kind::Classify => (3, 32, 8e-5),
        Kind::Pair => (3, 32, 1.5e-4),
        Kind::Ner => (5, 32, 3e-4),
        Kind::Qa => (2, 16, 2e-4),
    };
    let optimizer = OptimizerSettings { learning_rate, ..OptimizerSettings::default() };
    Settings { epochs, steps: None, batch, accumulate: 1, warmup: 0.06, optimizer, seed: 1 }
}

/// What a fine-tuning run is made from.
#[derive(Debug, Clone)]
pub struct Finetune {
    /// Checkpoint directory.
    pub model: PathBuf,
    /// What the data is for.
    pub task: Task,
    /// Files to learn from, read in this order.
    pub train: Vec<PathBuf>,
    /// File to judge by.
    pub dev: PathBuf,
    /// The run's directory.
    pub out: PathBuf,
    /// How to read the files.
    pub read: ReadOptions,
    /// Longest sequence in tokens.
    pub max_len: usize,
    /// Take only the first examples.
    pub max_train: Option<usize>,
    /// Epochs, rates and the like.
    pub settings: Settings,
    /// Continue an interrupted run.
    pub resume: bool,
}

/// Data files with their labels resolved.
pub(crate) fn features(
    task: Task,
    files: &[PathBuf],
    options: &ReadOptions,
    most: Option<usize>,
    tokenizer: &Tokenizer,
    max_len: usize,
) -> Result<Features> {
    let mut dataset = read(task, files, options)?;
    if let Some(most) = most {
        dataset.truncate(most);
    }
    let lengths = QaOptions { max_len, ..QaOptions::default() };
    Features::new(dataset, tokenizer, &lengths)
}

/// The head's labels for a data set: those of the data, or the two ends of a span.
fn labels_of(dataset: &Dataset) -> Result<Labels> {
    match dataset.labels() {
        Some(labels) => Ok(labels.clone()),
        None => Ok(Labels::new(["start", "end"])?),
    }
}

/// Model and data of a run, read and checked.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) bert: Bert,
    /// Parameters of the head that the checkpoint lacks and that were drawn.
    pub(crate) fresh: Vec<String>,
    /// Why the checkpoint's own head was not taken, though it is of the right kind.
    pub(crate) misfit: Option<String>,
    train: Features,
    dev: Features,
    labels: Labels,
    identity: serde_json::Value,
}

impl Prepared {
    /// What the trainer is given.
    pub(crate) fn run<'a>(&'a self, options: &'a Finetune) -> Run<'a> {
        Run {
            bert: &self.bert,
            labels: &self.labels,
            tokenizer: self.checkpoint.tokenizer_files(),
            train: &self.train,
            dev: &self.dev,
            out: &options.out,
            identity: self.identity.clone(),
        }
    }
}

/// Reads model and data, of the dev file the first `max_dev` examples; the weights on their own, because they are changed.
pub(crate) fn prepare(options: &Finetune, max_dev: Option<usize>) -> Result<(Prepared, Parameters)> {
    options.settings.check()?;
    let checkpoint = Checkpoint::open(&options.model)?;
    let config = checkpoint.config();
    check_length(options.max_len, config.max_positions)?;
    let tokenizer = Tokenizer::for_model(&options.model, config.vocab_size)?;
    let head = head_of(options.task.kind());
    let mut reading = options.read.clone();
    // A head for these labels keeps its order; whether a user's data has others shows when it is read with them.
    let (own, mut misfit) = (checkpoint.labels(), None);
    if checkpoint.head() == head && !own.is_empty() {
        match labels_of_head(options.task, &Labels::new(own)?, &reading.labels) {
            Ok(labels) => reading.labels = labels,
            Err(problem) => misfit = Some(problem),
        }
    }
    let train = features(options.task, &options.train, &reading, options.max_train, &tokenizer, options.max_len)?;
    let labels = labels_of(train.dataset())?;
    if train.dataset().labels().is_some() {
        reading.labels = LabelSource::Given(labels.clone());
    }
    let dev =
        features(options.task, std::slice::from_ref(&options.dev), &reading, max_dev, &tokenizer, options.max_len)?;

    usable(&train, &options.train, "learn from")?;
    usable(&dev, std::slice::from_ref(&options.dev), "judge by")?;
    let loaded = match misfit {
        None => checkpoint.load_for(head, labels.len())?,
        Some(_) => checkpoint.load_for_new_head(head, labels.len())?,
    };
    let (mut weights, fresh) = (loaded.parameters, loaded.fresh);
    draw_fresh(&mut weights, &fresh, config.initializer_range, options.settings.seed);
    let bert = Bert::new(config, std::sync::Arc::clone(weights.layout()))?;
    let identity = serde_json::json!({
        "task": options.task.name(),
        "model": fingerprint(weights.values().iter().map(|v| v.to_bits())),
        "train": data_fingerprint(&train)?,
        "dev": data_fingerprint(&dev)?,
        "max_len": options.max_len,
        "labels": labels.names(),
    });
    Ok((Prepared { checkpoint, bert, fresh, misfit, train, dev, labels, identity }, weights))
}

/// Fine-tunes as told; `watch` sees every step.
pub fn finetune(options: &Finetune, compute: &Compute, watch: &mut dyn Watch) -> Result<Outcome> {
    let Settings { epochs, steps, .. } = options.settings;
    if steps.unwrap_or(epochs) == 0 {
        let (name, rule) = ("`training.epochs`", "fine-tuning takes at least one; quantizing with 0 only calibrates");
        return Err(Error::Setting { name, value: "0".to_owned(), rule });
    }
    let (prepared, weights) = prepare(options, None)?;
    let (run, settings) = (prepared.run(options), options.settings.clone());
    Trainer::new(run, settings, compute, weights, options.resume)?.run(watch)
}

/// What an evaluation gives.
#[derive(Debug)]
pub struct Evaluated {
    /// The metrics.
    pub evaluation: Evaluation,
    /// The answers.
    pub predictions: Predictions,
    /// The data they are answers to.
    pub features: Features,
    /// The labels' names.
    pub labels: Labels,
}

/// A checkpoint directory to evaluate.
#[derive(Debug, Clone, Copy)]
pub struct Evaluate<'a> {
    /// The directory.
    pub model: &'a Path,
    /// Of a quantized checkpoint, the f32 masters rather than the quantized model.
    pub masters: bool,
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for Evaluate<'a> {
    fn from(model: &'a P) -> Self {
        Self { model: model.as_ref(), masters: false }
    }
}

/// Evaluates a checkpoint that has the task's head on a data file. A quantized checkpoint
/// ([`crate::qat::files`]) is evaluated as the quantized model it is, unless its masters are asked for.
pub fn evaluate<'a>(
    model: impl Into<Evaluate<'a>>,
    task: Task,
    (data, reading): (&Path, &ReadOptions),
    max_len: usize,
    compute: &Compute,
    progress: impl FnMut(usize, usize),
) -> Result<Evaluated> {
    let Evaluate { model, masters } = model.into();
    let files = [data.to_owned()];
    let loaded = Loaded::open(model, task, &files, reading, max_len)?;
    let (total, mut done, mut progress) = (loaded.features.len(), 0, progress);
    let quantization = if masters { None } else { loaded.as_quantized(model, compute)? };
    let weights = loaded.model_weights(quantization.as_ref());
    let scores = evaluate::scores_with(&loaded.bert, compute, weights, &loaded.features, |count| {
        done += count;
        progress(done, total);
    })?;
    let Loaded { bert, features, labels, .. } = loaded;
    let predictions = evaluate::predict(&features, &scores, bert.outputs())?;
    let evaluation = evaluate::score(&features, &predictions, &labels)?;
    Ok(Evaluated { evaluation, predictions, features, labels })
}

/// Refuses sequences longer than a model can take.
///
/// # Errors
/// [`Error::TooLong`].
pub fn check_length(max_len: usize, positions: usize) -> Result<()> {
    if max_len > positions {
        return Err(Error::TooLong { max_len, positions });
    }
    Ok(())
}

/// New head weights: normal with the model's own deviation, biases zero.
fn draw_fresh(weights: &mut Parameters, fresh: &[String], deviation: f32, seed: u64) {
    for (index, name) in fresh.iter().enumerate() {
        if let Some(values) = weights.named_mut(name).filter(|_| name.ends_with(".weight")) {
            Stream::new(seed, "head", index as u64).fill_normal(values, deviation);
        }
    }
}

pub(crate) fn fingerprint(words: impl Iterator<Item = u32>) -> String {
    format!("{:016x}", words.fold(0, |hash: u64, word| mix(hash ^ u64::from(word)).wrapping_add(1)))
}

/// What identifies a data set: its size and a hash of tokens and targets.
pub(crate) fn data_fingerprint(features: &Features) -> Result<serde_json::Value> {
    let all: Vec<usize> = (0..features.len()).collect();
    let batch = features.batch(&all, false)?;
    let words = batch.input_ids.iter().copied().chain(batch.offsets.iter().map(|&o| o as u32));
    let targets = format!("{:?}", features.batch(&all, true)?.targets);
    let words = words.chain(targets.bytes().map(u32::from));
    Ok(serde_json::json!({ "sequences": features.len(), "tokens": batch.tokens(), "hash": fingerprint(words) }))
}
