//! How large the packed file of a plan will be, before it is made.

use std::path::Path;

use qbert_model::sizes::file_size;
use qbert_quant::{Embedding, ModelShape, Plan, Site};

use crate::error::Result;
use crate::packing::PackedText;

/// Bytes allowed for what the header says once: format, task, command and where the model comes from.
const HEADER: u64 = 8 << 10;
/// Bytes allowed in the header for each site: its entries, its checksums and its lines of the plan.
const HEADER_PER_SITE: u64 = 512;

/// What a packed file holds besides weights, in bytes: the tokenizer to the byte, and a header that is large enough for any
/// plan, so that a file planned for a budget never exceeds it. A directory without a tokenizer counts none.
///
/// # Errors
/// A tokenizer that cannot be read.
pub fn besides_weights(directory: &Path, shape: &ModelShape) -> Result<u64> {
    let word = shape.tensors.iter().find(|tensor| tensor.site == Site::Embedding(Embedding::Word));
    let is_there = ["tokenizer.json", "vocab.txt"].iter().any(|name| directory.join(name).exists());
    let tokenizer = match word {
        Some(word) if is_there => PackedText::of(directory, word.rows)?.len() as u64,
        _ => 0,
    };
    // The header repeats the labels twice.
    let config = std::fs::metadata(directory.join("config.json")).map_or(0, |file| file.len());
    Ok(tokenizer + 2 * config + HEADER + HEADER_PER_SITE * shape.tensors.len() as u64)
}

/// The size of the whole packed file, at most.
///
/// # Errors
/// A plan for another model; a tokenizer that cannot be read.
pub fn whole_file(directory: &Path, shape: &ModelShape, plan: &Plan) -> Result<u64> {
    Ok(file_size(shape, plan)?.total() + besides_weights(directory, shape)?)
}
