//! Directional derivatives of tiled attention: the formulas of the whole sequence, tile by tile.

use qbert_kernels::{Compute, MatMut, MatRef, SoftmaxTangent, Start, WindowTile};

use super::{Heads, Scores, Treatment, rows, scatter};
use crate::ops::Dual;

/// Query, key and value of one head with their tangents.
#[derive(Clone, Copy)]
struct Moving<'a> {
    scores: Scores<'a>,
    value: MatRef<'a>,
    tangents: [MatRef<'a>; 3],
}

impl<'a> Moving<'a> {
    fn new(compute: &Compute, heads: Heads, head: usize, qkv: Dual<'a>, treatment: Treatment<'a>) -> Self {
        let [query, key, value] = heads.parts(qkv.value, head);
        let scores = Scores { kernels: compute.kernels(), heads, head, query, key, scale: heads.scale(), treatment };
        Self { scores, value, tangents: heads.parts(qkv.tangent, head) }
    }

    /// The probabilities of a tile and their tangent.
    fn probabilities(&self, tile: &WindowTile, p: &mut [f32], p_tangent: &mut [f32]) {
        let Scores { kernels, query, key, scale, .. } = self.scores;
        let (count, keys) = (tile.queries.len(), tile.keys.len());
        self.scores.probabilities(tile, p);
        let [query_tangent, key_tangent, _] = self.tangents;
        let (query, key) = (rows(query, &tile.queries), rows(key, &tile.keys));
        let (query_tangent, key_tangent) = (rows(query_tangent, &tile.queries), rows(key_tangent, &tile.keys));
        kernels.gemm_nt(query_tangent, key, Start::ZERO, MatMut::new(p_tangent, count, keys));
        kernels.gemm_nt(query, key_tangent, Start::ACCUMULATE, MatMut::new(p_tangent, count, keys));
        kernels.softmax_backward(p, p_tangent, keys, scale);
    }
}

/// From a sequence's query, key and value and their tangents `[n, 3H]` to the tangent of its context `[n, H]`.
pub(in crate::ops::attention) fn forward_tangent(
    compute: &Compute,
    heads: Heads,
    treatment: Treatment<'_>,
    qkv: Dual<'_>,
    context_tangent: &mut [f32],
) {
    let (hidden, kernels) = (heads.hidden(), compute.kernels());
    let length = context_tangent.len() / hidden;
    let tiles = heads.tiles(length);
    let mut blocks = vec![0.0; context_tangent.len()];
    compute.threads().for_each_chunk([&mut blocks], [length * heads.width], |head, [block]| {
        let moving = Moving::new(compute, heads, head, qkv, treatment);
        let mut out = MatMut::new(block, length, heads.width);
        let mut room = vec![0.0; 2 * Heads::largest(&tiles)];
        for tile in &tiles {
            let (count, keys) = (tile.queries.len(), tile.keys.len());
            let (p, rest) = room.split_at_mut(count * keys);
            let p_tangent = &mut rest[..count * keys];
            moving.probabilities(tile, p, p_tangent);
            let mut target = out.block(tile.queries.clone(), 0..heads.width);
            let (p, p_tangent) = (MatRef::new(p, count, keys), MatRef::new(p_tangent, count, keys));
            kernels.gemm_nn(p_tangent, rows(moving.value, &tile.keys), Start::ZERO, target.reborrow());
            kernels.gemm_nn(p, rows(moving.tangents[2], &tile.keys), Start::ACCUMULATE, target);
        }
    });
    scatter(heads, &blocks, 0, hidden, context_tangent);
}

