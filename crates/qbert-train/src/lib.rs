//! The training engine: BERT's operations with their derivatives, the optimizer and the trainer.
//!
//! It computes on batches without padding, keeps no graph, allocates its buffers once, and gives the same bytes with any
//! number of threads. [`ops`] holds the operations, [`bert`] calls them in order, [`trainer`] calls that.

mod agreement;
pub mod attention_kl;
pub mod bert;
mod error;
pub mod evaluate;
pub mod finetune;
pub mod fingerprint;
pub mod landscape;
pub mod loading;
pub mod ops;
pub mod optimizer;
pub mod qat;
pub mod random;
pub mod sensitivity;
pub mod state;
mod team;
pub mod trainer;

pub use bert::Bert;
pub use error::{Error, Result};
pub use qbert_tasks::{Batch, Targets, batch, features};
