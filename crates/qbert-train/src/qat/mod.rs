//! Quantization-aware fine-tuning (paper, §3.1–3.3): f32 masters, quantized copies in every pass, straight-through
//! gradients back to the masters.
//!
//! The model itself is [`crate::bert`], which knows nothing of plans. It gets quantized weights (values, and codes if
//! activations are quantized, too) and a quantizer of activations. [`weights`] makes those weights from the masters,
//! [`activations`] learns the ranges of activations, and [`Quantization`] holds both together with the plan. Training
//! computes exactly what integer inference computes: the forward pass multiplies codes with the same kernels.
//!
//! [`method`] lists the methods of the paper by name, [`distill`] is an addition of later work, [`student`] is what the
//! trainer calls, [`files`] defines a quantized checkpoint on disk, [`run`] goes from files to files.

pub mod activations;
mod compensate;
pub mod distill;
pub mod files;
mod fit_layers;
pub mod method;
pub mod run;
pub mod student;
pub mod weights;

use qbert_kernels::Compute;
use qbert_model::{Config, ParameterLayout};
use qbert_quant::{Mask, Plan, Precision};

use crate::batch::Batch;
use crate::bert::{ActivationQuantizer, Activations, Bert, Integers, Mode, Pass, WeightCodes};
use crate::error::{Error, Result};
use activations::{ActivationRanges, RangeLearner};
use fit_layers::LayerFit;
use weights::{UsedRows, WeightQuantizer};

/// `[task(0), …, task(tasks - 1)]` over all threads, for results without a default.
pub(crate) fn map<T: Send + Clone>(compute: &Compute, tasks: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    compute.threads().map(tasks, |index| Some(task(index))).into_iter().flatten().collect()
}

/// A plan at work on a model: weight ranges, activation ranges, and the quantized copy of the weights.
#[derive(Debug)]
pub struct Quantization {
    plan: Plan,
    config: Config,
    weights: WeightQuantizer,
    activations: Option<RangeLearner>,
    /// The weights that passes compute with, in the layout of the masters. Rows of embedding tables are current only
    /// where the batches of the step use them.
    copy: Vec<f32>,
    /// The codes of the same weights; empty if activations stay in f32.
    codes: WeightCodes,
    /// Whether [`Quantization::compensate`] rounded the masters, so that the ranges of matrices must stay.
    compensated: bool,
}

