//! The operations of an encoder, one file each, with every derivative beside its function.
//!
//! Letters used throughout: `T` tokens of a batch, `B` sequences, `n` tokens of one sequence, `H` hidden size,
//! `I` feed-forward width, `N` heads, `D = H/N`. All matrices are row-major, one row per token.
//!
//! An operation is a handful of plain functions over slices: `forward`, `backward`, and their directional derivatives
//! `forward_tangent` and `backward_tangent`, which Hessian-vector products are built from (evaluation only: no dropout).
//! There is no graph and no tape: the model calls them in order and in reverse order, and passes each what it needs from
//! the forward pass. Row-wise and element-wise kernels come from `qbert-kernels`.
//!
//! In comments a dot marks a tangent: `ẋ` is that of `x`, and `dẋ` that of `dx`, the gradient of `x`.

pub mod activation;
pub mod attention;
pub mod distill;
pub mod dropout;
pub mod embedding;
pub mod gated;
pub mod linear;
pub mod loss;
pub mod pairs;
pub mod pooler;
pub mod quantize;
pub mod residual_norm;
pub mod sentence_vector;

pub use dropout::Dropout;

/// A matrix and its tangent: how it changes along the direction in which the weights move.
#[derive(Debug, Clone, Copy)]
pub struct Dual<'a> {
    /// The matrix itself.
    pub value: &'a [f32],
    /// Its directional derivative, of the same shape.
    pub tangent: &'a [f32],
}
