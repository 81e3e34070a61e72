//! LayerNorm in place with codes beside it, and linear layers that end in residual + LayerNorm.
//!
//! The hidden state is one f32 matrix that stays in place: a linear layer adds its result to it, LayerNorm replaces it,
//! and the codes that the next linear layer reads are written in the same pass. The arithmetic and the order of every
//! sum are those of [`crate::Kernels::layer_norm_forward`], so training and inference agree to the last bit of an
//! instruction set.

use super::codes::{Codes, Quantizer, QuantizerLanes};
use super::epilogue;
use super::layout::PackedWeights;
use super::linear::{LinearInput, Plan};
use super::params::LinearParams;
use crate::compute::Compute;
use crate::layer_norm::{LayerNorm, Plain, Row, SquaredDistance};
use crate::simd::loops::sums;
use crate::simd::{Kernel, Simd};
use crate::threads::Shared;
use std::ops::Range;

/// Rows that a task of LayerNorm alone takes.
const ROWS: usize = 16;

/// A LayerNorm of the hidden state, `[tokens, width]` in f32, and the codes made of its result.
#[derive(Debug)]
pub struct NormOutput<'a> {
    /// γ, β and ε.
    pub norm: LayerNorm<'a>,
    /// In: what is normalized (or the residual, for a linear layer's result to be added). Out: the result.
    pub hidden: &'a mut [f32],
    /// Where the result's codes go, if anybody reads them; already of as many rows as tokens.
    pub codes: Option<(&'a mut Codes, Quantizer)>,
}

/// [`NormOutput`], checked, by address: tasks take disjoint rows.
struct Target<'a> {
    norm: LayerNorm<'a>,
    hidden: Shared<f32>,
    codes: Option<(Shared<i8>, usize, Quantizer)>,
    rows: usize,
}

impl<'a> Target<'a> {
    fn new(output: NormOutput<'a>) -> Self {
        let NormOutput { norm, hidden, codes } = output;
        let width = norm.gamma.len();
        assert!(width > 0 && norm.beta.len() == width, "γ of {width} and β of {} columns", norm.beta.len());
        assert!(hidden.len().is_multiple_of(width), "{} elements are no whole rows of {width}", hidden.len());
        let rows = hidden.len() / width;
        let codes = codes.map(|(codes, quantizer)| {
            let found = (codes.rows(), codes.cols());
            assert!(found == (rows, width), "codes of {found:?} for a hidden state of {rows}×{width}");
            let stride = codes.stride();
            (Shared(codes.as_mut_ptr()), stride, quantizer)
        });
        Self { norm, hidden: Shared(hidden.as_mut_ptr()), codes, rows }
    }

    /// Normalizes some rows.
    ///
    /// # Safety
    /// The rows must exist, and nobody else may use them meanwhile.
    unsafe fn run(&self, compute: &Compute, rows: Range<usize>) {
        let width = self.norm.gamma.len();
        // SAFETY: the rows are inside the hidden state and ours alone.
        let hidden =
            unsafe { std::slice::from_raw_parts_mut(self.hidden.get().add(rows.start * width), rows.len() * width) };
        let codes = self.codes.as_ref().map(|(base, stride, quantizer)| {
            // SAFETY: the codes have the same rows.
            (unsafe { base.get().add(rows.start * stride) }, *stride, *quantizer)
        });
        compute.kernels().run(NormRows { norm: self.norm, hidden, codes });
    }
}

/// LayerNorm of whole rows in place; codes, if any, at an address with a row stride.
struct NormRows<'a> {
    norm: LayerNorm<'a>,
    hidden: &'a mut [f32],
    codes: Option<(*mut i8, usize, Quantizer)>,
}

impl Kernel for NormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { norm, hidden, codes } = self;
        let width = norm.gamma.len();
        for (index, row) in hidden.chunks_exact_mut(width).enumerate() {
            let [total] = sums(simd, &Plain, [&*row]);
            let mean = total / width as f32;
            let [squares] = sums(simd, &SquaredDistance(mean), [&*row]);
            let numbers = Row { mean, rstd: 1.0 / (squares / width as f32 + norm.epsilon).sqrt() };
            match codes {
                Some((base, stride, quantizer)) => {
                    let lanes = QuantizerLanes::new(simd, &quantizer);
                    normalize(simd, numbers, &norm, row, |col, value| {
                        // SAFETY: rows of codes have room for whole vectors.
                        unsafe { simd.store_i8_ptr(base.add(index * stride + col), lanes.codes(simd, value)) };
                    });
                }
                None => normalize(simd, numbers, &norm, row, |_, _| {}),
            }
        }
    }
}

/// `γ·x̂ + β` of one row in place; `also(column, values)` sees every vector, with zeros beyond the row's end.
#[inline(always)]
fn normalize<S: Simd>(simd: S, row: Row, norm: &LayerNorm<'_>, values: &mut [f32], also: impl Fn(usize, S::F32)) {
    for (index, part) in values.chunks_mut(S::LANES).enumerate() {
        let col = index * S::LANES;
        let (gamma, beta) = (&norm.gamma[col..col + part.len()], &norm.beta[col..col + part.len()]);
        let result = if part.len() == S::LANES {
            let result = simd.mul_add(row.hat(simd, simd.load(part)), simd.load(gamma), simd.load(beta));
            simd.store(part, result);
            result
        } else {
            let hat = row.hat(simd, simd.load_partial(part));
            let result = simd.mul_add(hat, simd.load_partial(gamma), simd.load_partial(beta));
            simd.store_partial(part, result);
            result
        };
        also(col, result);
    }
}

impl Compute {
    /// LayerNorm of the hidden state in place, and its codes, over all threads: after the embedding.
    ///
    /// # Panics
    /// When shapes do not fit together.
    pub fn norm_to_codes(&self, output: NormOutput<'_>) {
        let target = Target::new(output);
        self.norm_rows(&target);
    }

    /// `hidden = LayerNorm(hidden + linear(input))` and its codes, over all threads: both ends of an encoder layer.
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
        assert!(target.rows == rows, "a hidden state of {} rows for {rows} tokens", target.rows);
        let sum = epilogue::Target::Add(target.hidden.get(), width);
        let plan = Plan::new(self, input, (weights, params), sum);
        if plan.has_whole_rows() {
            self.threads().for_each(plan.tasks(), |task| {
                plan.run(self, task);
                // SAFETY: the task's rows are complete now, and no other task has them.
                unsafe { target.run(self, plan.rows(task)) };
            });
        } else {
            self.threads().for_each(plan.tasks(), |task| plan.run(self, task));
            self.norm_rows(&target);
        }
    }

    fn norm_rows(&self, target: &Target<'_>) {
        self.threads().for_each(target.rows.div_ceil(ROWS), |task| {
            let rows = task * ROWS..target.rows.min((task + 1) * ROWS);
            // SAFETY: these rows exist, and no other task has them.
            unsafe { target.run(self, rows) };
        });
    }
}
