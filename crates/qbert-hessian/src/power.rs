//! Power iteration exactly as the paper's Alg. 1: multiply, normalize, repeat; the eigenvalue is `vᵀHv`.
//!
//! It finds the eigenvalue that is largest in size, with its sign: a dominant negative eigenvalue is found as such. The
//! vector then flips its sign with every product, which changes nothing. Needs one vector of memory.

use serde::{Deserialize, Serialize};

use crate::vector::{dot, norm, normalized};
use crate::{Method, Stop};

/// What power iteration found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TopEigenvalue {
    /// The eigenvalue of largest size.
    pub value: f64,
    /// `‖Hv − λv‖`: how far the vector is from being an eigenvector; the true eigenvalue is within this distance.
    pub residual: f64,
    /// Products formed.
    pub iterations: usize,
    /// Whether it stopped because it had converged, and not because of the limit.
    pub converged: bool,
}

/// A power iteration in progress. Serializes without its vector, which is stored in a file of its own:
/// see [`PowerIteration::restore`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PowerIteration {
    #[serde(skip)]
    vector: Vec<f32>,
    stop: Stop,
    found: TopEigenvalue,
    done: bool,
}

impl PowerIteration {
    /// Starts from `vector`, which need not be normalized. A zero vector is done at once, with eigenvalue 0.
    pub fn new(vector: &[f32], stop: Stop) -> Self {
        let start = normalized(vector);
        let found = TopEigenvalue { value: 0.0, residual: 0.0, iterations: 0, converged: start.is_none() };
        let done = start.is_none() || stop.iterations == 0;
        Self { vector: start.unwrap_or_else(|| vector.to_vec()), stop, found, done }
    }

    /// The iteration that was serialized, with the vector it had ([`PowerIteration::eigenvector`]).
    pub fn restore(state: Self, vector: Vec<f32>) -> Self {
        Self { vector, ..state }
    }

    /// What has been found so far.
    pub fn found(&self) -> TopEigenvalue {
        self.found
    }

    /// The vector of unit length that belongs to it.
    pub fn eigenvector(&self) -> &[f32] {
        &self.vector
    }
}

impl Method for PowerIteration {
    fn vector(&self) -> Option<&[f32]> {
        (!self.done).then_some(&self.vector[..])
    }

    fn advance(&mut self, product: &[f32]) {
        assert!(!self.done && product.len() == self.vector.len(), "an unexpected product");
        let value = dot(&self.vector, product);
        let length = norm(product);
        let change = (value - self.found.value).abs();
        let first = self.found.iterations == 0;
        self.found.iterations += 1;
        // ‖Hv − λv‖² = ‖Hv‖² − λ² for a unit vector; rounding can push it a hair below zero.
        self.found.residual = (length * length - value * value).max(0.0).sqrt();
        self.found.value = value;
        let Some(next) = normalized(product) else {
            // H·v = 0: the start was in the null space, which for a random start means that H is zero.
            self.found.converged = length == 0.0;
            self.done = true;
            return;
        };
        self.vector = next;
        self.found.converged = !first && change <= self.stop.tolerance * value.abs();
        self.done = self.found.converged || self.found.iterations >= self.stop.iterations;
    }
}
