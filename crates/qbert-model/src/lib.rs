//! What an encoder is: its family, its configuration, its parameters, and the files that hold them.
//!
//! A [`Family`] describes a kind of encoder as data. Quantization enters through the weight *sites* of `qbert-quant`,
//! so there is no second model for the quantized case. This crate does no arithmetic on activations and knows no task.

pub mod atomic;
mod checkpoint;
mod config;
mod embedder;
mod error;
pub mod family;
mod head;
#[cfg(feature = "hub")]
pub mod hub;
mod layout;
pub mod lock;
pub mod packed;
mod parameters;
mod role;
pub mod sealed;
pub mod sizes;

pub use checkpoint::{Checkpoint, FloatTensor, LoadedWeights, TokenizerFiles, update_checkpoint, write_checkpoint};
pub use config::{Biases, Config, LayerAttention, PoolerSettings};
pub use embedder::{Embedder, Pooling};
pub use error::{Error, Result, is_wrong_path};
pub use family::{Family, HeadClass};
pub use head::{Head, Problem};
pub use layout::{FileTensor, Parameter, ParameterLayout};
pub use packed::{PackedModel, Storage};
pub use parameters::Parameters;
pub use role::{Module, Role, Tensor};
