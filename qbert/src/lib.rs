//! Small BERTs for ordinary CPUs, by the method of the Q-BERT paper.
//!
//! This crate is the library facade (the one crate under semantic versioning) and the `qbert` command. The crates
//! below it hold the parts: [`quant`] the paper's arithmetic and the bit plan, [`model`] checkpoints, [`tasks`]
//! data, tokenization and metrics, [`train`] the training engine on top of [`kernels`], [`hessian`] eigenvalues,
//! [`runtime`] predictions from a packed model.

mod error;
pub mod fetch;
pub mod packed_evaluation;
pub mod packing;
pub mod planning;
mod quantization_error;
pub mod reproduce;
pub mod run;

pub use error::{Error, ErrorKind, Result};
pub use qbert_hessian as hessian;
pub use qbert_kernels as kernels;
pub use qbert_model as model;
pub use qbert_quant as quant;
pub use qbert_report as report;
pub use qbert_runtime as runtime;
pub use qbert_tasks as tasks;
pub use qbert_train as train;
pub use quantization_error::{SiteError, Trial, plan_errors, quantization_errors};