impl Quantization {
    /// Prepares a plan for a model: checks that it fits, but finds no ranges yet.
    ///
    /// # Errors
    /// A plan for another number of layers, groups that a matrix does not have, an activation width other than 8 and 32.
    pub fn new(plan: Plan, config: &Config, layout: &ParameterLayout) -> Result<Self> {
        let weights = WeightQuantizer::new(&plan, config, layout)?;
        let activations = match plan.activation().bits {
            Precision::Full => None,
            Precision::Bits(qbert_quant::BitWidth::EIGHT) => {
                Some(RangeLearner::new(config.layers, plan.activation().range))
            }
            Precision::Bits(width) => {
                let rule = "activations are quantized to 8 bits, or left in f32 with 32";
                return Err(Error::Setting { name: "[activation] bits", value: width.to_string(), rule });
            }
        };
        let (copy, codes) = (vec![0.0; layout.len()], WeightCodes::default());
        Ok(Self { plan, config: config.clone(), weights, activations, copy, codes, compensated: false })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The model's numbers.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The quantizer of the weights.
    pub fn weights(&self) -> &WeightQuantizer {
        &self.weights
    }

    /// The quantizer of the weights, to set ranges that were stored.
    pub fn weights_mut(&mut self) -> &mut WeightQuantizer {
        &mut self.weights
    }

    /// The learner of activation ranges; `None` if activations stay in f32.
    pub fn activations(&self) -> Option<&RangeLearner> {
        self.activations.as_ref()
    }

    /// The same, to change it.
    pub fn activations_mut(&mut self) -> Option<&mut RangeLearner> {
        self.activations.as_mut()
    }

    /// The present ranges of activations, for passes that learn nothing.
    pub fn ranges(&self) -> Option<&ActivationRanges> {
        self.activations.as_ref().map(RangeLearner::ranges)
    }

    /// Finds the range of every group from scratch and quantizes all weights.
    ///
    /// # Errors
    /// A weight that is NaN, infinite or absurdly large; the error names the site.
    pub fn fit(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.compensated = false;
        self.weights.fit(compute, masters)?;
        self.quantize(compute, masters, None)
    }

    /// Before an optimizer step: brings ranges up to date and quantizes what the batches use.
    ///
    /// # Errors
    /// As [`Quantization::fit`].
    pub fn before_step(&mut self, compute: &Compute, masters: &[f32], step: usize, used: &UsedRows) -> Result<()> {
        self.weights.follow(compute, masters, step)?;
        self.quantize(compute, masters, Some(used))
    }

    /// Before an evaluation: brings every range up to date that may change and quantizes all weights.
    ///
    /// # Errors
    /// As [`Quantization::fit`].
    pub fn before_evaluation(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        if self.compensated {
            self.weights.refine_rounded(compute, masters)?;
        } else {
            self.weights.refine(compute, masters)?;
        }
        self.quantize(compute, masters, None)
    }

    /// Quantizes the weights with the present ranges: all of them, or only the used rows of the embedding tables.
    ///
    /// # Errors
    /// As [`Quantization::fit`].
    pub fn quantize(&mut self, compute: &Compute, masters: &[f32], used: Option<&UsedRows>) -> Result<()> {
        self.weights.quantize(compute, masters, used, &mut self.copy)?;
        match self.activations {
            Some(_) => self.weights.encode(compute, masters, &mut self.codes),
            None => Ok(()),
        }
    }

    /// The values of the quantized weights, as the last of these calls left them.
    pub fn quantized(&self) -> &[f32] {
        &self.copy
    }

    /// A forward pass of the quantized model. Learns ranges of activations unless they are frozen.
    ///
    /// # Errors
    /// An activation that is not a finite number while ranges are learned.
    pub fn forward(&mut self, bert: &Bert, pass: QuantizedPass<'_>, activations: &mut Activations) -> Result<()> {
        let QuantizedPass { compute, batch, mode } = pass;
        let pass = Pass { compute, weights: &self.copy, batch, mode };
        match &mut self.activations {
            None => bert.forward_with(pass, None, activations),
            Some(learner) => {
                learner.set_part(batch.part.clone());
                bert.forward_with(pass, Some(Integers { activations: learner, weights: &self.codes }), activations);
                learner.check()?;
            }
        }
        Ok(())
    }

    /// The same with the present ranges, without learning: the answers of the quantized model.
    pub fn answer(&self, bert: &Bert, pass: QuantizedPass<'_>, activations: &mut Activations) {
        let QuantizedPass { compute, batch, mode } = pass;
        let pass = Pass { compute, weights: &self.copy, batch, mode };
        let mut ranges = self.ranges();
        let integers = ranges.as_mut().map(|ranges| {
            let ranges: &mut dyn ActivationQuantizer = ranges;
            Integers { activations: ranges, weights: &self.codes }
        });
        bert.forward_with(pass, integers, activations);
    }

    /// Quantizes without training: finds the ranges of all weights, learns those of activations and, if asked to, rounds
    /// the masters so that they compensate for each other's errors. Training starts from here, and a plan that is packed
    /// without training stops here, so both give the same model.
    ///
    /// # Errors
    /// Weights or activations that are not finite numbers; a batch that does not fit the model.
    pub fn calibrate(&mut self, masters: &mut [f32], calibration: Calibration<'_>) -> Result<()> {
        self.calibrate_watched(masters, calibration, &mut |_, _| {})
    }

    /// The same; `progress` gets the number of passes over a batch that are done, and of all.
    ///
    /// # Errors
    /// As [`Quantization::calibrate`].
    pub fn calibrate_watched(
        &mut self,
        masters: &mut [f32],
        calibration: Calibration<'_>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        let Calibration { bert, compute, batches, compensate, fit_steps } = calibration;
        let layers = bert.config().layers;
        let (learns, fits) = (self.activations.is_some(), fit_steps > 0 && !batches.is_empty());
        // Ranges of activations are learned at first, after the layers are rounded, and after they are fitted.
        let rounding = if compensate && learns { bert.config().distinct_layers() * batches.len() } else { 0 };
        let fitting = if fits { layers * (fit_steps + batches.len()) } else { 0 };
        let learned = usize::from(learns) * (1 + usize::from(compensate) + usize::from(fits)) * batches.len();
        let (mut done, total) = (0, learned + rounding + fitting);
        let originals = fits.then(|| masters.to_vec());
        let mut pass = || {
            done += 1;
            progress(done, total);
        };
        self.fit(compute, masters)?;
        self.learn(bert, compute, batches, &mut pass)?;
        if compensate {
            self.round(bert, compute, masters, batches, &mut pass)?;
        }
        if let Some(originals) = &originals {
            let fit = LayerFit { bert, compute, batches, originals, steps: fit_steps };
            self.fit_layers(&fit, masters, &mut pass)?;
            self.learn_again(bert, compute, batches, &mut pass)?;
        }
        Ok(())
    }

    /// Learns the ranges of activations from batches, without dropout. Does nothing if activations stay in f32.
    ///
    /// # Errors
    /// A batch that does not fit the model, an activation that is not a finite number.
    pub fn learn_ranges(&mut self, bert: &Bert, compute: &Compute, batches: &[Batch]) -> Result<()> {
        self.learn(bert, compute, batches, &mut || {})
    }

    fn learn(&mut self, bert: &Bert, compute: &Compute, batches: &[Batch], pass_done: PassDone<'_>) -> Result<()> {
        if self.activations.is_none() {
            return Ok(());
        }
        let mut activations = Activations::for_evaluation();
        for batch in batches {
            bert.check(batch)?;
            self.forward(bert, QuantizedPass { compute, batch, mode: Mode::Evaluate }, &mut activations)?;
            pass_done();
        }
        Ok(())
    }

    /// Rounds the masters so that the output of every matrix changes least on these batches
    /// ([`qbert_quant::compensate`]), then learns the ranges of activations again. Does nothing if activations stay in
    /// f32. Needs the ranges that [`Quantization::fit`] and [`Quantization::learn_ranges`] found.
    ///
    /// # Errors
    /// As [`Quantization::learn_ranges`].
    pub fn compensate(&mut self, bert: &Bert, compute: &Compute, masters: &mut [f32], batches: &[Batch]) -> Result<()> {
        self.round(bert, compute, masters, batches, &mut || {})
    }

    fn round(
        &mut self,
        bert: &Bert,
        compute: &Compute,
        masters: &mut [f32],
        batches: &[Batch],
        pass_done: PassDone<'_>,
    ) -> Result<()> {
        let Some(ranges) = self.ranges().cloned() else { return Ok(()) };
        let matrices: Vec<_> = self.weights.matrices().collect();
        // Layers are rounded from the bottom up. Until its turn comes, a layer computes with the weights that its
        // rounded ones should stay close to.
        for rounded in &matrices {
            self.copy[rounded.span.clone()].copy_from_slice(&masters[rounded.span.clone()]);
        }
        let inputs = compensate::Inputs { bert, compute, ranges: &ranges, batches };
        compensate::compensate(&inputs, &matrices, masters, &mut self.copy, pass_done)?;
        self.compensated = true;
        self.quantize(compute, masters, None)?;
        self.learn_again(bert, compute, batches, pass_done)
    }

    /// Forgets the ranges of activations and learns them anew, because the weights have changed.
    fn learn_again(
        &mut self,
        bert: &Bert,
        compute: &Compute,
        batches: &[Batch],
        pass_done: PassDone<'_>,
    ) -> Result<()> {
        if self.activations.is_some() {
            self.activations = Some(RangeLearner::new(bert.config().layers, self.plan.activation().range));
        }
        self.learn(bert, compute, batches, pass_done)
    }

    /// Moves masters that [`Quantization::compensate`] rounded back towards their originals, as far as their codes stay the
    /// same, so that training can start from there.
    ///
    /// # Errors
    /// None that a layout of the model could cause.
    pub fn loosen(&mut self, originals: &[f32], masters: &mut [f32]) -> Result<()> {
        self.compensated = false;
        compensate::loosen(&self.weights.matrices().collect::<Vec<_>>(), originals, masters)
    }

    /// After the backward passes of a step: the gradients of the quantized weights become those of the masters and, where
    /// they are trained, of the ranges.
    pub fn after_backward(
        &mut self,
        compute: &Compute,
        masters: &[f32],
        used: (&UsedRows, Mask),
        gradients: &mut [f32],
    ) {
        self.weights.range_gradients(compute, masters, gradients);
        self.weights.straight_through(compute, masters, used, gradients);
    }
}

/// Called after every pass over a batch of a calibration.
type PassDone<'a> = &'a mut dyn FnMut();

/// What [`Quantization::calibrate`] quantizes a model with.
#[derive(Debug, Clone, Copy)]
pub struct Calibration<'a> {
    /// The model.
    pub bert: &'a Bert,
    /// Kernels and threads.
    pub compute: &'a Compute,
    /// Batches to learn the ranges of activations from. May be empty if activations stay in f32.
    pub batches: &'a [Batch],
    /// Whether to round weights so that they compensate for each other's errors on these batches.
    pub compensate: bool,
    /// Steps for each layer to fit its output to that of the full-precision layer on these batches; 0 for none.
    pub fit_steps: usize,
}

/// A [`Pass`] without its weights, which the quantization has.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedPass<'a> {
    /// Kernels and threads.
    pub compute: &'a Compute,
    /// The sequences.
    pub batch: &'a Batch,
    /// Training or evaluation.
    pub mode: Mode,
}

/// The weights of a model that is not trained.
#[derive(Debug, Clone, Copy)]
pub enum ModelWeights<'a> {
    /// In f32.
    Full(&'a [f32]),
    /// Quantized, with the activations if the plan says so.
    Quantized(&'a Quantization),
}

impl<'a> ModelWeights<'a> {
    /// Every weight's value.
    pub fn values(self) -> &'a [f32] {
        match self {
            Self::Full(values) => values,
            Self::Quantized(own) => own.quantized(),
        }
    }

    /// A forward pass without dropout that changes nothing.
    pub fn answer(self, bert: &Bert, compute: &Compute, batch: &Batch, activations: &mut Activations) {
        let mode = Mode::Evaluate;
        match self {
            Self::Full(weights) => bert.forward(compute, weights, batch, mode, activations),
            Self::Quantized(own) => own.answer(bert, QuantizedPass { compute, batch, mode }, activations),
        }
    }
}
