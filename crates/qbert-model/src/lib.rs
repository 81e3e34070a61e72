//! What BERT is: its configuration, its named weights, and Hugging Face checkpoints in and out.
//!
//! BERT is described once, here. Quantization enters through the weight *sites* of `qbert-quant`, so there is no
//! second model for the quantized case. This crate does no arithmetic on activations and knows no task.

pub mod atomic;
mod checkpoint;
mod config;
mod error;
#[cfg(feature = "hub")]
pub mod hub;
mod layout;
pub mod packed;
mod parameters;
pub mod sizes;

pub use checkpoint::{Checkpoint, FloatTensor, Loaded, TokenizerFiles, update_checkpoint, write_checkpoint};
pub use config::{Config, Head};
pub use error::{Error, Result, is_wrong_path};
pub use layout::{Layout, Parameter, matrix_shape, site_tensor};
pub use packed::PackedModel;
pub use parameters::Parameters;
