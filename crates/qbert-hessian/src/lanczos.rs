//! Lanczos iteration: the extreme eigenvalues of both signs in far fewer products than power iteration.
//!
//! Every product adds one row to a small tridiagonal matrix whose extreme eigenvalues approach those of the operator.
//! [`Basis::Forgotten`] keeps two vectors only; rounding then makes copies of converged eigenvalues appear, which does
//! not disturb the extreme ones. [`Basis::Kept`] keeps every vector, orthogonalizes against all of them and can give
//! eigenvectors.
//!
//! What is certain: there is an eigenvalue within the residual of each one reported. That it is the outermost one is as
//! good as certain for a random start; a start that is nearly orthogonal to one of two close eigenvectors finds the other.

use serde::{Deserialize, Serialize};

use crate::tridiagonal::eigen;
use crate::vector::{add_scaled, dot, norm, normalized};
use crate::{Method, Stop};

/// Whether past vectors are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Basis {
    /// Only the last two: memory does not grow, and there are no eigenvectors.
    Forgotten,
    /// All of them, which gives eigenvectors.
    Kept,
}

/// An eigenvalue with its vector of unit length.
#[derive(Debug, Clone, PartialEq)]
pub struct Eigenpair {
    /// The eigenvalue.
    pub value: f64,
    /// A bound of `‖Hv − λv‖` in exact arithmetic.
    pub residual: f64,
    /// The eigenvector.
    pub vector: Vec<f32>,
}

/// The ends of the spectrum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spectrum {
    /// The highest eigenvalue.
    pub highest: f64,
    /// A bound of its error.
    pub highest_residual: f64,
    /// The lowest eigenvalue.
    pub lowest: f64,
    /// A bound of its error.
    pub lowest_residual: f64,
    /// Products formed.
    pub iterations: usize,
    /// Whether the end of largest size is as exact as was asked for.
    pub converged: bool,
}

impl Spectrum {
    /// The eigenvalue of largest size with its sign, as power iteration finds it, and its residual.
    pub fn dominant(&self) -> (f64, f64) {
        if self.highest.abs() >= self.lowest.abs() {
            (self.highest, self.highest_residual)
        } else {
            (self.lowest, self.lowest_residual)
        }
    }
}

/// A first vector that happens to lie close to a lesser eigenvector looks converged at once; a few more products show.
const FEWEST: usize = 6;

/// A Lanczos iteration in progress. Serializes without its vectors, which are stored in a file of their own:
/// see [`Lanczos::restore`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Lanczos {
    basis: Basis,
    stop: Stop,
    /// Eigenvectors that must be exact; 0 where only the eigenvalue matters.
    wanted: usize,
    /// All vectors so far, or the last two.
    #[serde(skip)]
    vectors: Vec<Vec<f32>>,
    diagonal: Vec<f64>,
    off_diagonal: Vec<f64>,
    spectrum: Spectrum,
    done: bool,
}

impl Lanczos {
    /// Starts from `vector` until the eigenvalue of largest size is exact to the tolerance.
    pub fn new(vector: &[f32], stop: Stop, basis: Basis) -> Self {
        Self::start(vector, stop, basis, 0)
    }

    /// Keeps its basis and goes on until the first `wanted` eigenvectors have residuals below the tolerance, relative to
    /// the largest eigenvalue: a stricter demand, since an eigenvalue's error is of the order of the residual's square.
    pub fn for_eigenvectors(vector: &[f32], stop: Stop, wanted: usize) -> Self {
        Self::start(vector, stop, Basis::Kept, wanted)
    }

    fn start(vector: &[f32], stop: Stop, basis: Basis, wanted: usize) -> Self {
        let start = normalized(vector);
        let done = start.is_none() || stop.iterations == 0;
        let spectrum = Spectrum {
            highest: 0.0,
            highest_residual: 0.0,
            lowest: 0.0,
            lowest_residual: 0.0,
            iterations: 0,
            converged: start.is_none(),
        };
        let vectors = vec![start.unwrap_or_else(|| vector.to_vec())];
        Self { basis, stop, wanted, vectors, diagonal: Vec::new(), off_diagonal: Vec::new(), spectrum, done }
    }

    /// The vectors that belong to the state: all so far, or the last two.
    pub fn vectors(&self) -> &[Vec<f32>] {
        &self.vectors
    }

    /// The iteration that was serialized, with the vectors it had.
    ///
    /// # Panics
    /// Without a vector.
    pub fn restore(state: Self, vectors: Vec<Vec<f32>>) -> Self {
        assert!(!vectors.is_empty(), "a Lanczos iteration without a vector");
        Self { vectors, ..state }
    }

    /// Both ends of the spectrum as known so far.
    pub fn spectrum(&self) -> Spectrum {
        self.spectrum
    }

