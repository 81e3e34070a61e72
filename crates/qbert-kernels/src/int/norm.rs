//! LayerNorm in place that also writes codes, and linear layers that end in residual + LayerNorm.
//!
//! The hidden state is one f32 matrix that stays in place: a linear layer adds its result to it, LayerNorm overwrites it,
//! and the codes that the next linear layer reads are written in the same pass. The arithmetic and the order of every
//! sum are those of [`crate::Kernels::layer_norm_forward`], so training and inference agree to the last bit.

use super::codes::{Codes, Quantizer, QuantizerLanes};
use super::epilogue;
use super::layout::PackedWeights;
use super::linear::{LinearInput, Plan};
use super::params::LinearParams;
use crate::compute::Compute;
use crate::layer_norm::{LayerNorm, Plain, Row, SquaredDistance};
use crate::shared_matrix::SharedMatrix;
use crate::simd::loops::sums;
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Rows per task of LayerNorm alone.
const ROWS: usize = 16;

/// A LayerNorm of the hidden state, `[tokens, width]` in f32, and the codes of its result.
#[derive(Debug)]
pub struct NormOutput<'a> {
    /// γ, β and ε.
    pub norm: LayerNorm<'a>,
    /// In: what is normalized (or the residual, to which a linear layer's result is added). Out: the result.
    pub hidden: &'a mut [f32],
    /// Where the result's codes go, if they are needed; must already have one row per token.
    pub codes: Option<(&'a mut Codes, Quantizer)>,
}

/// [`NormOutput`], checked, for tasks that take disjoint rows.
struct Target<'a> {
    norm: LayerNorm<'a>,
    hidden: SharedMatrix<'a, f32>,
    codes: Option<(SharedMatrix<'a, i8>, Quantizer)>,
}

impl<'a> Target<'a> {
    fn new(output: NormOutput<'a>) -> Self {
        let NormOutput { norm, hidden, codes } = output;
        let width = norm.gamma.len();
        assert!(width > 0 && norm.beta.len() == width, "γ of {width} and β of {} columns", norm.beta.len());
        assert!(hidden.len().is_multiple_of(width), "{} elements are not whole rows of {width}", hidden.len());
        let rows = hidden.len() / width;
        let codes = codes.map(|(codes, quantizer)| {
            let found = (codes.rows(), codes.cols());
            assert!(found == (rows, width), "codes of {found:?} for a hidden state of {rows}×{width}");
            (codes.shared(), quantizer)
        });
        Self { norm, hidden: SharedMatrix::new(hidden, rows, width, width), codes }
    }

    /// Normalizes some rows.
    ///
    /// # Safety
    /// No other thread may use these rows at the same time.
    unsafe fn run(&self, compute: &Compute, rows: Range<usize>) {
        // SAFETY: no other thread uses these rows, as the caller promises.
        let hidden = unsafe { self.hidden.rows_mut(rows.clone()) };
        let codes = self.codes.map(|(matrix, quantizer)| CodeRows {
            // SAFETY: as above.
            codes: unsafe { matrix.rows_mut(rows) },
            stride: matrix.stride(),
            quantizer,
        });
        compute.kernels().run(NormRows { norm: self.norm, hidden, codes });
    }
}

/// LayerNorm of whole rows in place, and their codes, if any.
struct NormRows<'a> {
    norm: LayerNorm<'a>,
    hidden: &'a mut [f32],
    codes: Option<CodeRows<'a>>,
}

/// Rows of `stride` bytes that take the codes of as many rows of values.
struct CodeRows<'a> {
    codes: &'a mut [i8],
    stride: usize,
    quantizer: Quantizer,
}

impl CodeRows<'_> {
    /// The address of a row's codes, after a check that it has room for `columns` of them.
    #[inline(always)]
    fn row(&mut self, index: usize, columns: usize) -> *mut i8 {
        self.codes[index * self.stride..][..self.stride][..columns].as_mut_ptr()
    }
}

