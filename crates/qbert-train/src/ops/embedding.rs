//! The embedding sum: word + position + token type, before its LayerNorm.
//!
//! Positions count from the start of each sequence, not of the batch.

use qbert_kernels::Compute;

use crate::batch::Batch;

/// The three tables, each row-major with `H` columns.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// `[vocabulary, H]`
    pub word: &'a [f32],
    /// `[positions, H]`
    pub position: &'a [f32],
    /// `[types, H]`
    pub token_type: &'a [f32],
}

/// Where the gradients of the three tables are added.
#[derive(Debug)]
pub struct TableGradients<'a> {
    /// `[vocabulary, H]`
    pub word: &'a mut [f32],
    /// `[positions, H]`
    pub position: &'a mut [f32],
    /// `[types, H]`
    pub token_type: &'a mut [f32],
}

fn row(index: usize, hidden: usize) -> std::ops::Range<usize> {
    index * hidden..(index + 1) * hidden
}

/// `sum[t] = word[id] + position[p] + type[s]`, `[T, H]`.
pub fn forward(compute: &Compute, tables: Tables<'_>, batch: &Batch, hidden: usize, sum: &mut [f32]) {
    let kernels = compute.kernels();
    let mut parts = split_by_sequence(sum, batch, hidden);
    compute.threads().for_each_item(&mut parts, |sequence, part| {
        let first = batch.offsets[sequence];
        for (position, out) in part.chunks_exact_mut(hidden).enumerate() {
            let (id, segment) = (batch.input_ids[first + position], batch.segments[first + position]);
            out.copy_from_slice(&tables.word[row(id as usize, hidden)]);
            kernels.add_scaled(1.0, &tables.position[row(position, hidden)], out);
            kernels.add_scaled(1.0, &tables.token_type[row(usize::from(segment), hidden)], out);
        }
    });
}

/// Adds each token's gradient to its three rows, token after token: one thread, so that rows that occur several times
/// are summed in one order. It is a few hundred additions per token, next to several million multiplications above.
pub fn backward(compute: &Compute, batch: &Batch, hidden: usize, d_sum: &[f32], gradients: &mut TableGradients<'_>) {
    let kernels = compute.kernels();
    for range in batch.ranges() {
        for (position, token) in range.enumerate() {
            let d = &d_sum[row(token, hidden)];
            let (id, segment) = (batch.input_ids[token] as usize, usize::from(batch.segments[token]));
            kernels.add_scaled(1.0, d, &mut gradients.word[row(id, hidden)]);
            kernels.add_scaled(1.0, d, &mut gradients.position[row(position, hidden)]);
            kernels.add_scaled(1.0, d, &mut gradients.token_type[row(segment, hidden)]);
        }
    }
}

/// The rows of each sequence of a `[T, width]` matrix as a slice of their own.
pub(crate) fn split_by_sequence<'a>(matrix: &'a mut [f32], batch: &Batch, width: usize) -> Vec<&'a mut [f32]> {
    let mut rest = matrix;
    let mut parts = Vec::with_capacity(batch.sequences());
    for range in batch.ranges() {
        let (part, after) = rest.split_at_mut(range.len() * width);
        parts.push(part);
        rest = after;
    }
    parts
}
