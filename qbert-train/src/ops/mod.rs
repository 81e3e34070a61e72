//! BERT's operations, one file each, every derivative beside its function.
//!
//! Letters used throughout: `T` tokens of a batch, `B` sequences, `n` tokens of one sequence, `H` hidden size,
//! `I` feed-forward width, `N` heads, `D = H/N`. All matrices are row-major, one row per token.
//!
//! An operation is a handful of plain functions over slices: `forward`, `backward`, and later their directional
//! derivatives `forward_tangent` and `backward_tangent`. There is no graph and no tape: the model calls them in order
//! and in reverse order, and knows what each needs to be given again. What is row-wise or element-wise comes from
//! `qbert-kernels` as it is; here is what BERT makes of it.

pub mod attention;
pub mod embedding;
pub mod linear;
pub mod loss;
pub mod residual_norm;

use qbert_kernels::{Compute, DropoutKey, Kernels};

/// A dropout: never stored, but drawn again from its key wherever it is needed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Names the mask: seed, step and place in the network.
    pub key: DropoutKey,
    /// Probability of an element to be dropped; 0 is no dropout.
    pub rate: f32,
}

impl Dropout {
    /// Applies the mask to a part of a tensor that starts at element `offset` of the whole.
    pub fn apply_part(self, kernels: Kernels, part: &mut [f32], offset: usize) {
        kernels.dropout(part, self.key, offset, self.rate);
    }

    /// Applies the mask to a whole tensor, forward or backward: both multiply by the same mask.
    pub fn apply(self, compute: &Compute, tensor: &mut [f32]) {
        compute.dropout(tensor, self.key, self.rate);
    }
}
