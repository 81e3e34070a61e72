//! A head for the task if the model has none: `finetuned/`, as `qbert finetune` writes it.

use qbert_tasks::LabelSource;
use qbert_train::finetune::{Finetune, TrainingData, finetune_on};
use serde_json::json;

use super::context::{Context, Step};
use super::helpers::Call;
use super::{FINETUNED, Job, Stage, Training, hashes};
use crate::error::{Error, Result};

/// A training run of the job, which continues if it was started before.
pub(super) fn training(job: &Job, training: &Training, model: std::path::PathBuf, out: &str) -> Finetune {
    Finetune {
        model,
        data: job.data.clone(),
        dev: job.dev.clone(),
        out: job.path(out),
        max_train: training.max_train,
        settings: training.settings.clone(),
        resume: true,
    }
}

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    if !context.finetunes() {
        context.pass_over(Stage::Finetune, "not needed: the model has a head for this task");
        return Ok(());
    }
    let job = context.job;
    let step = Step { stage: Stage::Finetune, inputs: json!(job.finetune), replaces: &[FINETUNED] };
    context.perform(step, |context| {
        let mut run = training(job, &job.finetune, job.directory.clone(), FINETUNED);
        // The labels of the data, rather than those of a head that the model may have for another task.
        if let Some(labels) = &context.checked.labels {
            run.data.read.labels = LabelSource::Given(labels.clone());
        }
        let labels = context.checked.labels.as_ref().map(|labels| labels.names().to_vec());
        Call::Finetune { labels }.send(context.together);
        let data = TrainingData::read_from(&mut context.checked.shared, &run, None);
        data.and_then(|data| finetune_on(&run, data, context.together, context.watch))
            .map_err(|error| Error::from(error).of_training("finetune"))?;
        hashes::training_files(&job.out, FINETUNED)
    })
}
