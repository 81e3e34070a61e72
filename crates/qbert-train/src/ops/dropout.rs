//! Dropout whose mask is never stored: it is drawn again from its key wherever it is needed.
//!
//! Forward and backward pass are the same function, since both multiply by the same mask.

use qbert_kernels::{Compute, DropoutKey, Kernels};

/// One dropout: its mask and its rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Names the mask: seed, step and place in the network.
    pub key: DropoutKey,
    /// Probability of an element to be dropped; 0 is no dropout.
    pub rate: f32,
    /// The number of the tensor's first element, where the tensor is a part of the one that the mask is for.
    pub first: usize,
}

impl Dropout {
    /// Applies the mask to a part of a tensor that starts at element `offset` of the whole.
    pub fn apply_part(self, kernels: Kernels, part: &mut [f32], offset: usize) {
        kernels.dropout(part, self.key, offset, self.rate);
    }

    /// Applies the mask to a whole tensor.
    pub fn apply(self, compute: &Compute, tensor: &mut [f32]) {
        compute.dropout_from(tensor, self.key, self.first, self.rate);
    }
}

/// A gradient through a dropout: itself where there is none, else a masked copy.
pub fn backward<'a>(compute: &Compute, dropout: Option<Dropout>, d: &'a [f32], copy: &'a mut [f32]) -> &'a [f32] {
    match dropout {
        None => d,
        Some(dropout) => {
            copy.copy_from_slice(d);
            dropout.apply(compute, copy);
            copy
        }
    }
}