    /// The `count` eigenpairs of largest size, that with the largest first; fewer where fewer products were formed.
    ///
    /// Empty with [`Basis::Forgotten`].
    pub fn eigenpairs(&self, count: usize) -> Vec<Eigenpair> {
        if self.basis == Basis::Forgotten {
            return Vec::new();
        }
        let last = self.off_diagonal.last().copied().unwrap_or(0.0);
        let mut small = eigen(&self.diagonal, &self.off_diagonal);
        small.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
        small.truncate(count);
        let lift = |(value, weights): (f64, Vec<f64>)| {
            let mut vector = vec![0.0; self.vectors[0].len()];
            weights.iter().zip(&self.vectors).for_each(|(weight, basis)| add_scaled(*weight, basis, &mut vector));
            let residual = (last * weights.last().copied().unwrap_or(0.0)).abs();
            Eigenpair { value, residual, vector: normalized(&vector).unwrap_or(vector) }
        };
        small.into_iter().map(lift).collect()
    }

    /// Whether eigenvalues, in the order of their size and each with its residual, are exact enough.
    fn is_exact(&self, by_size: &[(f64, f64)]) -> bool {
        let Some(&(top, residual)) = by_size.first().filter(|_| by_size.len() >= FEWEST) else { return false };
        let enough = self.stop.tolerance * top.abs();
        if self.wanted > 0 {
            return by_size.len() >= self.wanted && by_size.iter().take(self.wanted).all(|(_, error)| *error <= enough);
        }
        // An eigenvalue's error is at most the residual, and at most its square over the distance to the next one.
        let gap = by_size[1..].iter().map(|(other, _)| (top - other).abs()).fold(f64::INFINITY, f64::min);
        let sharper = if gap > residual && by_size.len() > 1 { residual * residual / gap } else { residual };
        // The other end of the spectrum may still grow past this one: unless it is clearly shorter, it must stand too.
        const CLEARLY: f64 = 0.9;
        let opposite = by_size.iter().find(|(other, _)| other.signum() != top.signum());
        let settled =
            opposite.is_none_or(|(other, error)| *error <= enough || other.abs() + error <= CLEARLY * top.abs());
        sharper <= enough && settled
    }

    /// Reads the ends of the spectrum off the tridiagonal matrix and decides whether they are good enough.
    fn assess(&mut self, next_length: f64) {
        let small = eigen(&self.diagonal, &self.off_diagonal);
        let error = |weights: &[f64]| (next_length * weights.last().copied().unwrap_or(0.0)).abs();
        let (Some((lowest, low)), Some((highest, high))) = (small.first(), small.last()) else { return };
        let iterations = self.diagonal.len();
        let mut by_size: Vec<_> = small.iter().map(|(value, weights)| (*value, error(weights))).collect();
        by_size.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
        let exact = self.is_exact(&by_size);
        self.spectrum = Spectrum {
            highest: *highest,
            highest_residual: error(high),
            lowest: *lowest,
            lowest_residual: error(low),
            iterations,
            converged: exact,
        };
        self.done = exact || iterations >= self.stop.iterations;
    }
}

impl Method for Lanczos {
    fn vector(&self) -> Option<&[f32]> {
        if self.done { None } else { self.vectors.last().map(Vec::as_slice) }
    }

    fn advance(&mut self, product: &[f32]) {
        let current = self.vectors.len() - 1;
        assert!(!self.done && product.len() == self.vectors[current].len(), "an unexpected product");
        let along = dot(&self.vectors[current], product);
        let size = norm(product);
        self.diagonal.push(along);
        let mut next = product.to_vec();
        add_scaled(-along, &self.vectors[current], &mut next);
        if current > 0 {
            let before = self.off_diagonal.last().copied().unwrap_or(0.0);
            add_scaled(-before, &self.vectors[current - 1], &mut next);
        }
        if self.basis == Basis::Kept {
            // Twice is enough: what the first pass leaves is rounding, what the second leaves is nothing.
            for _ in 0..2 {
                for earlier in &self.vectors {
                    let overlap = dot(earlier, &next);
                    add_scaled(-overlap, earlier, &mut next);
                }
            }
        }
        let length = norm(&next);
        // Below f32's rounding of the product nothing is left but noise: the space is exhausted and the answer exact.
        let exhausted = length <= 1e-6 * size || !length.is_finite() || self.diagonal.len() == product.len();
        self.assess(if exhausted { 0.0 } else { length });
        if exhausted {
            self.spectrum.converged = length.is_finite();
            self.done = true;
            return;
        }
        if self.done {
            // Kept for the residuals of the eigenpairs.
            self.off_diagonal.push(length);
            return;
        }
        self.off_diagonal.push(length);
        next.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
        if self.basis == Basis::Forgotten && self.vectors.len() == 2 {
            self.vectors.swap(0, 1);
            self.vectors[1] = next;
        } else {
            self.vectors.push(next);
        }
    }
}
