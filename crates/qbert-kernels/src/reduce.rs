//! Sums in a fixed order: dot products, norms for clipping, column sums for bias gradients.
//!
//! Long sums are made of blocks of [`SUM_BLOCK`] elements. Within a block the order is that of
//! `simd::loops::sums` in f32; the blocks' sums are added in f64, first to last. So the result
//! does not depend on how the blocks are spread over threads, and its relative error stays near
//! one f32 rounding (for terms of one sign) however long the sum is.

use crate::cpu::Kernels;
use crate::gemm::MatRef;
use crate::simd::loops::{Terms, sums};
use crate::simd::math::ln;
use crate::simd::{Kernel, Simd};

/// Elements per block of a long sum.
pub const SUM_BLOCK: usize = 1024;

struct Products;
struct Squares;
struct Elements;

impl Terms<2, 1> for Products {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [a, b]: [S::F32; 2]) -> [S::F32; 1] {
        [simd.mul(a, b)]
    }
}

impl Terms<1, 1> for Squares {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [a]: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul(a, a)]
    }
}

impl Terms<1, 1> for Elements {
    #[inline(always)]
    fn terms<S: Simd>(&self, _: S, a: [S::F32; 1]) -> [S::F32; 1] {
        a
    }
}

/// Terms of `Σ (a - b)²`.
struct SquaredDifferences;

impl Terms<2, 1> for SquaredDifferences {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [a, b]: [S::F32; 2]) -> [S::F32; 1] {
        let difference = simd.sub(a, b);
        [simd.mul(difference, difference)]
    }
}

/// Terms of `Σ p·ln(p / q)`.
struct Divergences;

/// Smaller probabilities count as this one where their logarithm is taken.
const SMALLEST_PROBABILITY: f32 = 1e-30;

impl Terms<2, 1> for Divergences {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [p, q]: [S::F32; 2]) -> [S::F32; 1] {
        let smallest = simd.splat(SMALLEST_PROBABILITY);
        let (of_p, of_q) = (ln(simd, simd.max(smallest, p)), ln(simd, simd.max(smallest, q)));
        [simd.mul(p, simd.sub(of_p, of_q))]
    }
}

struct BlockSums<'a, T, const IN: usize> {
    terms: T,
    inputs: [&'a [f32]; IN],
}

impl<T: Terms<IN, 1>, const IN: usize> Kernel for BlockSums<'_, T, IN> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let length = self.inputs[0].len();
        let mut total = 0.0;
        let mut start = 0;
        while start < length {
            let end = length.min(start + SUM_BLOCK);
            let mut block = self.inputs;
            for slice in &mut block {
                *slice = &slice[start..end];
            }
            let [sum] = sums(simd, &self.terms, block);
            total += f64::from(sum);
            start = end;
        }
        total
    }
}

/// Columns of one column-sum task: four AVX-512 vectors, a quarter of a kilobyte per row.
pub(crate) const COLUMN_BLOCK: usize = 64;
/// Rows are added to this many partial sums in turn.
const ROW_PHASES: usize = 4;

struct ColumnSums<'a> {
    matrix: MatRef<'a>,
    out: &'a mut [f32],
}

impl Kernel for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { matrix, out } = self;
        let mut start = 0;
        while start < matrix.cols {
            let width = S::LANES.min(matrix.cols - start);
            let mut phases = [simd.splat(0.0); ROW_PHASES];
            for row in 0..matrix.rows {
                let offset = row * matrix.row_stride + start;
                let part = simd.load_partial(&matrix.data[offset..offset + width]);
                let phase = &mut phases[row % ROW_PHASES];
                *phase = simd.add(*phase, part);
            }
            let [a, b, c, d] = phases;
            let sum = simd.add(simd.add(a, b), simd.add(c, d));
            let target = &mut out[start..start + width];
            let before = simd.load_partial(target);
            simd.store_partial(target, simd.add(before, sum));
            start += width;
        }
    }
}

impl Kernels {
    /// `Σ a·b`, see the module for order and accuracy.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn dot(self, a: &[f32], b: &[f32]) -> f64 {
        assert!(a.len() == b.len(), "dot product of {} and {} elements", a.len(), b.len());
        self.run(BlockSums { terms: Products, inputs: [a, b] })
    }

    /// `Σ a²`; infinite when the squares of one block overflow f32 (|a| of 5e17 and more).
    pub fn sum_of_squares(self, a: &[f32]) -> f64 {
        self.run(BlockSums { terms: Squares, inputs: [a] })
    }

    /// `Σ (a - b)²`, in the same order.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn squared_distance(self, a: &[f32], b: &[f32]) -> f64 {
        assert!(a.len() == b.len(), "distance of {} and {} elements", a.len(), b.len());
        self.run(BlockSums { terms: SquaredDifferences, inputs: [a, b] })
    }

    /// `Σ p·ln(p / q)` of probabilities, in the same order: the divergence of `p` from `q`. Probabilities below 1e-30 count
    /// as 1e-30 in the logarithm.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn divergence(self, p: &[f32], q: &[f32]) -> f64 {
        assert!(p.len() == q.len(), "divergence of {} and {} elements", p.len(), q.len());
        self.run(BlockSums { terms: Divergences, inputs: [p, q] })
    }

    /// `Σ a`.
    pub fn sum(self, a: &[f32]) -> f64 {
        self.run(BlockSums { terms: Elements, inputs: [a] })
    }

    /// `out[j] += Σ_i matrix[i][j]`: rows are added to four partial sums in turn, which are added as (0+1)+(2+3) and then
    /// to `out`.
    ///
    /// # Panics
    /// When `out` does not have one element per column.
    pub fn add_column_sums(self, matrix: MatRef<'_>, out: &mut [f32]) {
        assert!(out.len() == matrix.cols, "{} sums for {} columns", out.len(), matrix.cols);
        self.run(ColumnSums { matrix, out });
    }
}
