//! Extreme eigenvalues, eigenvectors and trace of symmetric matrices that are known only by their products with vectors,
//! and loss landscapes over two directions.
//!
//! This is the linear algebra of the paper's §3.2: the Hessian of an encoder layer is never formed, only multiplied. The
//! crate knows nothing about models or data: any [`SymmetricOperator`] will do.
//!
//! | question | answer | paper |
//! |---|---|---|
//! | largest eigenvalue in size | [`PowerIteration`] | Alg. 1 |
//! | the same and both ends of the spectrum, in fewer products | [`Lanczos`] | – |
//! | the first few eigenvectors | [`Lanczos`] with [`Basis::Kept`] | Fig. 1, 3, 6 |
//! | sum of all eigenvalues | [`Trace`] | – |
//! | loss over a plane | [`landscape`] | Fig. 1, 3, 6 |
//!
//! **Reverse communication.** A method does not call the operator; it says which vector it wants multiplied
//! (`vector`) and is told the product (`advance`). So one pass over the data can serve the vectors of all layers at
//! once, and a run can be stopped between two products. [`run`] drives a single method with an operator.
//!
//! Vectors are f32, every sum is f64. Nothing here is random: starting vectors come from the caller.

mod lanczos;
pub mod landscape;
mod power;
mod trace;
mod tridiagonal;
mod vector;

pub use lanczos::{Basis, Eigenpair, Lanczos, Spectrum};
pub use power::{PowerIteration, TopEigenvalue};
pub use trace::{Trace, TraceEstimate};

/// A symmetric matrix, known by its products.
pub trait SymmetricOperator {
    /// Why a product could not be formed.
    type Error;

    /// Number of rows and columns.
    fn dimension(&self) -> usize;

    /// `product = A·vector`.
    ///
    /// # Errors
    /// Whatever keeps the operator from multiplying.
    fn multiply(&mut self, vector: &[f32], product: &mut [f32]) -> Result<(), Self::Error>;
}

/// A method that wants vectors multiplied until it is done.
pub trait Method {
    /// The vector to be multiplied next, or `None` when the method is done.
    fn vector(&self) -> Option<&[f32]>;

    /// Takes the product of [`Method::vector`].
    ///
    /// # Panics
    /// If the product has another length than the vector, or the method is done.
    fn advance(&mut self, product: &[f32]);
}

/// Runs a method to its end with one operator.
///
/// # Errors
/// As the operator.
pub fn run<O: SymmetricOperator>(method: &mut dyn Method, operator: &mut O) -> Result<(), O::Error> {
    let mut product = vec![0.0; operator.dimension()];
    while let Some(vector) = method.vector() {
        operator.multiply(vector, &mut product)?;
        method.advance(&product);
    }
    Ok(())
}

/// When an iteration stops.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Stop {
    /// Products at the most.
    pub iterations: usize,
    /// Change or error of the eigenvalue, relative to its size, that is small enough.
    pub tolerance: f64,
}
