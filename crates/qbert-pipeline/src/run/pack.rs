//! One file with everything that predictions need: `model.qbert`, as `qbert pack` writes it.

use serde_json::json;

use super::context::{Context, Step};
use super::{CHECKPOINT, Stage};
use crate::error::Result;
use crate::packing::{FILE_NAME, Packing};

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let checkpoint = job.path(CHECKPOINT);
    let step = Step {
        stage: Stage::Pack,
        inputs: json!({ "checkpoint": context.checkpoint_hash()? }),
        replaces: &[FILE_NAME],
    };
    context.perform(step, |_| {
        Packing::trained(&checkpoint, job.data.task, &job.command)?.write(&job.path(FILE_NAME))?;
        Ok(vec![FILE_NAME.to_owned()])
    })
}
