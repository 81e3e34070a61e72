//! The whole way from a checkpoint and data to a packed model and a report, and the steps that need more than one of the
//! crates below: planning, packing, and judging a packed file.
//!
//! [`run`] is the job; a single step of training or analysis is a call of `qbert_train`.

mod error;
pub mod hashes;
pub mod packed_evaluation;
pub mod packing;
pub mod planning;
mod quantization_error;
pub mod run;

pub use error::{Error, ErrorKind, Result};
pub use quantization_error::{SiteError, Trial, plan_errors, quantization_errors};