impl Kernel for NormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { norm, hidden, mut codes } = self;
        let width = norm.gamma.len();
        for (index, row) in hidden.chunks_exact_mut(width).enumerate() {
            let [total] = sums(simd, &Plain, [&*row]);
            let mean = total / width as f32;
            let [squares] = sums(simd, &SquaredDistance(mean), [&*row]);
            let numbers = Row { mean, rstd: 1.0 / (squares / width as f32 + norm.epsilon).sqrt() };
            match &mut codes {
                Some(codes) => {
                    let lanes = QuantizerLanes::new(simd, &codes.quantizer);
                    let target = codes.row(index, width.next_multiple_of(S::LANES));
                    for (vector, part) in row.chunks_mut(S::LANES).enumerate() {
                        let value = normalize(simd, numbers, &norm, vector * S::LANES, part);
                        // SAFETY: the row has room for whole vectors.
                        unsafe { simd.store_i8_ptr(target.add(vector * S::LANES), lanes.codes(simd, value)) };
                    }
                }
                None => {
                    for (vector, part) in row.chunks_mut(S::LANES).enumerate() {
                        normalize(simd, numbers, &norm, vector * S::LANES, part);
                    }
                }
            }
        }
    }
}

/// `γ·x̂ + β` in place, of the part of a row that begins at column `col`: at most one vector, which is also returned.
#[inline(always)]
fn normalize<S: Simd>(simd: S, row: Row, norm: &LayerNorm<'_>, col: usize, part: &mut [f32]) -> S::F32 {
    let (gamma, beta) = (&norm.gamma[col..col + part.len()], &norm.beta[col..col + part.len()]);
    if part.len() == S::LANES {
        let result = simd.mul_add(row.hat(simd, simd.load(part)), simd.load(gamma), simd.load(beta));
        simd.store(part, result);
        result
    } else {
        let hat = row.hat(simd, simd.load_partial(part));
        let result = simd.mul_add(hat, simd.load_partial(gamma), simd.load_partial(beta));
        simd.store_partial(part, result);
        result
    }
}

impl Compute {
    /// LayerNorm of the hidden state in place, and the codes of the result, over all threads: after the embedding.
    ///
    /// # Panics
    /// When shapes do not fit together.
    pub fn norm_to_codes(&self, output: NormOutput<'_>) {
        self.norm_rows(Target::new(output));
    }

    /// `hidden = LayerNorm(hidden + linear(input))` and its codes, over all threads: ends both halves of an encoder layer.
    ///
    /// # Panics
    /// When shapes do not fit together.
    pub fn linear_norm(
        &self,
        input: LinearInput<'_>,
        weights: PackedWeights<'_>,
        params: &LinearParams,
        output: NormOutput<'_>,
    ) {
        let (rows, width) = (input.codes.rows(), weights.neurons());
        assert!(output.norm.gamma.len() == width, "γ of {} columns for {width} neurons", output.norm.gamma.len());
        let target = Target::new(output);
        let found = target.hidden.rows();
        assert!(found == rows, "a hidden state of {found} rows for {rows} tokens");
        let plan = Plan::new(self, input, weights, params, epilogue::Target::Add(target.hidden));
        if plan.has_whole_rows() {
            self.threads().for_each(plan.tasks(), |task| {
                // SAFETY: each task runs once. Its rows are complete after the first line, and no other task has them.
                unsafe {
                    plan.run(self, task);
                    target.run(self, plan.rows(task));
                }
            });
        } else {
            // SAFETY: each task runs once, and the rows are normalized after all of them.
            self.threads().for_each(plan.tasks(), |task| unsafe { plan.run(self, task) });
            self.norm_rows(target);
        }
    }

    /// Normalizes all rows.
    fn norm_rows(&self, target: Target<'_>) {
        let rows = target.hidden.rows();
        self.threads().for_each(rows.div_ceil(ROWS), |task| {
            let rows = task * ROWS..rows.min((task + 1) * ROWS);
            // SAFETY: no other task has these rows.
            unsafe { target.run(self, rows) };
        });
    }
}
