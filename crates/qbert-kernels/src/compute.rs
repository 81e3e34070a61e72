//! [`Compute`]: kernels, threads and scratch memory together, with every whole-matrix operation over all threads.
//!
//! Work is cut into tasks by shape alone (constants below), so results are the same bytes for any number of threads. Code
//! with a parallel loop of its own (attention: one task per sequence) uses [`Compute::threads`] and, inside the loop, the
//! kernels of [`Compute::kernels`].

use std::sync::Arc;

use crate::adamw::AdamW;
use crate::cpu::Kernels;
use crate::dropout::DropoutKey;
use crate::error::KernelError;
use crate::gemm::{MatRef, ProductPrecision};
use crate::layer_norm::{LayerNorm, LayerNormGradients, LayerNormTangents, Normalized, NormalizedMut};
use crate::ranks::Ranks;
use crate::reduce::{COLUMN_BLOCK, SUM_BLOCK};
use crate::scratch::{Scratch, ScratchPool, part_bytes};
use crate::threads::Threads;

/// Elements per task of elementwise operations and long sums: 64 KiB, a multiple of every block.
pub const CHUNK: usize = 16 * SUM_BLOCK;
/// Rows per task of LayerNorm. Gradients of γ and β are summed within a task, then over tasks.
pub const ROW_CHUNK: usize = 64;

/// Kernels, threads and scratch memory. Cheap to clone; clones share threads and memory.
#[derive(Clone, Debug)]
pub struct Compute {
    kernels: Kernels,
    threads: Threads,
    scratch: Arc<ScratchPool>,
    products: ProductPrecision,
    ranks: Option<Arc<dyn Ranks>>,
}

impl Compute {
    /// Combines kernels and threads.
    pub fn new(kernels: Kernels, threads: Threads) -> Self {
        // One for each thread that can run at the same time, and one more where an operation runs inside another.
        let most = 2 * threads.count().max(Threads::available());
        let scratch = Arc::new(ScratchPool::new(most));
        Self { kernels, threads, scratch, products: ProductPrecision::F32, ranks: None }
    }

    /// The kernels of [`Kernels::detect`] on `threads` threads.
    ///
    /// # Errors
    /// As [`Kernels::detect`] and [`Threads::new`].
    pub fn detect(threads: usize) -> Result<Self, KernelError> {
        Ok(Self::new(Kernels::detect()?, Threads::new(threads)?))
    }

    /// The same kernels, threads and memory, with products in this precision.
    #[must_use]
    pub fn with_products(&self, products: ProductPrecision) -> Self {
        Self { products, ..self.clone() }
    }

    /// The precision of products.
    pub fn products(&self) -> ProductPrecision {
        self.products
    }

    /// The same, with others to share the work with. One rank is nobody else.
    #[must_use]
    pub fn with_ranks(&self, ranks: Arc<dyn Ranks>) -> Self {
        Self { ranks: (ranks.size() > 1).then_some(ranks), ..self.clone() }
    }

    /// The same for work that this rank does alone.
    #[must_use]
    pub fn alone(&self) -> Self {
        Self { ranks: None, ..self.clone() }
    }

    /// The ranks that share the work; `None` for a process alone. Whole-matrix operations do not know about them.
    pub fn ranks(&self) -> Option<&dyn Ranks> {
        self.ranks.as_deref()
    }

    /// Whether this process writes the job's files: it is alone, or the first of the ranks.
    pub fn writes(&self) -> bool {
        self.ranks().is_none_or(Ranks::writes)
    }

