//! Hugging Face checkpoint directories, in and out.
//!
//! Reading accepts every form that the ecosystem has produced over the years: f32, f16 and bf16, one file or shards, with
//! or without the family's prefix, old and new names of norms, bare encoders and the three heads. Writing produces the
//! form that `transformers` writes today.

mod files;
mod read;
mod write;

pub use read::{Checkpoint, LoadedWeights, TokenizerFiles};
pub use write::{FloatTensor, update_checkpoint, write_checkpoint};
