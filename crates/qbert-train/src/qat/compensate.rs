//! Rounding that looks at the data: weights compensate for each other's rounding errors.
//!
//! [`qbert_quant::compensate`] has the arithmetic; this module collects the inputs of every matrix. Layers are rounded one
//! after the other, each on the output of the rounded layers below, so that it also compensates for their errors. The
//! masters become the rounded weights: training may start from them, and codes follow from them as usual.
//!
//! Does not apply to plans that leave activations in f32: only quantized passes show the input of a product.

use std::ops::Range as Span;

use qbert_kernels::{Compute, MatMut, MatRef, Start};
use qbert_model::Config;
use qbert_quant::{ActivationParams, Error as QuantError, InputMoments, Matrix, QuantParams, Site};

use super::activations::ActivationRanges;
use super::{PassDone, map};
use crate::batch::Batch;
use crate::bert::{ActivationQuantizer, ActivationTensor, Activations, Bert, Integers, Mode, Pass, WeightCodes};
use crate::error::Result;

/// The tensors that enter matrices of a layer.
const INPUTS: [ActivationTensor; 4] =
    [ActivationTensor::Input, ActivationTensor::Context, ActivationTensor::Middle, ActivationTensor::Inner];

/// Rows of a matrix that a thread rounds at a time.
const ROWS: usize = 32;

/// Which of [`INPUTS`] a matrix reads.
fn input_of(matrix: Matrix) -> usize {
    match matrix {
        Matrix::Query | Matrix::Key | Matrix::Value => 0,
        Matrix::AttentionOutput => 1,
        Matrix::Intermediate => 2,
        Matrix::Output => 3,
    }
}

/// Sums up the second moments of what enters the matrices of one layer.
struct Collector<'a> {
    ranges: &'a ActivationRanges,
    config: &'a Config,
    /// The layer, counted as in the layout. Where several computed layers have its weights, they all count.
    layer: usize,
    moments: [Vec<f32>; INPUTS.len()],
    quantized: Vec<f32>,
}

impl ActivationQuantizer for Collector<'_> {
    fn params(
        &mut self,
        compute: &Compute,
        layer: usize,
        tensor: ActivationTensor,
        values: MatRef<'_>,
    ) -> ActivationParams {
        let params = self.ranges.get(layer, tensor);
        let input = INPUTS.iter().position(|input| *input == tensor);
        if let (true, Some(input)) = (self.config.weights_of(layer) == self.layer, input) {
            let (rows, cols) = (values.rows(), values.cols());
            self.quantized.clear();
            self.quantized.extend((0..rows).flat_map(|row| values.row(row)).map(|&value| params.round_trip(value)));
            let sums = &mut self.moments[input];
            sums.resize(cols * cols, 0.0);
            let x = MatRef::new(&self.quantized, rows, cols);
            compute.gemm_tn(x, x, Start::Scaled(1.0), MatMut::new(sums, cols, cols));
        }
        params
    }
}

/// A matrix to be rounded.
pub(super) struct Rounded<'a> {
    /// Which one.
    pub site: Site,
    /// Its place among the weights.
    pub span: Span<usize>,
    /// Its quantizer.
    pub params: &'a QuantParams,
}

/// What decides the inputs of every matrix.
pub(super) struct Inputs<'a> {
    pub bert: &'a Bert,
    pub compute: &'a Compute,
    pub ranges: &'a ActivationRanges,
    pub batches: &'a [Batch],
}

/// The most values of hidden states that are kept from one layer to the next: 1 GiB. More are computed again from the bottom.
const MOST_KEPT: usize = 1 << 28;

/// The hidden states that enter the next layer to be rounded, one for each batch.
enum States {
    /// All of them, up to this layer.
    Kept(Vec<Vec<f32>>),
    /// None: they would take too much memory, or weights are shared, so that rounding a layer changes those below it.
    Recomputed,
}

