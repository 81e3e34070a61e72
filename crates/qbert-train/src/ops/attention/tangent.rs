//! Directional derivatives of the attention core, forward and backward: its part of a Hessian-vector product.
//!
//! With `P = softmax(S)`, `S = scale·Q·Kᵀ`, `C = P·V`, and a dot for a tangent:
//!
//! - forward: `Ṗ = J·(Q̇·Kᵀ + Q·K̇ᵀ)`, `Ċ = Ṗ·V + P·V̇`, where `J` is softmax's (symmetric) derivative times the scale;
//! - backward, with `dX` the gradient of `X` and `dẊ` its tangent:
//!   `dV̇ = Ṗᵀ·dC + Pᵀ·dĊ`, `dṖ = dĊ·Vᵀ + dC·V̇ᵀ`, `dṠ` is the tangent of `J·dP`, `dQ̇ = dṠ·K + dS·K̇`,
//!   `dK̇ = dṠᵀ·Q + dSᵀ·Q̇`.
//!
//! There is no dropout here: curvature is that of the loss in evaluation. `dP` and `dS` are computed again from `dC`;
//! keeping them for every layer would cost more memory than the product costs time.

use qbert_kernels::{Compute, DistanceBias, Kernels, MatMut, MatRef, SoftmaxTangent, Start};

use super::{Heads, Treatment, tiled};
use crate::batch::Batch;
use crate::ops::Dual;
use crate::ops::embedding::split_by_sequence;

/// What a forward tangent is given again, and writes.
#[derive(Debug)]
pub struct ForwardTangent<'a> {
    /// As the forward pass left them.
    pub probabilities: &'a [f32],
    /// Their tangent, kept for [`backward_tangent`].
    pub probabilities_tangent: &'a mut [f32],
    /// The context's tangent `[T, H]`.
    pub context_tangent: &'a mut [f32],
    /// What the forward pass added to the scaled scores; needed where probabilities are computed again.
    pub bias: Option<&'a DistanceBias>,
}

/// What a backward tangent is given again, and writes.
#[derive(Debug)]
pub struct BackwardTangent<'a> {
    /// What the forward pass was given, and its tangent `[T, 3H]`.
    pub qkv: Dual<'a>,
    /// The gradient of the context, and its tangent `[T, H]`.
    pub d_context: Dual<'a>,
    /// The probabilities, and their tangent as [`forward_tangent`] left it.
    pub probabilities: Dual<'a>,
    /// As in [`ForwardTangent`].
    pub bias: Option<&'a DistanceBias>,
    /// Two heads' worth of scratch: twice [`Heads::scratch`] elements.
    pub scratch: &'a mut [f32],
    /// Tangent of the gradient of `qkv` `[T, 3H]`, overwritten.
    pub d_qkv_tangent: &'a mut [f32],
}

/// One sequence's share: what it writes and where its probabilities begin.
struct Task<'a> {
    sequence: usize,
    own: &'a mut [f32],
    out: &'a mut [f32],
    first_probability: usize,
}

/// How much each sequence has of two arrays.
#[derive(Clone, Copy)]
struct Share {
    /// `n²` elements of the first, this many times.
    squares: usize,
    /// Columns of the second, which has a row per token.
    width: usize,
}

/// One task per sequence whose probabilities are kept, with its share of `per_square` and its rows of `out`; `tiled` gets
/// the others and their rows.
fn tasks<'a>(
    heads: Heads,
    batch: &Batch,
    per_square: &'a mut [f32],
    out: &'a mut [f32],
    share: Share,
    mut tiled: impl FnMut(usize, &mut [f32]),
) -> Vec<Task<'a>> {
    let Share { squares, width } = share;
    let mut rest = per_square;
    let mut tasks = Vec::with_capacity(batch.sequences());
    let sequences = split_by_sequence(out, batch, width).into_iter().zip(heads.places(batch));
    for (sequence, (out, place)) in sequences.enumerate() {
        if place.square == 0 {
            tiled(sequence, out);
            continue;
        }
        let (own, later) = rest.split_at_mut(squares * place.square);
        rest = later;
        tasks.push(Task { sequence, own, out, first_probability: place.start });
    }
    tasks
}

fn rows<'a>(matrix: &'a [f32], batch: &Batch, sequence: usize, width: usize) -> &'a [f32] {
    let range = batch.sequence(sequence);
    &matrix[range.start * width..range.end * width]
}

fn dual_rows<'a>(matrix: Dual<'a>, batch: &Batch, sequence: usize, width: usize) -> Dual<'a> {
    Dual { value: rows(matrix.value, batch, sequence, width), tangent: rows(matrix.tangent, batch, sequence, width) }
}

/// From `qkv` and its tangent `[T, 3H]` to the tangents of the probabilities and of the context.
pub fn forward_tangent(compute: &Compute, heads: Heads, batch: &Batch, qkv: Dual<'_>, buffers: ForwardTangent<'_>) {
    let hidden = heads.hidden();
    let ForwardTangent { probabilities, probabilities_tangent, context_tangent, bias } = buffers;
    let share = Share { squares: heads.count, width: hidden };
    let rows_of = |sequence| dual_rows(qkv, batch, sequence, 3 * hidden);
    let treatment = Treatment { bias, ..Treatment::default() };
    let mut tasks = tasks(heads, batch, probabilities_tangent, context_tangent, share, |sequence, out| {
        tiled::forward_tangent(compute, heads, treatment, rows_of(sequence), out);
    });
    let kernels = compute.kernels();
    compute.threads().for_each_item(&mut tasks, |_, task| {
        let qkv = rows_of(task.sequence);
        let own = &probabilities[task.first_probability..task.first_probability + task.own.len()];
        forward_sequence(kernels, heads, qkv, own, task);
    });
}

