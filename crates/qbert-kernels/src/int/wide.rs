//! Weights whose codes change from step to step, for training: one byte per code whatever its width, in the kernels'
//! layout.
//!
//! Sums of codes do not depend on how codes are stored, so [`Compute::linear`] gives the same bits as on the same codes
//! packed at their own width. Bytes are faster to write and need no widening; they take a quarter of the memory of f32
//! weights.
//!
//! Not for inference, where weights stay packed ([`super::pack`]) as in the file.

use std::ops::Range;

use super::layout::{CELL, CELL_INPUTS, LayoutError, PackedWeights, TILE_NEURONS, packed_len};
use super::params::LinearParams;
use crate::compute::Compute;

/// Bits of a stored code.
const BITS: u8 = 8;

/// A weight matrix `[neurons, inputs]` of codes with the parameters of its neurons, rewritten whenever they change.
#[derive(Clone, Debug)]
pub struct WideWeights {
    neurons: usize,
    inputs: usize,
    bytes: Vec<u8>,
    params: LinearParams,
}

/// The parameters of every output neuron: `w = step · code + low`, and the bias.
#[derive(Clone, Copy, Debug)]
pub struct Neurons<'a> {
    /// `Δw` of each.
    pub steps: &'a [f32],
    /// `w0` of each.
    pub lows: &'a [f32],
    /// `b` of each.
    pub biases: &'a [f32],
}

/// A tile that is being written.
struct TileTask<'a, E> {
    bytes: &'a mut [u8],
    sums: &'a mut [i32],
    result: Result<(), E>,
}

impl WideWeights {
    /// A matrix of zeros.
    ///
    /// # Errors
    /// [`LayoutError::Shape`] when a side is 0 or there are more than [`super::MOST_INPUTS`] inputs.
    pub fn new(neurons: usize, inputs: usize) -> Result<Self, LayoutError> {
        let bytes = vec![0; packed_len(BITS, neurons, inputs)?];
        Ok(Self { neurons, inputs, bytes, params: LinearParams::zeros(neurons) })
    }

    /// Output neurons.
    pub fn neurons(&self) -> usize {
        self.neurons
    }

    /// Inputs of each.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Replaces everything, over all threads. `codes_of(neurons, codes)` writes the codes of some neurons, row-major.
    ///
    /// # Errors
    /// The first error of `codes_of` in the order of the neurons; the content of the matrix is then unspecified.
    ///
    /// # Panics
    /// When a slice does not have one number per neuron.
    pub fn write<E: Send>(
        &mut self,
        compute: &Compute,
        neurons: Neurons<'_>,
        codes_of: impl Fn(Range<usize>, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        self.params.set(neurons.steps, neurons.lows, neurons.biases);
        let (count, inputs) = (self.neurons, self.inputs);
        let tile_bytes = self.bytes.len() / count.div_ceil(TILE_NEURONS);
        let tiles = self.bytes.chunks_exact_mut(tile_bytes).zip(self.params.code_sums.chunks_mut(TILE_NEURONS));
        let mut tasks: Vec<_> = tiles.map(|(bytes, sums)| TileTask { bytes, sums, result: Ok(()) }).collect();
        compute.threads().for_each_item(&mut tasks, |tile, task| {
            let own = tile * TILE_NEURONS..count.min((tile + 1) * TILE_NEURONS);
            let mut codes = vec![0; own.len() * inputs];
            task.result = codes_of(own, &mut codes);
            lay_out(&codes, inputs, task.bytes);
            for (sum, row) in task.sums.iter_mut().zip(codes.chunks_exact(inputs)) {
                *sum = row.iter().map(|&code| i32::from(code)).sum();
            }
        });
        tasks.into_iter().try_for_each(|task| task.result)
    }

    /// The codes, as [`super::LinearLayer`] takes them.
    pub fn weights(&self) -> PackedWeights<'_> {
        PackedWeights::wide(self.neurons, self.inputs, &self.bytes)
    }

    /// The neurons' parameters, as [`super::LinearLayer`] takes them.
    pub fn params(&self) -> &LinearParams {
        &self.params
    }
}

/// Puts rows of codes into a tile's cells; the padding stays zero.
fn lay_out(codes: &[u8], inputs: usize, tile: &mut [u8]) {
    let cells = tile.as_chunks_mut::<CELL>().0;
    for (neuron, row) in codes.chunks_exact(inputs).enumerate() {
        let place = neuron * CELL_INPUTS..(neuron + 1) * CELL_INPUTS;
        let (fours, rest) = row.as_chunks::<CELL_INPUTS>();
        for (cell, codes) in cells.iter_mut().zip(fours) {
            cell[place.clone()].copy_from_slice(codes);
        }
        if !rest.is_empty() {
            cells[fours.len()][place.start..place.start + rest.len()].copy_from_slice(rest);
        }
    }
}
