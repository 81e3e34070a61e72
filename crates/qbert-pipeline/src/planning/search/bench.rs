//! Measures a plan on the dev data without training: the model that quantization-aware training would start from, with
//! compensated rounding, calibrated on training data. The figures are those of the packed file.

use std::path::Path;
use std::sync::Arc;

use qbert_kernels::Compute;
use qbert_quant::Plan;
use qbert_tasks::{Evaluation, TaskData};
use qbert_train::batch::Batch;
use qbert_train::evaluate::{Evaluated, scores_with};
use qbert_train::loading::Loaded;
use qbert_train::qat::student::QatSettings;
use qbert_train::qat::{Calibration, ModelWeights, Quantization};
use serde::Serialize;

use crate::error::Result;

/// How plans are quantized to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rounding {
    /// Batches of training data to calibrate with.
    pub batches: usize,
    /// Sequences per batch.
    pub batch: usize,
    /// Whether weights are rounded so that they compensate for each other's errors.
    pub compensate: bool,
}

impl Default for Rounding {
    /// As packing does it.
    fn default() -> Self {
        let QatSettings { calibration, compensate, .. } = QatSettings::default();
        Self { batches: calibration, batch: crate::packing::CALIBRATION_BATCH, compensate }
    }
}

/// Gets what is done, of how much, and what it is.
pub(super) type Progress<'a> = &'a mut dyn FnMut(usize, usize, &str);

/// A model and data, ready to measure plans.
pub(super) struct Bench<'a> {
    loaded: Loaded,
    batches: Vec<Batch>,
    compensate: bool,
    compute: &'a Compute,
    /// The model in full precision.
    pub(super) full: Evaluation,
}

impl<'a> Bench<'a> {
    /// Loads the model and evaluates it in full precision, unless that is known.
    pub(super) fn new(
        model: &Path,
        (train, dev): (&TaskData, &Arc<TaskData>),
        rounding: Rounding,
        full: Option<Evaluation>,
        compute: &'a Compute,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let loaded = Loaded::with_data(model, Arc::clone(dev))?;
        let batches = train.features.first_batches(rounding.batch, rounding.batches);
        let batches = batches.collect::<qbert_tasks::Result<Vec<Batch>>>()?;
        let full = match full {
            Some(known) => known,
            None => {
                let weights = ModelWeights::Full(loaded.weights.values());
                evaluate(&loaded, weights, compute, "sequences in full precision", progress)?
            }
        };
        Ok(Self { loaded, batches, compensate: rounding.compensate, compute, full })
    }

    /// The metric of the model quantized by a plan.
    pub(super) fn measure(&self, plan: &Plan, progress: Progress<'_>) -> Result<Evaluation> {
        let Self { loaded, compute, .. } = self;
        let mut quantization = Quantization::new(plan.clone(), loaded.bert.config(), loaded.bert.layout())?;
        let batches = if quantization.activations().is_some() { &self.batches[..] } else { &[] };
        let mut masters = loaded.weights.values().to_vec();
        let calibration =
            Calibration { bert: &loaded.bert, compute, batches, compensate: self.compensate, fit_steps: 0 };
        quantization.calibrate_watched(&mut masters, calibration, &mut |done, total| {
            progress(done, total, "calibration batches");
        })?;
        quantization.before_evaluation(compute, &masters)?;
        evaluate(loaded, ModelWeights::Quantized(&quantization), compute, "sequences by this plan", progress)
    }
}

fn evaluate(
    loaded: &Loaded,
    weights: ModelWeights<'_>,
    compute: &Compute,
    what: &str,
    progress: Progress<'_>,
) -> Result<Evaluation> {
    let features = &loaded.data.features;
    let (mut done, total) = (0, features.len());
    let scores = scores_with(&loaded.bert, compute, weights, features, |count| {
        done += count;
        progress(done, total, what);
    })?;
    Ok(Evaluated::new(Arc::clone(&loaded.data), &scores, loaded.bert.outputs())?.evaluation)
}
