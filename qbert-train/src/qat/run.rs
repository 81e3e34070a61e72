//! Quantizing from files: a fine-tuned checkpoint, a plan and the task's data in, a quantized checkpoint out.

use qbert_kernels::Compute;
use qbert_quant::Plan;
use qbert_tasks::{Kind, Task};

use super::Quantization;
use super::student::{QatSettings, Student};
use crate::error::Result;
use crate::finetune::{Finetune, Prepared, prepare};
use crate::trainer::{Outcome, Settings, Trainer, Watch};

/// What a run of quantization-aware training is made from.
#[derive(Debug, Clone)]
pub struct Quantize {
    /// The checkpoint (with the task's head), the data, the run's directory and the optimizer's settings. With 0 epochs
    /// ranges are calibrated and nothing is trained.
    pub job: Finetune,
    /// What is quantized how.
    pub plan: Plan,
    /// What else there is to decide.
    pub settings: QatSettings,
}

/// The settings of a task: those of its fine-tuning at half the rate, since the model has learned the task already.
/// A starting point; not measured yet.
pub fn recipe(task: Task) -> Settings {
    let mut settings = crate::finetune::recipe(task);
    settings.optimizer.learning_rate /= 2.0;
    settings.epochs = if task.kind() == Kind::Qa { 2 } else { 3 };
    settings
}

/// Quantizes as told; `watch` sees every step.
///
/// # Errors
/// Whatever is wrong with model, plan, data or settings, before anything is written where possible; a model without a
/// head for the task.
pub fn quantize(options: &Quantize, compute: &Compute, watch: &mut dyn Watch) -> Result<Outcome> {
    options.settings.check()?;
    let (prepared, weights) = prepare(&options.job)?;
    let Prepared { checkpoint, bert, fresh, .. } = &prepared;
    if let Some(name) = fresh.first() {
        let problem = format!("the checkpoint has no `{name}`: fine-tune it for this task before it is quantized");
        return Err(qbert_model::Error::Head { path: options.job.model.clone(), problem }.into());
    }
    let quantization = Quantization::new(options.plan.clone(), checkpoint.config(), bert.layout())?;
    let student = Student::new(quantization, options.settings.clone(), weights.values())?;
    let (settings, resume) = (options.job.settings.clone(), options.job.resume);
    let run = prepared.run(&options.job);
    Trainer::for_student(run, settings, compute, weights, Some(student), resume)?.run(watch)
}
