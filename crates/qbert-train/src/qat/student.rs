//! A model that is being quantized, as the trainer sees it: masters in, gradients of the masters out.
//!
//! The trainer is the same as for fine-tuning (order of the data, optimizer, state, best checkpoint). This module is what
//! a step of a quantized model does differently.

use qbert_kernels::Compute;
use qbert_quant::Mask;
use serde::{Deserialize, Serialize};

use super::activations::Learned;
use super::distill::{Distillation, Teacher};
use super::weights::{UsedRows, WeightRanges};
use super::{Calibration, Quantization, QuantizedPass};
use crate::batch::Batch;
use crate::bert::{Activations, BackwardBuffers, Bert, Mode, Pass};
use crate::error::{Error, Result};
use crate::features::Features;

/// How quantization-aware training differs from fine-tuning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QatSettings {
    /// Batches of training data to learn the ranges of activations from, before the first step.
    pub calibration: usize,
    /// Share of the steps after which the ranges of activations are frozen.
    pub freeze: f64,
    /// Whether weights are first rounded so that they compensate for each other's errors
    /// ([`qbert_quant::compensate`]). The paper does not do this.
    pub compensate: bool,
    /// Steps for each layer to fit its output to that of the full-precision layer, on the calibration data and without
    /// labels; 0 for none. The paper does not do this.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fit_steps: usize,
    /// Which weights get a gradient.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mask: Mask,
    /// How the ranges of matrices change in training. The paper finds them again from the weights.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weight_ranges: WeightRanges,
    /// Whether a model of vectors also learns from the pairs of its training data; without, from the texts alone.
    #[serde(default, skip_serializing_if = "is_default")]
    pub learn_pairs: bool,
    /// Whether to use dropout as in fine-tuning, as the paper does. Rounding is noise enough: without dropout, 2 bits end
    /// up better or as good (`results/qat-recipe.json`).
    pub dropout: bool,
    /// Distillation from the full-precision model; `None`, as in the paper, trains on labels alone.
    pub distillation: Option<Distillation>,
}

/// What was not always a setting is not written where it is as it was, so that older files stay comparable.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for QatSettings {
    fn default() -> Self {
        Self {
            calibration: 32,
            freeze: 0.2,
            compensate: true,
            fit_steps: 0,
            mask: Mask::default(),
            weight_ranges: WeightRanges::Learned(WeightRanges::USUAL_MULTIPLE),
            learn_pairs: false,
            dropout: false,
            distillation: Some(Distillation::default()),
        }
    }
}

impl QatSettings {
    /// Refuses settings that make no sense; errors call them `qat.calibration` and so on.
    ///
    /// # Errors
    /// No batch to calibrate with, a share outside 0 to 1, weights of the loss that make no sense.
    pub fn check(&self) -> Result<()> {
        if self.calibration == 0 {
            let rule = "at least 1 batch is needed to learn ranges from";
            return Err(Error::Setting { name: "`qat.calibration`", value: self.calibration.to_string(), rule });
        }
        if !(0.0..=1.0).contains(&self.freeze) {
            let rule = "it is a share of the steps, from 0 to 1";
            return Err(Error::Setting { name: "`qat.freeze`", value: self.freeze.to_string(), rule });
        }
        if let WeightRanges::Learned(rate) = self.weight_ranges
            && !(rate > 0.0 && rate.is_finite())
        {
            let rule = "it is a multiple of the learning rate, above 0";
            return Err(Error::Setting { name: "`qat.weight_ranges`", value: rate.to_string(), rule });
        }
        self.distillation.as_ref().map_or(Ok(()), Distillation::check)
    }
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepOf {
    /// Counted from 0.
    pub step: usize,
    /// Steps of the whole run.
    pub total: usize,
}

/// A quantization in training.
#[derive(Debug)]
pub struct Student {
    quantization: Quantization,
    settings: QatSettings,
    teacher: Option<Teacher>,
    used: UsedRows,
    /// The masters before they were rounded, until training starts.
    originals: Option<Vec<f32>>,
}

impl Student {
    /// A student of these weights, which are also its teacher's.
    ///
    /// # Errors
    /// As [`QatSettings::check`].
    pub fn new(mut quantization: Quantization, settings: QatSettings, weights: &[f32]) -> Result<Self> {
        settings.check()?;
        quantization.weights_mut().learn_ranges(settings.weight_ranges != WeightRanges::Followed);
        let teacher = settings.distillation.map(|distillation| Teacher::new(weights.to_vec(), distillation));
        Ok(Self { quantization, settings, teacher, used: UsedRows::default(), originals: None })
    }

