//! The embedding sum: word + position + token type, before its LayerNorm.
//!
//! Positions count from the start of each sequence, not of the batch. `E` is the width of the tables, which most families
//! give the encoder as well.

use qbert_kernels::Compute;

use crate::batch::Batch;

/// The three tables, each row-major with `E` columns.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// `[vocabulary, E]`
    pub word: &'a [f32],
    /// `[positions, E]`, empty for a model without such a table
    pub position: &'a [f32],
    /// `[types, E]`, empty for a model without token types
    pub token_type: &'a [f32],
}

/// Where the gradients of the three tables are added.
#[derive(Debug)]
pub struct TableGradients<'a> {
    /// `[vocabulary, E]`
    pub word: &'a mut [f32],
    /// `[positions, E]`, empty for a model without such a table
    pub position: &'a mut [f32],
    /// `[types, E]`, empty for a model without token types
    pub token_type: &'a mut [f32],
}

fn row(index: usize, width: usize) -> std::ops::Range<usize> {
    index * width..(index + 1) * width
}

/// `sum[t] = word[id] + position[p] + type[s]`, `[T, E]`; `positions` are the rows of the position table.
pub fn forward(compute: &Compute, tables: Tables<'_>, batch: &Batch, positions: &[u32], sum: &mut [f32]) {
    let kernels = compute.kernels();
    let width = sum.len() / batch.tokens();
    let mut parts = split_by_sequence(sum, batch, width);
    compute.threads().for_each_item(&mut parts, |sequence, part| {
        let first = batch.offsets[sequence];
        for (index, out) in part.chunks_exact_mut(width).enumerate() {
            let token = first + index;
            let (id, segment) = (batch.input_ids[token], batch.segments[token]);
            out.copy_from_slice(&tables.word[row(id as usize, width)]);
            if !tables.position.is_empty() {
                kernels.add_scaled(1.0, &tables.position[row(positions[token] as usize, width)], out);
            }
            if !tables.token_type.is_empty() {
                kernels.add_scaled(1.0, &tables.token_type[row(usize::from(segment), width)], out);
            }
        }
    });
}

/// Adds each token's gradient to its rows, token after token: one thread, so that rows that occur several times
/// are summed in one order. It is a few hundred additions per token, next to several million multiplications above.
pub fn backward(
    compute: &Compute,
    batch: &Batch,
    positions: &[u32],
    d_sum: &[f32],
    gradients: &mut TableGradients<'_>,
) {
    let kernels = compute.kernels();
    let width = d_sum.len() / batch.tokens();
    for (token, d) in d_sum.chunks_exact(width).enumerate() {
        let (id, segment) = (batch.input_ids[token] as usize, usize::from(batch.segments[token]));
        kernels.add_scaled(1.0, d, &mut gradients.word[row(id, width)]);
        if !gradients.position.is_empty() {
            kernels.add_scaled(1.0, d, &mut gradients.position[row(positions[token] as usize, width)]);
        }
        if !gradients.token_type.is_empty() {
            kernels.add_scaled(1.0, d, &mut gradients.token_type[row(segment, width)]);
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
