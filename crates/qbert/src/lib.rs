//! Small transformer encoders for ordinary CPUs, by the method of the Q-BERT paper.

pub use qbert_pipeline::{Error, ErrorKind, Result};