    /// The kernels, for single-threaded calls.
    pub fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// The threads, for the caller's own parallel loops.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Scratch memory with arbitrary content.
    pub(crate) fn scratch(&self, bytes: usize) -> Scratch<'_> {
        self.scratch.take(bytes)
    }

    /// [`Kernels::gelu`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn gelu(&self, x: &[f32], out: &mut [f32]) {
        check_lengths(&[x.len(), out.len()]);
        self.threads.for_each_chunk([out], [CHUNK], |chunk, [out]| {
            self.kernels.gelu(part(x, chunk, out.len()), out);
        });
    }

    /// [`Kernels::gelu_and_slope`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn gelu_and_slope(&self, x: &[f32], out: &mut [f32], slope: &mut [f32]) {
        check_lengths(&[x.len(), out.len(), slope.len()]);
        self.threads.for_each_chunk([out, slope], [CHUNK; 2], |chunk, [out, slope]| {
            self.kernels.gelu_and_slope(part(x, chunk, out.len()), out, slope);
        });
    }

    /// [`Kernels::gelu_backward`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn gelu_backward(&self, x: &[f32], direction: &[f32], out: &mut [f32]) {
        check_lengths(&[x.len(), direction.len(), out.len()]);
        self.threads.for_each_chunk([out], [CHUNK], |chunk, [out]| {
            let n = out.len();
            self.kernels.gelu_backward(part(x, chunk, n), part(direction, chunk, n), out);
        });
    }

    /// [`Kernels::gelu_backward_tangent`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn gelu_backward_tangent(
        &self,
        x: &[f32],
        x_tangent: &[f32],
        d_out: &[f32],
        d_out_tangent: &[f32],
        out: &mut [f32],
    ) {
        let inputs = [x, x_tangent, d_out, d_out_tangent];
        check_lengths(&[x.len(), x_tangent.len(), d_out.len(), d_out_tangent.len(), out.len()]);
        self.threads.for_each_chunk([out], [CHUNK], |chunk, [out]| {
            let [x, xt, d, dt] = inputs.map(|input| part(input, chunk, out.len()));
            self.kernels.gelu_backward_tangent(x, xt, d, dt, out);
        });
    }

    /// `y += factor · x` over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn add_scaled(&self, factor: f32, x: &[f32], y: &mut [f32]) {
        check_lengths(&[x.len(), y.len()]);
        self.threads.for_each_chunk([y], [CHUNK], |chunk, [y]| {
            self.kernels.add_scaled(factor, part(x, chunk, y.len()), y);
        });
    }

    /// [`Kernels::multiply`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn multiply(&self, x: &[f32], y: &mut [f32]) {
        check_lengths(&[x.len(), y.len()]);
        self.threads.for_each_chunk([y], [CHUNK], |chunk, [y]| {
            self.kernels.multiply(part(x, chunk, y.len()), y);
        });
    }

    /// `y *= factor` over all threads.
    pub fn scale(&self, factor: f32, y: &mut [f32]) {
        self.threads.for_each_chunk([y], [CHUNK], |_, [y]| self.kernels.scale(factor, y));
    }

    /// [`Kernels::dropout`] of a whole tensor over all threads.
    ///
    /// # Panics
    /// As [`Kernels::dropout`].
    pub fn dropout(&self, data: &mut [f32], key: DropoutKey, rate: f32) {
        self.dropout_from(data, key, 0, rate);
    }

    /// The same for a part of a tensor that begins at element `offset` of the whole.
    ///
    /// # Panics
    /// As [`Kernels::dropout`].
    pub fn dropout_from(&self, data: &mut [f32], key: DropoutKey, offset: usize, rate: f32) {
        if rate == 0.0 {
            return;
        }
        self.threads.for_each_chunk([data], [CHUNK], |chunk, [data]| {
            self.kernels.dropout(data, key, offset + chunk * CHUNK, rate);
        });
    }

    /// [`Kernels::adamw`] over all threads.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn adamw(&self, step: &AdamW, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        check_lengths(&[p.len(), g.len(), m.len(), v.len()]);
        self.threads.for_each_chunk([p, m, v], [CHUNK; 3], |chunk, [p, m, v]| {
            self.kernels.adamw(step, p, part(g, chunk, p.len()), m, v);
        });
    }

    /// `Σ a²` over all threads: sums of tasks of [`CHUNK`] elements, added in order in f64.
    pub fn sum_of_squares(&self, a: &[f32]) -> f64 {
        let tasks = a.len().div_ceil(CHUNK);
        let sums = self
            .threads
            .map(tasks, |chunk| self.kernels.sum_of_squares(part(a, chunk, CHUNK.min(a.len() - chunk * CHUNK))));
        sums.iter().sum()
    }

    /// `Σ a·b` over all threads, in the order of [`Compute::sum_of_squares`].
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f64 {
        self.sums_of_pairs(a, b, Kernels::dot).iter().sum()
    }

    /// [`Kernels::squared_distance`] over all threads, in the same order.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn squared_distance(&self, a: &[f32], b: &[f32]) -> f64 {
        self.squared_distances(a, b).iter().sum()
    }

    /// The terms of [`Compute::squared_distance`], one for every [`CHUNK`] elements.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn squared_distances(&self, a: &[f32], b: &[f32]) -> Vec<f64> {
        self.sums_of_pairs(a, b, Kernels::squared_distance)
    }

    /// [`Kernels::divergence`] over all threads, in the same order.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn divergence(&self, p: &[f32], q: &[f32]) -> f64 {
        self.divergences(p, q).iter().sum()
    }

    /// The terms of [`Compute::divergence`], one for every [`CHUNK`] elements.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn divergences(&self, p: &[f32], q: &[f32]) -> Vec<f64> {
        self.sums_of_pairs(p, q, Kernels::divergence)
    }

    fn sums_of_pairs(&self, a: &[f32], b: &[f32], sum: fn(Kernels, &[f32], &[f32]) -> f64) -> Vec<f64> {
        check_lengths(&[a.len(), b.len()]);
        let tasks = a.len().div_ceil(CHUNK);
        self.threads.map(tasks, |chunk| {
            let n = CHUNK.min(a.len() - chunk * CHUNK);
            sum(self.kernels, part(a, chunk, n), part(b, chunk, n))
        })
    }

    /// [`Kernels::add_column_sums`] over all threads: each task takes some columns of all rows.
    ///
    /// # Panics
    /// When `out` does not have one element per column.
    pub fn add_column_sums(&self, matrix: MatRef<'_>, out: &mut [f32]) {
        assert!(out.len() == matrix.cols(), "{} sums for {} columns", out.len(), matrix.cols());
        self.threads.for_each_chunk([out], [COLUMN_BLOCK], |task, [out]| {
            let start = task * COLUMN_BLOCK;
            let columns = matrix.block(0..matrix.rows(), start..start + out.len());
            self.kernels.add_column_sums(columns, out);
        });
    }

    /// [`Kernels::layer_norm_forward`] over all threads.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_forward(&self, norm: LayerNorm<'_>, residual: Option<&[f32]>, target: NormalizedMut<'_>) {
        let n = norm.gamma.len();
        let NormalizedMut { sum, mean, rstd, out } = target;
        check_lengths(&[sum.len(), out.len(), mean.len() * n, rstd.len() * n]);
        check_lengths(&[sum.len(), residual.map_or(sum.len(), <[f32]>::len)]);
        let lengths = [ROW_CHUNK * n, ROW_CHUNK, ROW_CHUNK, ROW_CHUNK * n];
        self.threads.for_each_chunk([sum, mean, rstd, out], lengths, |chunk, parts| {
            let [sum, mean, rstd, out] = parts;
            let start = chunk * ROW_CHUNK * n;
            let residual = residual.map(|residual| &residual[start..start + sum.len()]);
            let target = NormalizedMut { sum, mean, rstd, out };
            self.kernels.layer_norm_forward(norm, residual, target);
        });
    }

    /// [`Kernels::layer_norm_backward`] over all threads. The gradients of γ and β are summed row
    /// by row within tasks of [`ROW_CHUNK`] rows; the tasks' sums are added in order.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_backward(
        &self,
        gamma: &[f32],
        saved: Normalized<'_>,
        d_out: &[f32],
        d_in: &mut [f32],
        gradients: LayerNormGradients<'_>,
    ) {
        let n = gamma.len();
        check_lengths(&[n, gradients.gamma.len(), gradients.beta.len()]);
        let tasks = saved.mean.len().div_ceil(ROW_CHUNK);
        let mut scratch = self.scratch(part_bytes::<f32>(tasks * 2 * n));
        let sums = scratch.parts().take::<f32>(tasks * 2 * n);
        self.layer_norm_backward_sums(gamma, saved, d_out, d_in, sums);
        self.add_layer_norm_sums(sums, gradients);
    }

    /// [`Compute::layer_norm_backward`] up to the tasks' sums: for every [`ROW_CHUNK`] rows those of γ's gradient, then
    /// those of β's.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_backward_sums(
        &self,
        gamma: &[f32],
        saved: Normalized<'_>,
        d_out: &[f32],
        d_in: &mut [f32],
        sums: &mut [f32],
    ) {
        let n = gamma.len();
        check_lengths(&[saved.sum.len(), d_out.len(), d_in.len(), saved.mean.len() * n]);
        check_lengths(&[sums.len(), saved.mean.len().div_ceil(ROW_CHUNK) * 2 * n]);
        let lengths = [ROW_CHUNK * n, 2 * n];
        self.threads.for_each_chunk([d_in, sums], lengths, |chunk, [d_in, sums]| {
            let rows = chunk * ROW_CHUNK..chunk * ROW_CHUNK + d_in.len() / n;
            let d_out = &d_out[rows.start * n..rows.end * n];
            sums.fill(0.0);
            let (gamma_part, beta_part) = sums.split_at_mut(n);
            let parts = LayerNormGradients { gamma: gamma_part, beta: beta_part };
            self.kernels.layer_norm_backward(gamma, saved.rows_of(n, rows), d_out, d_in, parts);
        });
    }

    /// Adds the tasks' sums of [`Compute::layer_norm_backward_sums`], in order.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn add_layer_norm_sums(&self, sums: &[f32], gradients: LayerNormGradients<'_>) {
        let n = gradients.gamma.len();
        for part in sums.chunks_exact(2 * n) {
            self.kernels.add_scaled(1.0, &part[..n], gradients.gamma);
            self.kernels.add_scaled(1.0, &part[n..], gradients.beta);
        }
    }

    /// [`Kernels::layer_norm_forward_tangent`] over all threads.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_forward_tangent(
        &self,
        gamma: &[f32],
        saved: Normalized<'_>,
        sum_tangent: &[f32],
        out_tangent: &mut [f32],
    ) {
        let n = gamma.len();
        check_lengths(&[saved.sum.len(), sum_tangent.len(), out_tangent.len(), saved.mean.len() * n]);
        self.threads.for_each_chunk([out_tangent], [ROW_CHUNK * n], |chunk, [out]| {
            let rows = chunk * ROW_CHUNK..chunk * ROW_CHUNK + out.len() / n;
            let tangent = &sum_tangent[rows.start * n..rows.end * n];
            self.kernels.layer_norm_forward_tangent(gamma, saved.rows_of(n, rows), tangent, out);
        });
    }

    /// [`Kernels::layer_norm_backward_tangent`] over all threads.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_backward_tangent(
        &self,
        gamma: &[f32],
        saved: Normalized<'_>,
        tangents: LayerNormTangents<'_>,
        d_in_tangent: &mut [f32],
    ) {
        let n = gamma.len();
        let LayerNormTangents { sum_tangent, d_out, d_out_tangent } = tangents;
        check_lengths(&[saved.sum.len(), sum_tangent.len(), saved.mean.len() * n]);
        check_lengths(&[saved.sum.len(), d_out.len(), d_out_tangent.len(), d_in_tangent.len()]);
        self.threads.for_each_chunk([d_in_tangent], [ROW_CHUNK * n], |chunk, [out]| {
            let rows = chunk * ROW_CHUNK..chunk * ROW_CHUNK + out.len() / n;
            let elements = rows.start * n..rows.end * n;
            let tangents = LayerNormTangents {
                sum_tangent: &sum_tangent[elements.clone()],
                d_out: &d_out[elements.clone()],
                d_out_tangent: &d_out_tangent[elements],
            };
            self.kernels.layer_norm_backward_tangent(gamma, saved.rows_of(n, rows), tangents, out);
        });
    }
}

/// The input that belongs to an output chunk of `length` elements.
pub(crate) fn part(input: &[f32], chunk: usize, length: usize) -> &[f32] {
    &input[chunk * CHUNK..chunk * CHUNK + length]
}

pub(crate) fn check_lengths(lengths: &[usize]) {
    assert!(lengths.iter().all(|&length| length == lengths[0]), "slices of {lengths:?} elements");
}
