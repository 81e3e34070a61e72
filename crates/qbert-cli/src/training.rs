//! The flags for training, shared by `finetune`, `quantize` and `run`: model, data, recipe, directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use qbert_kernels::Kernels;
use qbert_pipeline::Result;
use qbert_tasks::Task;
use qbert_train::finetune::Finetune;
use qbert_train::trainer::{Settings, TrainingPrecision, recorded_precision};

use super::reading::Reading;
use super::{kernel_error, model};

/// Model, data and recipe of a training run.
#[derive(Debug, Args)]
pub(crate) struct Training {
    /// Checkpoint directory, hub id, or `minilm`.
    #[arg(long, required = true)]
    pub(crate) model: Option<String>,
    /// Files to learn from.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pub(crate) train: Vec<PathBuf>,
    /// File that decides which epoch is the best.
    #[arg(long, required = true, value_name = "FILE")]
    pub(crate) dev: Option<PathBuf>,
    /// Directory to write.
    #[arg(long, required = true, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) recipe: Recipe,
    /// Take only the first N training examples.
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub(crate) max_train: Option<usize>,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    pub(crate) threads: Option<usize>,
    /// Seconds between two saves of the state; 0 saves after every step [default: 60].
    #[arg(long, value_name = "SECONDS", help_heading = "Run")]
    save_every: Option<u64>,
    /// Print the outcome as JSON.
    #[arg(long, help_heading = "Run")]
    pub(crate) json: bool,
}

/// The training recipe; the task has defaults for all of it.
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
    /// Batches per optimizer step.
    #[arg(long)]
    accumulate: Option<usize>,
    /// Share of the steps in which the learning rate rises.
    #[arg(long)]
    warmup: Option<f64>,
    /// Decoupled weight decay of matrices.
    #[arg(long)]
    weight_decay: Option<f64>,
    /// Largest gradient norm; 0 for no limit.
    #[arg(long)]
    clip: Option<f64>,
    /// Learning rate of the embedding tables, as a multiple of the others'; 0 keeps the tables as they are.
    #[arg(long, value_name = "MULTIPLE")]
    table_lr: Option<f64>,
    /// Seed of everything random.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Products of training in f32 or bf16 [default: bf16 if the CPU has instructions for it; a run that is continued keeps
    /// its own].
    #[arg(long, value_name = "f32|bf16")]
    precision: Option<TrainingPrecision>,
}

impl Recipe {
    /// Applies the given flags over the task's defaults.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        settings.epochs = self.epochs.unwrap_or(settings.epochs);
        settings.optimizer.learning_rate = self.lr.unwrap_or(settings.optimizer.learning_rate);
        self.apply_to_both(settings);
    }

    /// The same without epochs and learning rate, which the two trainings of a run set separately.
    pub(crate) fn apply_to_both(&self, settings: &mut Settings) {
        settings.batch = self.batch.unwrap_or(settings.batch);
        settings.accumulate = self.accumulate.unwrap_or(settings.accumulate);
        settings.warmup = self.warmup.unwrap_or(settings.warmup);
        settings.seed = self.seed.unwrap_or(settings.seed);
        settings.optimizer.weight_decay = self.weight_decay.unwrap_or(settings.optimizer.weight_decay);
        settings.optimizer.clip = self.clip.unwrap_or(settings.optimizer.clip);
        settings.optimizer.table_rate = self.table_lr.unwrap_or(settings.optimizer.table_rate);
    }
}

impl Recipe {
    /// The precision of a training in this directory.
    pub(crate) fn precision(&self, directory: &Path) -> Result<TrainingPrecision> {
        let usual = || Ok(TrainingPrecision::fastest(Kernels::detect().map_err(kernel_error)?));
        self.precision.or_else(|| recorded_precision(directory)).map_or_else(usual, Ok)
    }
}

impl Training {
    /// How often the state is saved, if that was given.
    pub(crate) fn save_every(&self) -> Option<Duration> {
        self.save_every.map(Duration::from_secs)
    }

    /// The output directory.
    pub(crate) fn out(&self) -> &Path {
        self.out.as_deref().unwrap_or(Path::new("."))
    }

    /// The training run that these flags describe, with the task's defaults for the rest.
    pub(crate) fn job(&self, recipe: fn(Task) -> Settings, resume: bool, quiet: bool) -> Result<Finetune> {
        let task = self.reading.task()?;
        let mut settings = recipe(task);
        self.recipe.apply(&mut settings);
        settings.precision = self.recipe.precision(self.out())?;
        let model = model::directory(self.model.as_deref().unwrap_or_default(), quiet)?;
        Ok(Finetune {
            data: self.reading.source(&self.train, &model)?,
            dev: self.dev.clone().unwrap_or_default(),
            out: self.out().to_owned(),
            model,
            max_train: self.max_train,
            settings,
            resume,
        })
    }
}
