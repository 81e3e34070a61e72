//! The parameters of a linear layer besides its codes: one step, offset, code sum and bias per output neuron.

use super::layout::{BLOCK_CELLS, CELL, CELL_INPUTS, PackedWeights, TILE_NEURONS};
use super::tile::PANEL;
use crate::cpu::Kernels;

/// The parameters of every output neuron `n`: a weight is `Δ_n · W + w0_n`, and `b_n` is added to the sum.
///
/// Arrays are padded to whole panels with zeros, so that kernels read whole vectors.
#[derive(Clone, Debug)]
pub struct LinearParams {
    neurons: usize,
    pub(super) steps: Vec<f32>,
    pub(super) lows: Vec<f32>,
    pub(super) biases: Vec<f32>,
    pub(super) code_sums: Vec<i32>,
}

impl LinearParams {
    /// Takes the neurons' steps, offsets and biases, and sums the codes.
    ///
    /// # Panics
    /// When a slice does not have one element per neuron.
    pub fn new(kernels: Kernels, weights: &PackedWeights<'_>, steps: &[f32], lows: &[f32], biases: &[f32]) -> Self {
        let mut params = Self::zeros(weights.neurons());
        params.set(steps, lows, biases);
        let sums = code_sums(kernels, weights);
        // There are sums for whole tiles of neurons, and room for whole panels.
        params.code_sums[..sums.len()].copy_from_slice(&sums);
        params
    }

    /// Neurons that give 0.
    pub(super) fn zeros(neurons: usize) -> Self {
        let padded = neurons.next_multiple_of(PANEL);
        let floats = || vec![0.0; padded];
        Self { neurons, steps: floats(), lows: floats(), biases: floats(), code_sums: vec![0; padded] }
    }

    /// Replaces steps, offsets and biases; the code sums stay.
    pub(super) fn set(&mut self, steps: &[f32], lows: &[f32], biases: &[f32]) {
        let (neurons, lengths) = (self.neurons, [steps.len(), lows.len(), biases.len()]);
        assert!(lengths.iter().all(|&length| length == neurons), "numbers of {lengths:?} neurons instead of {neurons}");
        for (own, values) in [(&mut self.steps, steps), (&mut self.lows, lows), (&mut self.biases, biases)] {
            own[..neurons].copy_from_slice(values);
        }
    }

    /// Output neurons.
    pub fn neurons(&self) -> usize {
        self.neurons
    }

    /// `Σ W` of each neuron.
    pub fn code_sums(&self) -> &[i32] {
        &self.code_sums[..self.neurons]
    }
}

/// Sums the codes tile by tile; padding is 0.
fn code_sums(kernels: Kernels, weights: &PackedWeights<'_>) -> Vec<i32> {
    let mut cells = vec![0; weights.blocks() * BLOCK_CELLS * CELL];
    let mut sums = Vec::with_capacity(weights.tiles() * TILE_NEURONS);
    for tile in 0..weights.tiles() {
        weights.widen_tile(kernels, tile, &mut cells);
        let mut tile_sums = [0_u32; TILE_NEURONS];
        for cell in cells.as_chunks::<CELL>().0 {
            let neurons = cell.as_chunks::<CELL_INPUTS>().0.iter();
            for (sum, codes) in tile_sums.iter_mut().zip(neurons) {
                *sum += codes.iter().map(|&code| u32::from(code)).sum::<u32>();
            }
        }
        sums.extend(tile_sums.map(u32::cast_signed));
    }
    sums
}