fn forward_sequence(kernels: Kernels, heads: Heads, qkv: Dual<'_>, probabilities: &[f32], task: &mut Task<'_>) {
    let hidden = heads.hidden();
    let length = task.out.len() / hidden;
    let square = length * length;
    let mut context = MatMut::new(task.out, length, hidden);
    let matrices = probabilities.chunks_exact(square).zip(task.own.chunks_exact_mut(square));
    for (head, (own, tangent)) in matrices.enumerate() {
        let [query, key, value] = heads.parts(qkv.value, head);
        let [query_tangent, key_tangent, value_tangent] = heads.parts(qkv.tangent, head);
        kernels.gemm_nt(query_tangent, key, Start::ZERO, MatMut::new(tangent, length, length));
        kernels.gemm_nt(query, key_tangent, Start::ACCUMULATE, MatMut::new(tangent, length, length));
        kernels.softmax_backward(own, tangent, length, heads.scale());
        let mut out = context.block(0..length, head * heads.width..(head + 1) * heads.width);
        kernels.gemm_nn(MatRef::new(tangent, length, length), value, Start::ZERO, out.reborrow());
        kernels.gemm_nn(MatRef::new(own, length, length), value_tangent, Start::ACCUMULATE, out);
    }
}

/// From the gradient of the context and its tangent to the tangent of the gradient of `qkv`.
pub fn backward_tangent(compute: &Compute, heads: Heads, batch: &Batch, buffers: BackwardTangent<'_>) {
    let hidden = heads.hidden();
    let BackwardTangent { qkv, d_context, probabilities, bias, scratch, d_qkv_tangent } = buffers;
    let qkv_of = |sequence| dual_rows(qkv, batch, sequence, 3 * hidden);
    let d_context_of = |sequence| dual_rows(d_context, batch, sequence, hidden);
    let treatment = Treatment { bias, ..Treatment::default() };
    let share = Share { squares: 2, width: 3 * hidden };
    let mut tasks = tasks(heads, batch, scratch, d_qkv_tangent, share, |sequence, out| {
        tiled::backward_tangent(compute, heads, treatment, qkv_of(sequence), d_context_of(sequence), out);
    });
    let kernels = compute.kernels();
    compute.threads().for_each_item(&mut tasks, |_, task| {
        let given = Given { qkv: qkv_of(task.sequence), d_context: d_context_of(task.sequence), probabilities };
        backward_sequence(kernels, heads, given, task);
    });
}

/// What a sequence's backward tangent reads: its own rows, and the probabilities of the whole batch.
#[derive(Clone, Copy)]
struct Given<'a> {
    qkv: Dual<'a>,
    d_context: Dual<'a>,
    probabilities: Dual<'a>,
}

fn backward_sequence(kernels: Kernels, heads: Heads, given: Given<'_>, task: &mut Task<'_>) {
    let Given { qkv, d_context, probabilities } = given;
    let hidden = heads.hidden();
    let length = d_context.value.len() / hidden;
    let square = length * length;
    let (d_scores, d_scores_tangent) = task.own.split_at_mut(square);
    let mut d_rows = MatMut::new(task.out, length, 3 * hidden);
    for head in 0..heads.count {
        let [query, key, value] = heads.parts(qkv.value, head);
        let [query_tangent, key_tangent, value_tangent] = heads.parts(qkv.tangent, head);
        let start = task.first_probability + head * square;
        let [p, p_tangent] =
            [probabilities.value, probabilities.tangent].map(|matrices| &matrices[start..start + square]);
        let columns = head * heads.width..(head + 1) * heads.width;
        let part = |third: usize| third * hidden + columns.start..third * hidden + columns.end;
        let [d_c, d_c_tangent] = [d_context.value, d_context.tangent]
            .map(|rows| MatRef::new(rows, length, hidden).block(0..length, columns.clone()));

        let mut d_value = d_rows.block(0..length, part(2));
        kernels.gemm_tn(MatRef::new(p_tangent, length, length), d_c, Start::ZERO, d_value.reborrow());
        kernels.gemm_tn(MatRef::new(p, length, length), d_c_tangent, Start::ACCUMULATE, d_value);

        kernels.gemm_nt(d_c, value, Start::ZERO, MatMut::new(d_scores, length, length));
        kernels.gemm_nt(d_c_tangent, value, Start::ZERO, MatMut::new(d_scores_tangent, length, length));
        kernels.gemm_nt(d_c, value_tangent, Start::ACCUMULATE, MatMut::new(d_scores_tangent, length, length));
        let softmax = SoftmaxTangent { p, p_tangent, d_p: d_scores, d_p_tangent: d_scores_tangent };
        kernels.softmax_backward_tangent(softmax, length, heads.scale());
        kernels.softmax_backward(p, d_scores, length, heads.scale());

        let d_s = MatRef::new(d_scores, length, length);
        let d_s_tangent = MatRef::new(d_scores_tangent, length, length);
        let mut d_query = d_rows.block(0..length, part(0));
        kernels.gemm_nn(d_s_tangent, key, Start::ZERO, d_query.reborrow());
        kernels.gemm_nn(d_s, key_tangent, Start::ACCUMULATE, d_query);
        let mut d_key = d_rows.block(0..length, part(1));
        kernels.gemm_tn(d_s_tangent, query, Start::ZERO, d_key.reborrow());
        kernels.gemm_tn(d_s, query_tangent, Start::ACCUMULATE, d_key);
    }
}
