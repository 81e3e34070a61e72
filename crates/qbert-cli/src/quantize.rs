//! `qbert quantize`: a fine-tuned checkpoint and a plan in, a quantized checkpoint out, trained or only calibrated.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use qbert_pipeline::Result;
use qbert_pipeline::packing::{self, Packing};
use qbert_pipeline::planning;
use qbert_quant::{Mask, RangeMethod};
use qbert_train::qat::distill::Distillation;
use qbert_train::qat::run::{Judging, Quantize, quantize_with, recipe};
use qbert_train::qat::student::QatSettings;
use qbert_train::qat::weights::WeightRanges;
use qbert_train::trainer::Outcome;

use super::progress::Progress;
use super::training::Training;
use super::{compute, plan, stop, versioned_json};

/// Quantize a fine-tuned checkpoint by a plan, with quantization-aware training.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert quantize --model tuned --plan plan.toml --task sst2 --train train.tsv --dev dev.tsv --out small
  qbert quantize … --epochs 0              ranges only: no training, done in seconds
  qbert quantize … --range min-max --weight-ranges follow --no-compensate --no-distill --dropout
                                           as the paper did it
  qbert quantize … --resume                continue after an interruption (Ctrl-C too), to the same bytes

The output directory is a Hugging Face checkpoint of the f32 masters with plan.toml, the weights'
ranges and the activations' beside it; `qbert eval` evaluates it as a quantized model. Its
model.qbert is the same model packed, for `qbert predict`.")]
pub(crate) struct Options {
    #[command(flatten)]
    training: Training,
    /// What is quantized how: a file that `qbert plan` wrote.
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    #[command(flatten)]
    ranges: Ranges,
    #[command(flatten)]
    teacher: Teacher,
    /// Keep the model of the last epoch. Otherwise the best on the dev data is kept, which may be the one before training.
    #[arg(long, help_heading = "Training")]
    keep_last: bool,
    /// Use dropout, as in fine-tuning.
    #[arg(long, help_heading = "Training")]
    dropout: bool,
    /// Continue an interrupted run.
    #[arg(long, help_heading = "Run")]
    resume: bool,
}

/// How ranges are found.
#[derive(Debug, Args)]
#[command(next_help_heading = "Ranges")]
struct Ranges {
    /// How ranges of all weights are found, instead of the plan's method: `mse`, `min-max` or `percentile:99.9`.
    #[arg(long, value_name = "METHOD")]
    range: Option<String>,
    /// Batches to learn activation ranges from before training.
    #[arg(long, value_name = "N")]
    range_batches: Option<usize>,
    /// Share of the steps after which activation ranges are frozen.
    #[arg(long, value_name = "SHARE")]
    range_freeze: Option<f64>,
    /// Round each weight to its nearest code, instead of compensating for the errors of the others.
    #[arg(long)]
    no_compensate: bool,
    /// Before training, fit each layer's output to that of the full-precision layer on the calibration data, in this many
    /// steps; needs no labels. Most useful with --epochs 0.
    #[arg(long, value_name = "STEPS", default_value_t = 0, hide_default_value = true)]
    fit_layers: usize,
    /// How weight ranges change in training: `learn` by gradient, at 10 times the learning rate or another multiple
    /// (`learn:3`), or `follow` the weights [default: learn].
    #[arg(long, value_name = "HOW")]
    weight_ranges: Option<WeightRanges>,
    /// Which weights get a gradient: those within their range, at most half a step outside, or all.
    #[arg(long, value_enum)]
    mask: Option<WhichWeights>,
}

/// Which weights get a gradient.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum WhichWeights {
    /// Those within their range.
    Clamp,
    /// Those at most half a step outside.
    HalfStep,
    /// All.
    None,
}

impl From<WhichWeights> for Mask {
    fn from(which: WhichWeights) -> Self {
        match which {
            WhichWeights::Clamp => Self::Clamp,
            WhichWeights::HalfStep => Self::HalfStep,
            WhichWeights::None => Self::None,
        }
    }
}