/// From the gradient of a sequence's context and its tangent `[n, H]` to the tangent of the gradient of query, key and value.
pub(in crate::ops::attention) fn backward_tangent(
    compute: &Compute,
    heads: Heads,
    treatment: Treatment<'_>,
    qkv: Dual<'_>,
    d_context: Dual<'_>,
    d_rows_tangent: &mut [f32],
) {
    let (hidden, kernels, width) = (heads.hidden(), compute.kernels(), heads.width);
    let length = d_context.value.len() / hidden;
    let tiles = heads.tiles(length);
    let part = length * width;
    let mut blocks = vec![0.0; 3 * heads.count * part];
    compute.threads().for_each_chunk([&mut blocks], [3 * part], |head, [block]| {
        let moving = Moving::new(compute, heads, head, qkv, treatment);
        let Scores { query, key, scale, .. } = moving.scores;
        let [query_tangent, key_tangent, value_tangent] = moving.tangents;
        let columns = head * width..(head + 1) * width;
        let [d_c, d_c_tangent] = [d_context.value, d_context.tangent]
            .map(|rows| MatRef::new(rows, length, hidden).block(0..length, columns.clone()));
        let (d_query, rest) = block.split_at_mut(part);
        let (d_key, d_value) = rest.split_at_mut(part);
        let [mut d_query, mut d_key, mut d_value] =
            [d_query, d_key, d_value].map(|part| MatMut::new(part, length, width));
        let mut room = vec![0.0; 4 * Heads::largest(&tiles)];
        for tile in &tiles {
            let (count, keys) = (tile.queries.len(), tile.keys.len());
            let (p, rest) = room.split_at_mut(count * keys);
            let (p_tangent, rest) = rest.split_at_mut(count * keys);
            let (d_scores, rest) = rest.split_at_mut(count * keys);
            let d_scores_tangent = &mut rest[..count * keys];
            moving.probabilities(tile, p, p_tangent);
            let (d_c, d_c_tangent) = (rows(d_c, &tile.queries), rows(d_c_tangent, &tile.queries));

            let mut target = d_value.block(tile.keys.clone(), 0..width);
            kernels.gemm_tn(MatRef::new(p_tangent, count, keys), d_c, Start::ACCUMULATE, target.reborrow());
            kernels.gemm_tn(MatRef::new(p, count, keys), d_c_tangent, Start::ACCUMULATE, target);

            let (value, value_tangent) = (rows(moving.value, &tile.keys), rows(value_tangent, &tile.keys));
            kernels.gemm_nt(d_c, value, Start::ZERO, MatMut::new(d_scores, count, keys));
            kernels.gemm_nt(d_c_tangent, value, Start::ZERO, MatMut::new(d_scores_tangent, count, keys));
            kernels.gemm_nt(d_c, value_tangent, Start::ACCUMULATE, MatMut::new(d_scores_tangent, count, keys));
            let softmax = SoftmaxTangent { p, p_tangent, d_p: d_scores, d_p_tangent: d_scores_tangent };
            kernels.softmax_backward_tangent(softmax, keys, scale);
            kernels.softmax_backward(p, d_scores, keys, scale);

            let d_s = MatRef::new(d_scores, count, keys);
            let d_s_tangent = MatRef::new(d_scores_tangent, count, keys);
            let mut target = d_query.block(tile.queries.clone(), 0..width);
            kernels.gemm_nn(d_s_tangent, rows(key, &tile.keys), Start::ZERO, target.reborrow());
            kernels.gemm_nn(d_s, rows(key_tangent, &tile.keys), Start::ACCUMULATE, target);
            let mut target = d_key.block(tile.keys.clone(), 0..width);
            kernels.gemm_tn(d_s_tangent, rows(query, &tile.queries), Start::ACCUMULATE, target.reborrow());
            kernels.gemm_tn(d_s, rows(query_tangent, &tile.queries), Start::ACCUMULATE, target);
        }
    });
    for third in 0..3 {
        let of_third = blocks.chunks_exact(3 * part).flat_map(|block| &block[third * part..(third + 1) * part]);
        let of_third: Vec<f32> = of_third.copied().collect();
        scatter(heads, &of_third, third * hidden, 3 * hidden, d_rows_tangent);
    }
}
