//! Ranks besides the one that writes: they know the job, and wait for rank 0 to begin a stage that all of them compute.
//!
//! Rank 0 goes through the stages as a process alone does. What it decided (labels, model, plan) it tells the others, which
//! read the same files: the run's directory must be on a file system that all ranks see.

use std::ops::ControlFlow;
use std::path::PathBuf;

use qbert_kernels::{Compute, Ranks};
use qbert_quant::Plan;
use qbert_tasks::{LabelSource, Labels, SharedData};
use qbert_train::finetune::{TrainingData, finetune_on};
use qbert_train::loading::read_data;
use qbert_train::qat::run::{Judging, Quantize, quantize_on};
use qbert_train::sensitivity::{Analysis, SAVE_EVERY, Shard, analyze_on};
use serde::{Deserialize, Serialize};

use super::{CHECKPOINT, FINETUNED, Job, Watch, finetune};
use crate::error::{Error, ErrorKind, Result};

/// What rank 0 asks the others to do with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Call {
    /// Fine-tune for these labels.
    Finetune { labels: Option<Vec<String>> },
    /// Analyze this model.
    Analyze { model: PathBuf },
    /// Quantize this model, which reaches that metric in full precision, by a plan.
    Quantize { model: PathBuf, plan: String, full_precision: f64 },
    /// There is nothing left to do.
    Done,
}

impl Call {
    /// Tells the others, if there are any.
    pub(super) fn send(&self, compute: &Compute) {
        if let Some(ranks) = compute.ranks() {
            ranks.gather_bytes(&serde_json::to_vec(self).unwrap_or_default());
        }
    }

    fn receive(ranks: &dyn Ranks) -> Result<Self> {
        let all = ranks.gather_bytes(&[]);
        let other = |error: serde_json::Error| {
            let hint = "start the same version of qbert on all machines".to_owned();
            Error::new(ErrorKind::BadInput, format!("rank 0 asks for what this rank does not know: {error}"), hint)
        };
        serde_json::from_slice(&all[0]).map_err(other)
    }
}

/// The analysis that all ranks do.
pub(super) fn analysis(job: &Job, model: PathBuf) -> Analysis {
    let (data, out) = (job.data.clone(), job.out.clone());
    Analysis { model, data, settings: job.analysis, shard: Shard::WHOLE, out, resume: true }
}

/// Helps rank 0 with [`super::run`] of the same job, until it is done. Does nothing in a process alone.
///
/// # Errors
/// As [`super::run`].
pub fn help(job: &Job, compute: &Compute, watch: &mut dyn Watch) -> Result<()> {
    let Some(ranks) = compute.ranks() else { return Ok(()) };
    let mut shared = SharedData::default();
    loop {
        match Call::receive(ranks)? {
            Call::Done => return Ok(()),
            Call::Finetune { labels } => {
                let mut run = finetune::training(job, &job.finetune, job.directory.clone(), FINETUNED);
                if let Some(labels) = labels {
                    run.data.read.labels = LabelSource::Given(Labels::new(labels)?);
                }
                let data = TrainingData::read_from(&mut shared, &run, None);
                data.and_then(|data| finetune_on(&run, data, compute, watch))
                    .map_err(|error| Error::from(error).of_training("finetune"))?;
            }
            Call::Analyze { model } => {
                let analysis = analysis(job, model);
                let data = read_data(&analysis.model, &analysis.data, &mut shared)?;
                analyze_on(&analysis, data, compute, SAVE_EVERY, &mut |_| {
                    if watch.stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })?;
            }
            Call::Quantize { model, plan, full_precision } => {
                let training = finetune::training(job, &job.quantize, model, CHECKPOINT);
                let plan = Plan::parse(&plan, "the plan of rank 0")?;
                let run = Quantize { job: training, plan, settings: job.qat.clone() };
                let judging = Judging { full_precision: Some(full_precision), ..Judging::default() };
                let data = TrainingData::read_from(&mut shared, &run.job, None);
                data.and_then(|data| quantize_on(&run, data, judging, compute, watch))
                    .map_err(|error| Error::from(error).of_training("quantize"))?;
            }
        }
    }
}
