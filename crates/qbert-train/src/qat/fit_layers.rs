//! Fits every quantized layer to what the full-precision layer computes, on calibration data and without labels.
//!
//! Layers go from the bottom up. A layer reads what the quantized layers below it give, and its weights are trained until its output
//! is close to that of the full-precision model at this place. So it makes up for the errors below it, too. The literature calls
//! this block reconstruction. A layer is trained alone: a step costs as much as one layer of a training step, and needs no
//! backward pass through the others.
//!
//! The masters end up on the grids of their ranges, as after [`super::compensate`], which is the start to fit from.

use qbert_kernels::Compute;
use qbert_quant::Mask;

use super::activations::ActivationRanges;
use super::{PassDone, Quantization};
use crate::batch::Batch;
use crate::bert::{ActivationQuantizer, Activations, BackwardBuffers, Bert, Integers, Mode, Pass};
use crate::error::Result;
use crate::optimizer::{OptimizerSettings, Schedule};

/// The highest learning rate; it falls to zero over the steps of a layer.
const RATE: f64 = 1e-3;

/// What a fit looks at.
pub(super) struct LayerFit<'a> {
    pub(super) bert: &'a Bert,
    pub(super) compute: &'a Compute,
    pub(super) batches: &'a [Batch],
    /// The full-precision weights.
    pub(super) originals: &'a [f32],
    /// Steps for each layer, one batch each.
    pub(super) steps: usize,
}

impl LayerFit<'_> {
    fn pass<'a>(&'a self, weights: &'a [f32], batch: &'a Batch) -> Pass<'a> {
        Pass { compute: self.compute, weights, batch, mode: Mode::Evaluate }
    }

    /// The hidden state of every batch that enters the first layer.
    fn embedded(&self, weights: &[f32]) -> Vec<Vec<f32>> {
        let mut activations = Activations::for_evaluation();
        self.batches.iter().map(|batch| self.bert.embedded(self.pass(weights, batch), &mut activations)).collect()
    }
}

/// AdamW's moments of one layer, without decay: the weights should stay where the full-precision ones are.
struct LayerOptimizer {
    first: Vec<f32>,
    second: Vec<f32>,
    taken: usize,
    schedule: Schedule,
}

impl LayerOptimizer {
    fn new(weights: usize, steps: usize) -> Self {
        let schedule = Schedule { peak: RATE, warmup: 0, total: steps };
        Self { first: vec![0.0; weights], second: vec![0.0; weights], taken: 0, schedule }
    }

    fn step(&mut self, compute: &Compute, weights: &mut [f32], gradients: &[f32]) {
        let rate = self.schedule.rate(self.taken);
        self.taken += 1;
        let step = OptimizerSettings::default().adamw(rate, self.taken, 1.0);
        compute.adamw(&step, weights, gradients, &mut self.first, &mut self.second);
    }
}

impl Quantization {
    /// Fits all layers with quantized matrices. Calls `pass_done` after every pass over a batch: for each layer one for each
    /// step and one for each batch.
    ///
    /// # Errors
    /// A weight that is not a finite number any more.
    pub(super) fn fit_layers(
        &mut self,
        fit: &LayerFit<'_>,
        masters: &mut [f32],
        pass_done: PassDone<'_>,
    ) -> Result<()> {
        let LayerFit { bert, compute, batches, originals, steps } = *fit;
        let ranges = self.ranges().cloned();
        let mut targets = fit.embedded(originals);
        let mut inputs = fit.embedded(&self.copy);
        let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
        let mut gradients = vec![0.0; masters.len()];
        let config = bert.config();
        for layer in 0..config.layers {
            let stored = config.weights_of(layer);
            let span = &bert.layout().layers()[stored];
            // Weights that several layers share cannot be fitted to one of them.
            let is_alone = (0..config.layers).filter(|&other| config.weights_of(other) == stored).count() == 1;
            let mut evaluated = Activations::for_evaluation();
            for (target, batch) in targets.iter_mut().zip(batches) {
                let pass = fit.pass(originals, batch);
                *target = bert.layer_output(pass, layer, target, None, &mut evaluated).to_vec();
            }
            let mut optimizer = LayerOptimizer::new(span.len(), steps);
            for step in 0..steps {
                if !is_alone {
                    pass_done();
                    continue;
                }
                let index = step % batches.len();
                let pass = fit.pass(&self.copy, &batches[index]);
                let mut own = ranges.as_ref();
                let integers = self.integers(&mut own);
                bert.layer_output(pass, layer, &inputs[index], integers, &mut activations);
                gradients[span.clone()].fill(0.0);
                bert.fit_backward(pass, layer, &targets[index], &activations, &mut buffers, &mut gradients);
                self.weights.straight_through_span(compute, masters, span, Mask::default(), &mut gradients);
                optimizer.step(compute, &mut masters[span.clone()], &gradients[span.clone()]);
                self.quantize_layer(compute, masters, stored, span)?;
                pass_done();
            }
            for rounded in self.weights.matrices().filter(|own| own.site.layer() == Some(stored)) {
                masters[rounded.span.clone()].copy_from_slice(&self.copy[rounded.span]);
            }
            for (input, batch) in inputs.iter_mut().zip(batches) {
                let mut own = ranges.as_ref();
                let integers = self.integers(&mut own);
                let pass = fit.pass(&self.copy, batch);
                *input = bert.layer_output(pass, layer, input, integers, &mut evaluated).to_vec();
                pass_done();
            }
        }
        self.compensated = true;
        Ok(())
    }

    /// What a pass with these ranges needs besides the values of the weights.
    fn integers<'a>(&'a self, ranges: &'a mut Option<&ActivationRanges>) -> Option<Integers<'a>> {
        ranges.as_mut().map(|ranges| {
            let activations: &mut dyn ActivationQuantizer = ranges;
            Integers { activations, weights: &self.codes }
        })
    }

    /// Quantizes the matrices of one layer with the present ranges.
    fn quantize_layer(
        &mut self,
        compute: &Compute,
        masters: &[f32],
        layer: usize,
        span: &std::ops::Range<usize>,
    ) -> Result<()> {
        self.weights.quantize_span(compute, masters, span, &mut self.copy)?;
        match self.activations {
            Some(_) => self.weights.encode_sites(compute, masters, |site| site.layer() == Some(layer), &mut self.codes),
            None => Ok(()),
        }
    }
}
