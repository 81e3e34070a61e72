//! Rounding that looks at the data: every weight is rounded so that it makes up for the errors of those before it.
//!
//! Rounding each weight to its nearest code minimises the error of the weights. What matters is the error of the
//! product, `Σ over tokens of (x·(w − q))² = (w − q) M (w − q)ᵀ` with the second moments `M = XᵀX` of the inputs. With
//! `M = RᵀR` (Cholesky) it is `Σᵢ (Rᵢᵢeᵢ + Σ_{j>i} Rᵢⱼeⱼ)²`, so going from the last input to the first, each code has
//! one best value given those already chosen: Babai's nearest plane, which is what GPTQ computes by another road. The
//! inputs with the largest moments come first, while there is nothing to make up for yet.
//!
//! Not part of the paper, whose models are trained after rounding; without training it is worth more than a bit.
//! Ranges stay as they are, and the result lies on their grids, so that codes follow from it as from any weight. Training
//! must not start on the grid, where every weight is half a step away from its next code: [`QuantParams::loosen_rows`]
//! takes weights back to where they came from as far as their codes stay.

use std::ops;

use crate::error::Error;
use crate::matrix::{Axis, QuantParams};
use crate::range::check_length;

/// What is added to the diagonal, as a share of its mean: moments of a sample are known no better than that, and a
/// dead input has none.
const DAMPING: f64 = 0.01;

/// How far from the middle of its code's interval, in steps, a loosened weight may lie. At half a step the next touch of
/// its range would change the code.
const LOOSE: f32 = 0.45;

/// How far a compensated row may be from its nearest codes: the mean square, in steps. A weight far outside its range
/// leaves more than the others can make up for; all of them then go to the ends of their range, which fits the calibration
/// data a little better and everything else much worse.
const MOST_MOVED: f32 = 1.0;

/// Rows that go through together, as lanes of one vector operation.
const LANES: usize = 16;

/// The second moments of a matrix's inputs, factored: how an error at one input can be made up for at the others.
#[derive(Clone, Debug, PartialEq)]
pub struct InputMoments {
    /// Inputs from the least to the most active.
    order: Vec<usize>,
    /// For each place in the order `Rᵢⱼ / Rᵢᵢ` of the places `j > i` after it.
    influence: Vec<Vec<f32>>,
}

impl InputMoments {
    /// Factors `Σ xxᵀ`, a symmetric matrix of `inputs` rows; only its lower triangle is read.
    ///
    /// # Errors
    /// [`Error::Length`] when it is not square; [`Error::BadValue`] for NaN, infinity or a negative diagonal.
    pub fn factor(inputs: usize, moments: &[f32]) -> Result<Self, Error> {
        check_length("second moments", inputs * inputs, moments.len())?;
        let bad = |index: usize| Error::BadValue { index, value: moments[index] };
        if let Some(index) = moments.iter().position(|value| !value.is_finite()) {
            return Err(bad(index));
        }
        let diagonal = |input: usize| moments[input * inputs + input];
        if let Some(input) = (0..inputs).find(|&input| diagonal(input) < 0.0) {
            return Err(bad(input * inputs + input));
        }
        let mut order: Vec<usize> = (0..inputs).collect();
        order.sort_by(|&a, &b| diagonal(a).total_cmp(&diagonal(b)));
        let mean = (0..inputs).map(|input| f64::from(diagonal(input))).sum::<f64>() / inputs.max(1) as f64;
        // Without any moments every error is as good as any other: plain rounding.
        let damping = if mean > 0.0 { DAMPING * mean } else { 1.0 };
        let lower = cholesky(inputs, |row, column| {
            let (a, b) = (order[row].max(order[column]), order[row].min(order[column]));
            f64::from(moments[a * inputs + b]) + if row == column { damping } else { 0.0 }
        });
        let influence = (0..inputs).map(|i| {
            let own = lower[i * inputs + i];
            (i + 1..inputs).map(|j| (lower[j * inputs + i] / own) as f32).collect()
        });
        Ok(Self { influence: influence.collect(), order })
    }

    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        self.order.len()
    }
}

/// The lower factor of a symmetric matrix, row by row.
fn cholesky(size: usize, element: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut lower = vec![0.0; size * size];
    for i in 0..size {
        let (done, rest) = lower.split_at_mut(i * size);
        let row = &mut rest[..size];
        for j in 0..i {
            let other = &done[j * size..j * size + j + 1];
            row[j] = (element(i, j) - dot(&row[..j], &other[..j])) / other[j];
        }
        let left = element(i, i) - dot(&row[..i], &row[..i]);
        // Rounding can take a little more than there is where inputs depend on each other.
        row[i] = left.max(f64::MIN_POSITIVE.sqrt()).sqrt();
    }
    lower
}

