//! `qbert finetune`: a checkpoint and a task's data in, a checkpoint with the task's head out.

use std::path::PathBuf;

use clap::Args;
use qbert::Result;
use qbert::train::finetune::{Finetune, finetune, recipe};
use qbert::train::trainer::Settings;

use super::progress::Progress;
use super::reading::Reading;
use super::{compute, json, model};

/// Fine-tune a checkpoint on a task; the best epoch's weights are kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert finetune --model minilm --task sst2 --train train.tsv --dev dev.tsv --out tuned
  qbert finetune --model ./bert --task ner --train a.conll --dev b.conll --lr 1e-4 --out tuned
  qbert finetune --model minilm --task sst2 --train train.tsv --dev dev.tsv --out tuned --resume

The output directory is a Hugging Face checkpoint with train.jsonl (every step) and metrics.json
beside it. The same seed gives the same bytes, whatever the number of threads.")]
pub(crate) struct Options {
    /// Checkpoint directory, hub id, or `minilm`.
    #[arg(long)]
    model: String,
    /// Files to learn from.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    train: Vec<PathBuf>,
    /// File to judge the epochs by.
    #[arg(long, value_name = "FILE")]
    dev: PathBuf,
    /// Directory to write.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    recipe: Recipe,
    /// Take only the first N training examples.
    #[arg(long, value_name = "N", help_heading = "Run")]
    max_train: Option<usize>,
    /// Threads; as many as there are cores if not given.
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
    /// Continue an interrupted run.
    #[arg(long, help_heading = "Run")]
    resume: bool,
    /// Print the outcome as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

/// What is not given is the task's own recipe.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recipe (the task's own if not given)")]
pub(crate) struct Recipe {
    /// Passes over the data.
    #[arg(long)]
    epochs: Option<usize>,
    /// Highest learning rate.
    #[arg(long)]
    lr: Option<f64>,
    /// Sequences per batch.
    #[arg(long)]
    batch: Option<usize>,
    /// Batches whose gradients make one step.
    #[arg(long)]
    accumulate: Option<usize>,
    /// Share of the steps that raise the learning rate.
    #[arg(long)]
    warmup: Option<f64>,
    /// Decoupled weight decay of matrices.
    #[arg(long)]
    weight_decay: Option<f64>,
    /// Longest gradient; 0 for no limit.
    #[arg(long)]
    clip: Option<f64>,
    /// Seed of everything random.
    #[arg(long)]
    seed: Option<u64>,
}

impl Recipe {
    /// What was given takes the place of the task's own.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        settings.epochs = self.epochs.unwrap_or(settings.epochs);
        settings.batch = self.batch.unwrap_or(settings.batch);
        settings.accumulate = self.accumulate.unwrap_or(settings.accumulate);
        settings.warmup = self.warmup.unwrap_or(settings.warmup);
        settings.seed = self.seed.unwrap_or(settings.seed);
        settings.optimizer.learning_rate = self.lr.unwrap_or(settings.optimizer.learning_rate);
        settings.optimizer.weight_decay = self.weight_decay.unwrap_or(settings.optimizer.weight_decay);
        settings.optimizer.clip = self.clip.unwrap_or(settings.optimizer.clip);
    }
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let task = options.reading.task()?;
    let mut settings = recipe(task);
    options.recipe.apply(&mut settings);
    let job = Finetune {
        model: model::directory(&options.model, quiet)?,
        task,
        train: options.train.clone(),
        dev: options.dev.clone(),
        out: options.out.clone(),
        read: options.reading.options(true)?,
        max_len: options.reading.max_len()?,
        max_train: options.max_train,
        settings,
        resume: options.resume,
    };
    let compute = compute(options.threads)?;
    let outcome = finetune(&job, &compute, &mut Progress::new("train", quiet))?;
    Ok(if options.json {
        json(&outcome)
    } else {
        let (epoch, steps, out) = (outcome.best_epoch, outcome.steps, options.out.display());
        format!("{out}: dev {} {:.2} after epoch {epoch} ({steps} steps)\n", outcome.metric, outcome.best)
    })
}
