//! Hugging Face checkpoint directories, in and out.
//!
//! Reading accepts what the ecosystem has produced over the years: f32, f16 and bf16, one file or shards, with or
//! without the `bert.` prefix, `gamma`/`beta` or `weight`/`bias`, bare encoders and the three heads. Writing
//! gives the one layout that `transformers` loads today.

mod files;
mod read;
mod write;

pub use read::{Checkpoint, Loaded, TokenizerFiles};
pub use write::{FloatTensor, update_checkpoint, write_checkpoint};