/// Several sums at once, so that the processor does not wait for one.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

/// What a block of rows needs besides its weights.
struct Work {
    /// What rounding took from each weight, by place in the order.
    errors: Vec<[f32; LANES]>,
    /// The weights at their nearest codes.
    nearest: Vec<f32>,
}

impl QuantParams {
    /// Rounds some rows to values of their codes so that the product with inputs of these moments changes least; the
    /// slice holds these rows and nothing else. A row whose weights would have to move too far is rounded to its nearest
    /// codes.
    ///
    /// # Errors
    /// [`Error::Rows`] when there are no such rows, [`Error::Length`] when the slice does not fit them, the moments are
    /// of another number of inputs or the columns are the neurons; [`Error::BadValue`] for NaN or infinity.
    pub fn compensate_rows(
        &self,
        rows: ops::Range<usize>,
        moments: &InputMoments,
        values: &mut [f32],
    ) -> Result<(), Error> {
        let layout = self.layout();
        layout.check_rows("values", &rows, values.len())?;
        let inputs = if layout.axis() == Axis::Rows { layout.cols() } else { 0 };
        check_length("inputs", inputs, moments.inputs())?;
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::BadValue { index, value: values[index] });
        }
        let mut work = Work { errors: vec![[0.0; LANES]; inputs], nearest: Vec::new() };
        for (block, values) in values.chunks_mut(LANES * inputs).enumerate() {
            self.compensate_block(rows.start + block * LANES, moments, values, &mut work);
        }
        Ok(())
    }

    /// Replaces rounded values of some rows by those nearest to `original` that have the same codes; the slices hold these
    /// rows and nothing else.
    ///
    /// # Errors
    /// [`Error::Rows`] when there are no such rows, [`Error::Length`] when a slice does not fit them or the columns are the
    /// neurons.
    pub fn loosen_rows(&self, rows: ops::Range<usize>, original: &[f32], rounded: &mut [f32]) -> Result<(), Error> {
        let layout = self.layout();
        layout.check_rows("original", &rows, original.len())?;
        layout.check_rows("rounded", &rows, rounded.len())?;
        let inputs = if layout.axis() == Axis::Rows { layout.cols() } else { 0 };
        check_length("inputs", inputs, layout.cols())?;
        let pairs = original.chunks_exact(inputs).zip(rounded.chunks_exact_mut(inputs));
        for (row, (original, rounded)) in rows.zip(pairs) {
            let quantizer = self.affines()[layout.groups().group_of(row)];
            let (top, room) = (self.bits().max_code(), LOOSE * quantizer.step());
            for (&original, rounded) in original.iter().zip(rounded) {
                let code = quantizer.code(*rounded);
                let lowest = if code == 0 { f32::NEG_INFINITY } else { *rounded - room };
                let highest = if code == top { f32::INFINITY } else { *rounded + room };
                *rounded = original.max(lowest).min(highest);
            }
        }
        Ok(())
    }

    fn compensate_block(&self, first: usize, moments: &InputMoments, values: &mut [f32], work: &mut Work) {
        let Work { errors, nearest } = work;
        let inputs = moments.inputs();
        let groups = self.layout().groups();
        let quantizers: Vec<_> =
            (first..first + values.len() / inputs).map(|row| self.affines()[groups.group_of(row)]).collect();
        nearest.clear();
        for (row, quantizer) in values.chunks_exact(inputs).zip(&quantizers) {
            nearest.extend(row.iter().map(|&value| quantizer.round_trip(value)));
        }
        for (place, influence) in moments.influence.iter().enumerate().rev() {
            let mut owed = [0.0; LANES];
            for (factor, error) in influence.iter().zip(&errors[place + 1..]) {
                for lane in 0..LANES {
                    owed[lane] += factor * error[lane];
                }
            }
            let column = moments.order[place];
            for (lane, quantizer) in quantizers.iter().enumerate() {
                let value = &mut values[lane * inputs + column];
                let rounded = quantizer.round_trip(*value + owed[lane]);
                errors[place][lane] = *value - rounded;
                *value = rounded;
            }
        }
        let rows = values.chunks_exact_mut(inputs).zip(nearest.chunks_exact(inputs));
        for ((row, nearest), quantizer) in rows.zip(&quantizers) {
            let moved: f32 = row.iter().zip(nearest).map(|(value, nearest)| (value - nearest).powi(2)).sum();
            if moved > MOST_MOVED * inputs as f32 * quantizer.step().powi(2) {
                row.copy_from_slice(nearest);
            }
        }
    }
}

#[cfg(test)]
mod tests;