/// Distillation from the full-precision model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Distillation from the full-precision model")]
struct Teacher {
    /// Learn from the labels only.
    #[arg(long, conflicts_with = "distill")]
    no_distill: bool,
    /// Weights of the loss: labels, the teacher's answers, hidden states, attention.
    #[arg(long, value_name = "L,A,H,P", value_parser = weights)]
    distill: Option<[f64; 4]>,
    /// With --task embed: learn from the pairs of the training files, too, not from the texts alone. Pairs with a score
    /// should have cosines in the order of their scores, others should be nearest to each other.
    #[arg(long)]
    learn_pairs: bool,
    /// Temperature of the answers.
    #[arg(long, value_name = "T", conflicts_with = "no_distill")]
    temperature: Option<f64>,
}

/// Four numbers with commas between them.
fn weights(text: &str) -> std::result::Result<[f64; 4], String> {
    let numbers: Option<Vec<f64>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    let four = numbers.and_then(|numbers| <[f64; 4]>::try_from(numbers).ok());
    four.ok_or_else(|| "four numbers are needed, such as 1,1,1,1".to_owned())
}

impl Teacher {
    fn settings(&self) -> Option<Distillation> {
        if self.no_distill {
            return None;
        }
        let mut settings = Distillation::default();
        if let Some([labels, answers, hidden, attention]) = self.distill {
            settings = Distillation { labels, answers, hidden, attention, ..settings };
        }
        settings.temperature = self.temperature.unwrap_or(settings.temperature);
        Some(settings)
    }
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let training = &options.training;
    let mut plan = planning::read(&options.plan)?;
    if let Some(text) = &options.ranges.range {
        plan = plan.with_weight_range(plan::parse::<RangeMethod>("--range", text)?);
    }
    let usual = QatSettings::default();
    let settings = QatSettings {
        calibration: options.ranges.range_batches.unwrap_or(usual.calibration),
        freeze: options.ranges.range_freeze.unwrap_or(usual.freeze),
        compensate: !options.ranges.no_compensate,
        fit_steps: options.ranges.fit_layers,
        mask: options.ranges.mask.map_or(usual.mask, Mask::from),
        weight_ranges: options.ranges.weight_ranges.unwrap_or(usual.weight_ranges),
        learn_pairs: options.teacher.learn_pairs,
        dropout: options.dropout,
        distillation: options.teacher.settings(),
    };
    let job = Quantize { job: training.job(recipe, options.resume, quiet)?, plan, settings };
    let compute = compute(training.threads)?;
    let mut progress = Progress::new("quantize", quiet).stoppable().saving_every(training.save_every());
    let judging = Judging { keep_last: options.keep_last, ..Judging::default() };
    let outcome = quantize_with(&job, judging, &compute, &mut progress)?;
    drop(progress);
    if compute.writes() {
        let packing = Packing::trained(training.out(), job.job.data.task, &stop::command())?;
        packing.write(&training.out().join(packing::FILE_NAME))?;
    }
    Ok(if training.json { versioned_json("qbert-quantize", &outcome) } else { text(options, &outcome) })
}

fn text(options: &Options, outcome: &Outcome) -> String {
    let (out, metric, best) = (options.training.out().display(), outcome.metric, outcome.best);
    let how = match outcome.best_epoch {
        0 => "calibrated, not trained".to_owned(),
        epoch => format!("after epoch {epoch}, {} steps in all", outcome.steps),
    };
    let mut text = format!("{out}: dev {metric} {best:.2} ({how})\n");
    if let Some(before) = outcome.before {
        let drop = |value: f64| format!("{:+.2}", value - before.full_precision);
        text += &format!(
            "full precision {:.2}; quantized without training {:.2} ({}); now {best:.2} ({})\n",
            before.full_precision,
            before.post_training,
            drop(before.post_training),
            drop(best)
        );
    }
    text
}
