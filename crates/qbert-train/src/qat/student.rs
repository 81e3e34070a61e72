//! A model that is being quantized, as the trainer calls it: masters in, gradients of the masters out.
//!
//! The trainer stays what it is for fine-tuning (order of the data, optimizer, state, best checkpoint); here is what a
//! step of a quantized model does differently.

use qbert_kernels::Compute;
use serde::{Deserialize, Serialize};

use super::activations::Learned;
use super::distill::{Distillation, Teacher};
use super::weights::UsedRows;
use super::{Quantization, QuantizedPass};
use crate::batch::Batch;
use crate::bert::{Activations, BackwardBuffers, Bert, Mode, Pass};
use crate::error::{Error, Result};
use crate::features::Features;

/// How quantization-aware training differs from fine-tuning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QatSettings {
    /// Batches of training data that ranges of activations are first learned from, before any step.
    pub calibration: usize,
    /// Share of the steps after which ranges of activations are frozen.
    pub freeze: f64,
    /// Whether weights are first rounded so that they make up for each other's errors
    /// ([`qbert_quant::compensate`]); without it is the paper's way.
    pub compensate: bool,
    /// Whether activations are dropped out as in fine-tuning, which is the paper's way. Rounding is noise enough: without
    /// dropout 2 bits end up better or as good (`results/qat-recipe.json`).
    pub dropout: bool,
    /// What the full-precision model teaches; `None` is the paper's way.
    pub distillation: Option<Distillation>,
}

impl Default for QatSettings {
    fn default() -> Self {
        Self {
            calibration: 32,
            freeze: 0.2,
            compensate: true,
            dropout: false,
            distillation: Some(Distillation::default()),
        }
    }
}

impl QatSettings {
    /// Refuses settings that make no sense, by the name of their flag.
    ///
    /// # Errors
    /// No batch to calibrate with, a share outside 0 to 1, weights that are none.
    pub fn check(&self) -> Result<()> {
        if self.calibration == 0 {
            let rule = "at least 1 batch is needed to learn ranges from";
            return Err(Error::Setting { name: "--range-batches", value: self.calibration.to_string(), rule });
        }
        if !(0.0..=1.0).contains(&self.freeze) {
            let rule = "it is a share of the steps, from 0 to 1";
            return Err(Error::Setting { name: "--range-freeze", value: self.freeze.to_string(), rule });
        }
        self.distillation.as_ref().map_or(Ok(()), Distillation::check)
    }
}

/// A quantization in training.
#[derive(Debug)]
pub struct Student {
    quantization: Quantization,
    settings: QatSettings,
    teacher: Option<Teacher>,
    used: UsedRows,
    /// The masters before they were rounded, until training starts from them.
    originals: Option<Vec<f32>>,
}

impl Student {
    /// A student of these weights, which are also its teacher's.
    ///
    /// # Errors
    /// As [`QatSettings::check`].
    pub fn new(quantization: Quantization, settings: QatSettings, weights: &[f32]) -> Result<Self> {
        settings.check()?;
        let teacher = settings.distillation.map(|distillation| Teacher::new(weights.to_vec(), distillation));
        Ok(Self { quantization, settings, teacher, used: UsedRows::default(), originals: None })
    }

    /// The quantization.
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// Everything that decides the result, for a run that is to be continued.
    pub fn identity(&self) -> serde_json::Value {
        serde_json::json!({ "plan": self.quantization.plan(), "settings": self.settings })
    }

    /// The weights' ranges, to be stored.
    pub fn flat_ranges(&self) -> Vec<f32> {
        self.quantization.weights().flat_ranges()
    }

    /// What is known of activations, to be stored.
    pub fn learned(&self) -> Option<Learned> {
        self.quantization.activations().map(|learner| learner.learned())
    }

    /// Goes on from what was stored.
    ///
    /// # Errors
    /// When it is of another model or plan.
    pub fn restore(&mut self, ranges: &[f32], learned: Option<Learned>) -> Result<()> {
        self.quantization.weights_mut().restore_ranges(ranges)?;
        match (self.quantization.activations_mut(), learned) {
            (Some(learner), Some(learned)) => learner.restore(learned),
            _ => Ok(()),
        }
    }

    /// Finds the weights' ranges, and learns those of activations from the first batches of the data in its own order:
    /// quantization without training. Changes the masters where [`QatSettings::compensate`] says so.
    ///
    /// # Errors
    /// Weights or activations that are no numbers; a batch that does not fit the model.
    pub fn calibrate(
        &mut self,
        bert: &Bert,
        compute: &Compute,
        masters: &mut [f32],
        (data, size): (&Features, usize),
    ) -> Result<()> {
        self.quantization.fit(compute, masters)?;
        let batches = || data.first_batches(size, self.settings.calibration).map(|batch| Ok(batch?));
        self.quantization.calibrate(bert, compute, batches())?;
        if self.settings.compensate {
            self.originals = Some(masters.to_vec());
            let batches: Result<Vec<Batch>> = batches().collect();
            self.quantization.compensate(bert, compute, masters, &batches?)?;
        }
        Ok(())
    }

    /// After the calibrated model was evaluated: makes the masters fit to be trained.
    ///
    /// # Errors
    /// None that a layout of the model could cause.
    pub fn start_training(&mut self, masters: &mut [f32]) -> Result<()> {
        self.originals.take().map_or(Ok(()), |originals| self.quantization.loosen(&originals, masters))
    }

    /// Before the passes of a step, `(step, steps)` of the run.
    ///
    /// # Errors
    /// A weight that is no number.
    pub fn before_step(
        &mut self,
        compute: &Compute,
        masters: &[f32],
        (step, steps): (usize, usize),
        batches: &[Batch],
    ) -> Result<()> {
        let frozen = step as f64 >= self.settings.freeze * steps as f64;
        if let Some(learner) = self.quantization.activations_mut() {
            learner.set_frozen(frozen);
        }
        self.used = UsedRows::of(batches);
        self.quantization.before_step(compute, masters, step, &self.used)
    }

    /// One batch: both passes, `share` of the gradients of the quantized weights added to `targets`. Returns the loss.
    ///
    /// # Errors
    /// An activation that is no number.
    pub fn learn(
        &mut self,
        bert: &Bert,
        pass: QuantizedPass<'_>,
        share: f64,
        activations: &mut Activations,
        (buffers, gradients): (&mut BackwardBuffers, &mut [f32]),
    ) -> Result<f64> {
        let QuantizedPass { compute, batch, mode } = pass;
        let mode = if self.settings.dropout { mode } else { Mode::Evaluate };
        let pass = QuantizedPass { compute, batch, mode };
        self.quantization.forward(bert, pass, activations)?;
        let loss = match &mut self.teacher {
            Some(teacher) => {
                teacher.look(bert, compute, batch);
                teacher.loss(bert, (compute, batch), activations, share, buffers).total
            }
            None => bert.loss(batch, activations, share, buffers).mean,
        };
        let pass = Pass { compute, weights: self.quantization.quantized(), batch, mode };
        let soft = self.teacher.as_ref().map(|teacher| teacher.targets(share));
        bert.backward_with(pass, soft, activations, buffers, gradients);
        Ok(loss)
    }

    /// After the passes of a step: from the gradients of the quantized weights to those of the masters.
    pub fn after_backward(&self, compute: &Compute, masters: &[f32], gradients: &mut [f32]) {
        self.quantization.after_backward(compute, masters, &self.used, gradients);
    }

    /// Before an evaluation.
    ///
    /// # Errors
    /// A weight that is no number.
    pub fn before_evaluation(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.quantization.before_evaluation(compute, masters)
    }
}
