//! Quantizing from files: a fine-tuned checkpoint, a plan and the task's data in, a quantized checkpoint out.

use qbert_kernels::Compute;
use qbert_quant::Plan;
use qbert_tasks::{Features, Output, Task};

use super::Quantization;
use super::student::{QatSettings, Student};
use crate::error::{Error, Result};
use crate::evaluate::{self, Evaluation};
use crate::finetune::{Finetune, Prepared, TrainingData};
use crate::trainer::{Outcome, Run, Settings, Trainer, Watch};

/// Everything a run of quantization-aware training is made from.
#[derive(Debug, Clone)]
pub struct Quantize {
    /// The checkpoint (with the task's head), the data, the run's directory and the optimizer's settings. With 0 epochs
    /// ranges are calibrated and nothing is trained.
    pub job: Finetune,
    /// The plan.
    pub plan: Plan,
    /// Calibration, rounding and distillation.
    pub settings: QatSettings,
}

/// The settings of a task: those of its fine-tuning. Half the rate was too little for short runs, where few low-bit weights
/// reach the next code (125 steps of the quick-start at 2/3 bits did not improve on calibration), and twice to six times
/// the rate was worse on SST-2 at 2 bits.
pub fn recipe(task: Task) -> Settings {
    let mut settings = crate::finetune::recipe(task);
    settings.epochs = task.kind().profile().recipe.quantization_epochs;
    settings
}

/// Quantizes a checkpoint; `watch` sees every step.
///
/// # Errors
/// A problem with model, plan, data or settings, if possible before anything is written; a model without a head for the
/// task.
pub fn quantize(options: &Quantize, compute: &Compute, watch: &mut dyn Watch) -> Result<Outcome> {
    quantize_with(options, Judging::default(), compute, watch)
}

/// How a run is evaluated, for callers with many runs on the same model and data.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Judging {
    /// Evaluate on the first examples of the dev file only.
    pub max_dev: Option<usize>,
    /// The metric of the full-precision model, if it is known; otherwise it is evaluated.
    pub full_precision: Option<f64>,
    /// Keep the model of the last epoch instead of the best one.
    pub keep_last: bool,
}

/// The model in full precision, evaluated as [`quantize`] would; `progress` gets the number of sequences done, and of all.
///
/// # Errors
/// A problem with model or data.
pub fn full_precision(
    job: &Finetune,
    max_dev: Option<usize>,
    compute: &Compute,
    progress: impl FnMut(usize, usize),
) -> Result<Evaluation> {
    full_precision_on(job, TrainingData::read(job, max_dev)?, compute, progress)
}

/// As [`full_precision`], on data that was read earlier.
///
/// # Errors
/// As [`full_precision`]; data that was not read for this model.
pub fn full_precision_on(
    job: &Finetune,
    data: TrainingData,
    compute: &Compute,
    mut progress: impl FnMut(usize, usize),
) -> Result<Evaluation> {
    let (prepared, weights) = Prepared::with_data(job, data)?;
    let run = with_head(&prepared, job)?;
    let (mut done, total) = (0, run.dev.len());
    let scores = evaluate::scores(run.bert, compute, &weights, run.dev, |count| {
        done += count;
        progress(done, total);
    })?;
    let predictions = run.dev.predict(&scores, run.bert.outputs())?;
    Ok(run.dev.score(&predictions, run.labels)?)
}

/// Refuses settings that leave nothing to learn from this data.
fn check_labels(settings: &QatSettings, train: &Features) -> Result<()> {
    if settings.learn_pairs && !train.has_pairs() {
        let rule =
            "the training data has no pairs of texts: give files with two texts in a row, with or without a score";
        return Err(Error::Setting { name: "`qat.learn_pairs`", value: true.to_string(), rule });
    }
    if train.output() == Output::Vector && settings.distillation.is_none() && !settings.learn_pairs {
        let rule = "without the full-precision model, vectors can only be learned from pairs of texts";
        return Err(Error::Setting { name: "`qat.distillation`", value: "none".to_owned(), rule });
    }
    Ok(())
}

/// The run, if the checkpoint has a head of its own.
fn with_head<'a>(prepared: &'a Prepared, job: &'a Finetune) -> Result<Run<'a>> {
    prepared.why_headless(job).map_or_else(|| Ok(prepared.run(job)), Err)
}

/// As [`quantize`], with control over the evaluation.
///
/// # Errors
/// As [`quantize`].
pub fn quantize_with(
    options: &Quantize,
    judging: Judging,
    compute: &Compute,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    options.settings.check()?;
    quantize_on(options, TrainingData::read(&options.job, judging.max_dev)?, judging, compute, watch)
}

/// Quantizes and judges on data that was read earlier; [`Judging::max_dev`] has no effect then.
///
/// # Errors
/// As [`quantize`]; data that was not read for this model.
pub fn quantize_on(
    options: &Quantize,
    data: TrainingData,
    judging: Judging,
    compute: &Compute,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    options.settings.check()?;
    let (prepared, weights) = Prepared::with_data(&options.job, data)?;
    let run = with_head(&prepared, &options.job)?;
    check_labels(&options.settings, run.train)?;
    prepared.tell(&options.job, watch);
    let Prepared { checkpoint, bert, .. } = &prepared;
    let quantization = Quantization::new(options.plan.clone(), checkpoint.config(), bert.layout())?;
    let student = Student::new(quantization, options.settings.clone(), weights.values())?;
    let (settings, resume) = (options.job.settings.clone(), options.job.resume);
    let mut trainer = Trainer::for_student(run, settings, compute, weights, Some(student), resume)?;
    if let Some(value) = judging.full_precision {
        trainer.set_full_precision(value);
    }
    if judging.keep_last {
        trainer.keep_last();
    }
    trainer.run(watch)
}
