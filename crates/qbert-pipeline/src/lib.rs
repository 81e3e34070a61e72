//! The job from a checkpoint and data to a packed model and a report ([`run`]), and the steps that need more than one of the
//! crates below: planning, packing, evaluating a packed file, and comparing two models.
//!
//! For a single step of training or analysis, call `qbert_train`.

mod changes;
pub mod comparison;
mod error;
pub mod hashes;
pub mod packed_evaluation;
pub mod packing;
pub mod planning;
pub mod pruning;
pub mod run;

pub use error::{Error, ErrorKind, Result};