    /// Whether it learns from pairs of texts.
    pub fn learns_pairs(&self) -> bool {
        self.settings.learn_pairs
    }

    /// The quantization.
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// Everything that decides the result: a run is continued only with the same.
    pub fn identity(&self) -> serde_json::Value {
        serde_json::json!({ "plan": self.quantization.plan(), "settings": self.settings })
    }

    /// The weights' ranges, to store them.
    pub fn flat_ranges(&self) -> Vec<f32> {
        self.quantization.weights().flat_ranges()
    }

    /// What was learned about activations, to store it.
    pub fn learned(&self) -> Option<Learned> {
        self.quantization.activations().map(|learner| learner.learned())
    }

    /// Continues from stored ranges.
    ///
    /// # Errors
    /// Ranges of another model or plan.
    pub fn restore(&mut self, ranges: &[f32], learned: Option<Learned>) -> Result<()> {
        self.quantization.weights_mut().restore_ranges(ranges)?;
        match (self.quantization.activations_mut(), learned) {
            (Some(learner), Some(learned)) => learner.restore(learned),
            _ => Ok(()),
        }
    }

    /// Quantizes without training ([`Quantization::calibrate`]), on the first [`QatSettings::calibration`] batches of
    /// `size` sequences. Changes the masters if [`QatSettings::compensate`] is set.
    ///
    /// # Errors
    /// Weights or activations that are not finite numbers; a batch that does not fit the model.
    pub fn calibrate(
        &mut self,
        bert: &Bert,
        compute: &Compute,
        masters: &mut [f32],
        data: &Features,
        size: usize,
    ) -> Result<()> {
        let QatSettings { calibration, compensate, fit_steps, .. } = self.settings;
        self.originals = (compensate || fit_steps > 0).then(|| masters.to_vec());
        let learns = self.quantization.activations().is_some();
        let batches = data.first_batches(size, if learns { calibration } else { 0 });
        let batches = batches.collect::<qbert_tasks::Result<Vec<Batch>>>()?;
        self.quantization.calibrate(masters, Calibration { bert, compute, batches: &batches, compensate, fit_steps })
    }

    /// Prepares the masters for training, once the calibrated model has been evaluated.
    ///
    /// # Errors
    /// None that a layout of the model could cause.
    pub fn start_training(&mut self, masters: &mut [f32]) -> Result<()> {
        self.originals.take().map_or(Ok(()), |originals| self.quantization.loosen(&originals, masters))
    }

    /// Before the passes of a step: freezes ranges when it is time, and quantizes what the batches use.
    ///
    /// # Errors
    /// A weight that is not a finite number.
    pub fn before_step(&mut self, compute: &Compute, masters: &[f32], at: StepOf, batches: &[Batch]) -> Result<()> {
        let StepOf { step, total } = at;
        let frozen = step as f64 >= self.settings.freeze * total as f64;
        if let Some(learner) = self.quantization.activations_mut() {
            learner.set_frozen(frozen);
        }
        self.used = UsedRows::of(self.quantization.config(), batches);
        self.quantization.before_step(compute, masters, step, &self.used)
    }

    /// Both passes over one batch: adds `share` of the gradients of the quantized weights to `gradients`. Returns the loss.
    ///
    /// # Errors
    /// An activation that is not a finite number.
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
                teacher.loss(bert, compute, batch, activations, share, buffers).total
            }
            None => bert.loss_of_whole(compute, batch, activations, share, buffers).mean,
        };
        let pass = Pass { compute, weights: self.quantization.quantized(), batch, mode };
        let soft = self.teacher.as_ref().map(|teacher| teacher.targets(share));
        bert.backward_with(pass, soft, activations, buffers, gradients);
        Ok(loss)
    }

    /// After the passes of a step: turns the gradients of the quantized weights into those of the masters.
    pub fn after_backward(&mut self, compute: &Compute, masters: &[f32], gradients: &mut [f32]) {
        self.quantization.after_backward(compute, masters, (&self.used, self.settings.mask), gradients);
    }

    /// After the optimizer's step at `rate`, the first of which is step 1: moves the ranges that are trained.
    ///
    /// # Errors
    /// A range that is none any more.
    pub fn after_step(&mut self, rate: f64, steps: usize) -> Result<()> {
        match self.settings.weight_ranges {
            WeightRanges::Followed => Ok(()),
            WeightRanges::Learned(multiple) => self.quantization.weights_mut().move_ranges(multiple * rate, steps),
        }
    }

    /// Before an evaluation: brings ranges up to date and quantizes all weights.
    ///
    /// # Errors
    /// A weight that is not a finite number.
    pub fn before_evaluation(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.quantization.before_evaluation(compute, masters)
    }
}