/// Rounds all matrices in `masters`. Passes compute with `weights`: on entry the model with quantized embeddings, on
/// return the quantized model.
///
/// # Errors
/// An activation or a weight that is not a finite number.
pub(super) fn compensate(
    inputs: &Inputs<'_>,
    matrices: &[Rounded<'_>],
    masters: &mut [f32],
    weights: &mut [f32],
    pass_done: PassDone<'_>,
) -> Result<()> {
    let mut states = inputs.embedded(weights);
    for layer in 0..inputs.bert.config().distinct_layers() {
        let here = |rounded: &&Rounded<'_>| matches!(rounded.site, Site::Layer(own, _) if own == layer);
        if matrices.iter().any(|rounded| here(&rounded)) {
            let factors = inputs.factors(layer, weights, &states, pass_done)?;
            for rounded in matrices.iter().filter(here) {
                let Site::Layer(_, matrix) = rounded.site else { continue };
                let own = &mut masters[rounded.span.clone()];
                round(inputs.compute, rounded.params, &factors[input_of(matrix)], own)
                    .map_err(|source| QuantError::AtSite { site: rounded.site, source: Box::new(source) })?;
                weights[rounded.span.clone()].copy_from_slice(own);
            }
        }
        inputs.advance(layer, weights, &mut states);
    }
    Ok(())
}

impl Inputs<'_> {
    fn pass<'a>(&'a self, weights: &'a [f32], batch: &'a Batch) -> Pass<'a> {
        Pass { compute: self.compute, weights, batch, mode: Mode::Evaluate }
    }

    /// What enters the first layer.
    fn embedded(&self, weights: &[f32]) -> States {
        let config = self.bert.config();
        let values = self.batches.iter().map(Batch::tokens).sum::<usize>() * config.hidden_size;
        if config.distinct_layers() < config.layers || values > MOST_KEPT {
            return States::Recomputed;
        }
        let mut activations = Activations::for_evaluation();
        let embedded = |batch: &Batch| self.bert.embedded(self.pass(weights, batch), &mut activations);
        States::Kept(self.batches.iter().map(embedded).collect())
    }

    /// Takes the states through a layer.
    fn advance(&self, layer: usize, weights: &[f32], states: &mut States) {
        let States::Kept(states) = states else { return };
        let (mut activations, mut ranges, no_codes) =
            (Activations::for_evaluation(), self.ranges, WeightCodes::default());
        for (state, batch) in states.iter_mut().zip(self.batches) {
            let integers = Some(Integers { activations: &mut ranges, weights: &no_codes });
            *state =
                self.bert.layer_output(self.pass(weights, batch), layer, state, integers, &mut activations).to_vec();
        }
    }

    /// The factored moments of what enters the matrices of a layer, by [`INPUTS`].
    fn factors(
        &self,
        layer: usize,
        weights: &[f32],
        states: &States,
        pass_done: PassDone<'_>,
    ) -> Result<Vec<InputMoments>> {
        let Self { bert, compute, ranges, batches } = *self;
        let config = bert.config();
        let mut collector = Collector { ranges, config, layer, moments: Default::default(), quantized: Vec::new() };
        let mut activations = Activations::for_evaluation();
        // Without codes the pass takes the weights as they are: those of this layer and above are not rounded yet.
        let no_codes = WeightCodes::default();
        for (index, batch) in batches.iter().enumerate() {
            let (pass, integers) =
                (self.pass(weights, batch), Integers { activations: &mut collector, weights: &no_codes });
            match states {
                States::Kept(states) => {
                    bert.layer_output(pass, layer, &states[index], Some(integers), &mut activations);
                }
                States::Recomputed => bert.forward_with(pass, Some(integers), &mut activations),
            }
            pass_done();
        }
        let factor = |input: usize| {
            let moments = &collector.moments[input];
            InputMoments::factor(moments.len().isqrt(), moments)
        };
        let factors: std::result::Result<Vec<InputMoments>, QuantError> =
            map(compute, INPUTS.len(), factor).into_iter().collect();
        Ok(factors?)
    }
}

/// Takes rounded masters back to `originals` as far as their codes stay, for training to start from.
///
/// # Errors
/// None that a layout of the model could cause.
pub(super) fn loosen(matrices: &[Rounded<'_>], originals: &[f32], masters: &mut [f32]) -> Result<()> {
    for Rounded { site, span, params } in matrices {
        params
            .loosen_rows(0..params.layout().rows(), &originals[span.clone()], &mut masters[span.clone()])
            .map_err(|source| QuantError::AtSite { site: *site, source: Box::new(source) })?;
    }
    Ok(())
}

/// Rows do not depend on each other.
fn round(
    compute: &Compute,
    params: &QuantParams,
    moments: &InputMoments,
    values: &mut [f32],
) -> std::result::Result<(), QuantError> {
    let width = params.layout().cols();
    let mut parts: Vec<_> = values.chunks_mut(ROWS * width).map(|part| (part, Ok(()))).collect();
    compute.threads().for_each_item(&mut parts, |index, (part, result)| {
        let first = index * ROWS;
        *result = params.compensate_rows(first..first + part.len() / width, moments, part);
    });
    parts.into_iter().try_for_each(|(_, result)| result)
}
