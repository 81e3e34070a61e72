//! One file with everything that predictions need: `model.qbert`, as `qbert pack` writes it. The checkpoint's configuration and
//! tokenizer are kept beside it, for hubs and tools that look for them; the runtime needs neither.

use serde_json::json;

use super::context::{Context, Step};
use super::{CHECKPOINT, Stage};
use crate::error::Result;
use crate::packing::{FILE_NAME, Packing, write_companions};

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let checkpoint = job.path(CHECKPOINT);
    let step = Step {
        stage: Stage::Pack,
        inputs: json!({ "checkpoint": context.checkpoint_hash()? }),
        replaces: &[FILE_NAME],
    };
    context.perform(step, |_| {
        let packing = Packing::trained(&checkpoint, job.data.task, &job.command)?;
        packing.write(&job.path(FILE_NAME))?;
        let companions = write_companions(&checkpoint, packing.plan(), &job.out)?;
        Ok(std::iter::once(FILE_NAME.to_owned()).chain(companions).collect())
    })
}
