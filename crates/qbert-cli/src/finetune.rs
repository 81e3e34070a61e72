//! `qbert finetune`: a checkpoint and a task's data in, a checkpoint with the task's head out.

use clap::Args;
use qbert_pipeline::Result;
use qbert_train::finetune::{finetune, recipe};

use super::progress::Progress;
use super::training::Training;
use super::{compute, versioned_json};

/// Fine-tune a checkpoint on a task; the best epoch's weights are kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert finetune --model minilm --task sst2 --train train.tsv --dev dev.tsv --out tuned
  qbert finetune --model ./bert --task ner --train a.conll --dev b.conll --lr 1e-4 --out tuned
  qbert finetune --model minilm --task sst2 --train train.tsv --dev dev.tsv --out tuned --resume

The output directory is a Hugging Face checkpoint with train.jsonl (every step) and metrics.json
beside it. The same seed gives the same bytes, whatever the number of threads. Ctrl-C saves the
state.")]
pub(crate) struct Options {
    #[command(flatten)]
    training: Training,
    /// Continue an interrupted run.
    #[arg(long, help_heading = "Run")]
    resume: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let training = &options.training;
    let job = training.job(recipe, options.resume, quiet)?;
    let compute = compute(training.threads)?;
    let mut progress = Progress::new("train", quiet).stoppable().saving_every(training.save_every());
    let outcome = finetune(&job, &compute, &mut progress)?;
    Ok(if training.json {
        versioned_json("qbert-finetune", &outcome)
    } else {
        let (epoch, steps, out) = (outcome.best_epoch, outcome.steps, training.out().display());
        format!("{out}: dev {} {:.2} after epoch {epoch} ({steps} steps)\n", outcome.metric, outcome.best)
    })
}
