//! Short hashes that tell whether two runs used the same weights and the same data. They are written into results and
//! resumable states, so they must never change; they are no protection against forgery.

use qbert_tasks::Features;

use crate::error::Result;
use crate::random::mix;

/// The hash of a model's weights, bit for bit.
pub fn weights(values: &[f32]) -> String {
    words(values.iter().map(|value| value.to_bits()))
}

/// What identifies a data set: its size and a hash of tokens and targets.
///
/// # Errors
/// Data without labels.
pub fn data(features: &Features) -> Result<serde_json::Value> {
    let all: Vec<usize> = (0..features.len()).collect();
    let batch = features.batch(&all, false)?;
    let tokens = batch.input_ids.iter().copied().chain(batch.offsets.iter().map(|&offset| offset as u32));
    let targets = format!("{:?}", features.batch(&all, true)?.targets);
    let hash = words(tokens.chain(targets.bytes().map(u32::from)));
    Ok(serde_json::json!({ "sequences": features.len(), "tokens": batch.tokens(), "hash": hash }))
}

fn words(words: impl Iterator<Item = u32>) -> String {
    format!("{:016x}", words.fold(0, |hash: u64, word| mix(hash ^ u64::from(word)).wrapping_add(1)))
}
