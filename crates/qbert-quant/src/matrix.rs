//! Group-wise quantization of a matrix (paper, §3.3; embeddings: App. C.2).
//!
//! A linear layer's weight is `[out, in]`, row-major: its output neurons are rows. An embedding table is
//! `[vocabulary, hidden]`: its output neurons are columns. [`Layout`] says which, and how the neurons are
//! grouped; [`QuantParams`] holds one range and one quantizer per group.
//!
//! Ranges are found once ([`QuantParams::fit`]) and then used often: [`QuantParams::fake_quantize`]
//! neither allocates nor looks for ranges. Nothing here starts threads, but everything can be split by the
//! caller: ranges group by group ([`Layout::fit_group`]), values by spans of rows (the `_rows` functions).
//! The results do not depend on the split.

use crate::bits::BitWidth;
use crate::error::Error;
use crate::groups::{GroupSpec, Groups};
use crate::quantizer::{Affine, check_finite, round_trip, shifted_code};
use crate::range::{Mask, Range, RangeMethod, Scratch, check_length, refine, squared_error};
use serde::Serialize;
use std::ops;

/// Along which side of a matrix its output neurons lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Each row is an output neuron: weights `[out, in]`.
    Rows,
    /// Each column is an output neuron: embedding tables `[vocabulary, hidden]`.
    Columns,
    /// An embedding table whose rows have a range each. Its neurons are columns, but what is looked up is a row, and rows
    /// differ in size: those of rare words are short. There are tens of thousands of these ranges, so their ends are
    /// rounded to bf16 ([`Range::to_bf16`]) and take four bytes.
    TableRows,
}

impl Axis {
    /// Whether every value of a row is quantized on the same range.
    pub fn is_by_row(self) -> bool {
        match self {
            Self::Rows | Self::TableRows => true,
            Self::Columns => false,
        }
    }
}

/// The shape of a row-major matrix and the grouping of its output neurons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    rows: usize,
    cols: usize,
    axis: Axis,
    groups: Groups,
}

impl Layout {
    /// The most values one output neuron may have, 2^24: so many codes still sum to less than 2^32.
    pub const MOST_INPUTS: usize = 1 << 24;

    /// Lays out a matrix with this many groups.
    ///
    /// # Errors
    /// [`Error::Shape`] when a side is 0, the number of elements overflows, or a neuron has more than
    /// [`Layout::MOST_INPUTS`] values; otherwise as [`Groups::new`].
    pub fn new(rows: usize, cols: usize, axis: Axis, groups: usize) -> Result<Self, Error> {
        Self::resolve(rows, cols, axis, GroupSpec::Count(groups), 1)
    }

    /// Lays out a matrix as a plan says, in a model of `heads` heads. A table of [`Axis::Columns`] with a range for each
    /// row becomes one of [`Axis::TableRows`].
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn resolve(rows: usize, cols: usize, axis: Axis, spec: GroupSpec, heads: usize) -> Result<Self, Error> {
        let (axis, spec, neurons, inputs) = match (axis, spec) {
            (Axis::Rows, spec) => (axis, spec, rows, cols),
            (Axis::Columns | Axis::TableRows, GroupSpec::PerRow) => (Axis::TableRows, GroupSpec::PerNeuron, rows, rows),
            (Axis::Columns | Axis::TableRows, spec) => (Axis::Columns, spec, cols, rows),
        };
        if rows == 0 || cols == 0 || rows.checked_mul(cols).is_none() || inputs > Self::MOST_INPUTS {
            return Err(Error::Shape { rows, cols });
        }
        Ok(Self { rows, cols, axis, groups: Groups::resolve(spec, neurons, heads)? })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Where the output neurons lie.
    pub fn axis(&self) -> Axis {
        self.axis
    }

    /// The grouping of the output neurons.
    pub fn groups(&self) -> Groups {
        self.groups
    }

    /// The number of elements, `rows · cols`.
    pub fn elements(&self) -> usize {
        self.rows * self.cols
    }

    /// The range of one group of the whole matrix `values`.
    ///
    /// # Errors
    /// [`Error::Length`] when `values` is not the whole matrix or there is no such group;
    /// [`Error::BadValue`] for a value that no range can hold, its index counted in the whole matrix.
    pub fn fit_group(
        &self,
        values: &[f32],
        group: usize,
        bits: BitWidth,
        method: RangeMethod,
        scratch: &mut Scratch,
    ) -> Result<Range, Error> {
        self.with_group(values, group, scratch, |members, scratch| method.fit(members, bits, scratch))
    }

    /// Improves the range of one group of the whole matrix from a start; see [`refine`].
    ///
    /// # Errors
    /// As [`Layout::fit_group`].
    pub fn refine_group(
        &self,
        values: &[f32],
        group: usize,
        bits: BitWidth,
        start: Range,
        scratch: &mut Scratch,
    ) -> Result<Range, Error> {
        self.with_group(values, group, scratch, |members, _| refine(start, members, bits))
    }

    /// The squared error `Σ (w - Q(w))²` of one group of the whole matrix, on the range that `method` finds.
    ///
    /// # Errors
    /// As [`Layout::fit_group`].
    pub fn group_error(
        &self,
        values: &[f32],
        group: usize,
        bits: BitWidth,
        method: RangeMethod,
        scratch: &mut Scratch,
    ) -> Result<f64, Error> {
        self.with_group(values, group, scratch, |members, scratch| {
            Ok(squared_error(members, self.stored(method.fit(members, bits, scratch)?), bits))
        })
    }

    /// Hands the values of a group to `work`, gathered if they are columns.
    fn with_group<T>(
        &self,
        values: &[f32],
        group: usize,
        scratch: &mut Scratch,
        work: impl FnOnce(&[f32], &mut Scratch) -> Result<T, Error>,
    ) -> Result<T, Error> {
        check_length("matrix", self.elements(), values.len())?;
        let span = self.groups.span(group);
        if span.is_empty() {
            return Err(Error::Length { what: "groups", expected: self.groups.count(), found: group + 1 });
        }
        let by_row = self.axis.is_by_row();
        if by_row || span.len() == self.cols {
            let start = if by_row { span.start * self.cols } else { 0 };
            let length = if by_row { span.len() * self.cols } else { values.len() };
            return work(&values[start..start + length], scratch)
                .map_err(|error| shift_index(error, |index| start + index));
        }
        let mut gathered = std::mem::take(&mut scratch.gathered);
        gathered.clear();
        for row in values.chunks_exact(self.cols) {
            gathered.extend_from_slice(&row[span.clone()]);
        }
        let result = work(&gathered, scratch);
        scratch.gathered = gathered;
        let place = |index: usize| index / span.len() * self.cols + span.start + index % span.len();
        result.map_err(|error| shift_index(error, place))
    }

    /// A range as it is stored.
    fn stored(&self, range: Range) -> Range {
        if self.axis == Axis::TableRows { range.to_bf16() } else { range }
    }

    /// Checks that `found` elements are exactly the rows `rows`.
    pub(crate) fn check_rows(&self, what: &'static str, rows: &ops::Range<usize>, found: usize) -> Result<(), Error> {
        if rows.start > rows.end || rows.end > self.rows {
            return Err(Error::Rows { start: rows.start, end: rows.end, rows: self.rows });
        }
        check_length(what, rows.len() * self.cols, found)
    }
}

fn shift_index(error: Error, place: impl Fn(usize) -> usize) -> Error {
    match error {
        Error::BadValue { index, value } => Error::BadValue { index: place(index), value },
        other => other,
    }
}

/// The range and the quantizer of every group of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantParams {
    layout: Layout,
    bits: BitWidth,
    ranges: Vec<Range>,
    affines: Vec<Affine>,
    /// The groups' parameters spread out over the output neurons, so that the loops over values need not
    /// know about groups.
    neurons: Neurons,
}

/// One entry per output neuron.
#[derive(Clone, Debug, PartialEq, Default)]
struct Neurons {
    low: Vec<f32>,
    high: Vec<f32>,
    step: Vec<f32>,
    inverse: Vec<f32>,
}

impl QuantParams {
    /// Finds the range of every group, one after the other.
    ///
    /// # Errors
    /// As [`Layout::fit_group`].
    pub fn fit(
        values: &[f32],
        layout: Layout,
        bits: BitWidth,
        method: RangeMethod,
        scratch: &mut Scratch,
    ) -> Result<Self, Error> {
        let groups = 0..layout.groups.count();
        let ranges: Result<Vec<Range>, Error> =
            groups.map(|group| layout.fit_group(values, group, bits, method, scratch)).collect();
        Self::from_ranges(layout, bits, ranges?)
    }

    /// Takes ranges found before, one per group.
    ///
    /// # Errors
    /// [`Error::Length`] when there are not as many ranges as groups.
    pub fn from_ranges(layout: Layout, bits: BitWidth, mut ranges: Vec<Range>) -> Result<Self, Error> {
        check_length("ranges", layout.groups.count(), ranges.len())?;
        ranges.iter_mut().for_each(|range| *range = layout.stored(*range));
        let affines = ranges.iter().map(|&range| Affine::from_range(range, bits)).collect();
        let zeros = || vec![0.0; layout.groups.neurons()];
        let neurons = Neurons { low: zeros(), high: zeros(), step: zeros(), inverse: zeros() };
        let mut params = Self { layout, bits, ranges, affines, neurons };
        for group in 0..params.ranges.len() {
            params.spread(group);
        }
        Ok(params)
    }

    /// Replaces the range of one group.
    ///
    /// # Errors
    /// [`Error::Length`] when there is no such group.
    pub fn set_range(&mut self, group: usize, range: Range) -> Result<(), Error> {
        let count = self.ranges.len();
        let range = self.layout.stored(range);
        let place = self.ranges.get_mut(group);
        *place.ok_or(Error::Length { what: "groups", expected: count, found: group.saturating_add(1) })? = range;
        self.affines[group] = Affine::from_range(range, self.bits);
        self.spread(group);
        Ok(())
    }

    /// Improves every range for new values of the matrix; see [`refine`].
    ///
    /// # Errors
    /// As [`Layout::fit_group`]; then the groups before the bad one have new ranges, the others old ones.
    pub fn refine(&mut self, values: &[f32], scratch: &mut Scratch) -> Result<(), Error> {
        for group in 0..self.ranges.len() {
            let range = self.layout.refine_group(values, group, self.bits, self.ranges[group], scratch)?;
            self.set_range(group, range)?;
        }
        Ok(())
    }

    fn spread(&mut self, group: usize) {
        let (range, affine) = (self.ranges[group], self.affines[group]);
        let span = self.layout.groups.span(group);
        self.neurons.low[span.clone()].fill(affine.low());
        self.neurons.high[span.clone()].fill(range.high());
        self.neurons.step[span.clone()].fill(affine.step());
        self.neurons.inverse[span].fill(affine.inverse_step());
    }

    /// The shape and grouping of the matrix.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The width of the codes.
    pub fn bits(&self) -> BitWidth {
        self.bits
    }

    /// The range of each group.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// The quantizer of each group.
    pub fn affines(&self) -> &[Affine] {
        &self.affines
    }

    /// The offset `q0` of each output neuron.
    pub fn neuron_lows(&self) -> &[f32] {
        &self.neurons.low
    }

    /// The step `Δ` of each output neuron.
    pub fn neuron_steps(&self) -> &[f32] {
        &self.neurons.step
    }

    /// Writes `Q(w)` of the whole matrix.
    ///
    /// # Errors
    /// [`Error::Length`] when a slice is not the whole matrix; [`Error::BadValue`] for NaN or infinity,
    /// and then `output` is in no particular state.
    pub fn fake_quantize(&self, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.fake_quantize_rows(0..self.layout.rows, input, output)
    }

    /// Writes `Q(w)` of some rows; the slices hold these rows and nothing else.
    ///
    /// # Errors
    /// [`Error::Rows`] when there are no such rows; otherwise as [`QuantParams::fake_quantize`], with the
    /// index counted in `input`.
    pub fn fake_quantize_rows(&self, rows: ops::Range<usize>, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.layout.check_rows("input", &rows, input.len())?;
        self.layout.check_rows("output", &rows, output.len())?;
        let (top, neurons) = (f32::from(self.bits.max_code()), &self.neurons);
        self.each_row(rows, input, output, |row, values, results| match row {
            Some(row) => {
                let (low, step, inverse) = (neurons.low[row], neurons.step[row], neurons.inverse[row]);
                for (result, &value) in results.iter_mut().zip(values) {
                    *result = round_trip(value, low, step, inverse, top);
                }
            }
            None => {
                let columns = neurons.low.iter().zip(&neurons.step).zip(&neurons.inverse);
                for ((result, &value), ((&low, &step), &inverse)) in results.iter_mut().zip(values).zip(columns) {
                    *result = round_trip(value, low, step, inverse, top);
                }
            }
        });
        check_finite(input)
    }

    /// Writes the codes of some rows; the slices hold these rows and nothing else.
    ///
    /// # Errors
    /// As [`QuantParams::fake_quantize_rows`].
    pub fn quantize_rows(&self, rows: ops::Range<usize>, input: &[f32], codes: &mut [u8]) -> Result<(), Error> {
        self.layout.check_rows("input", &rows, input.len())?;
        self.layout.check_rows("codes", &rows, codes.len())?;
        let (top, neurons) = (f32::from(self.bits.max_code()), &self.neurons);
        self.each_row(rows, input, codes, |row, values, codes| match row {
            Some(row) => {
                let (low, inverse) = (neurons.low[row], neurons.inverse[row]);
                for (code, &value) in codes.iter_mut().zip(values) {
                    *code = shifted_code(value, low, inverse, top).to_bits() as u8;
                }
            }
            None => {
                let columns = neurons.low.iter().zip(&neurons.inverse);
                for ((code, &value), (&low, &inverse)) in codes.iter_mut().zip(values).zip(columns) {
                    *code = shifted_code(value, low, inverse, top).to_bits() as u8;
                }
            }
        });
        check_finite(input)
    }

    /// Applies the straight-through mask to the gradients of the whole matrix: those of weights that the mask does
    /// not let through become 0.
    ///
    /// # Errors
    /// [`Error::Length`] when a slice is not the whole matrix.
    pub fn straight_through(&self, mask: Mask, input: &[f32], gradients: &mut [f32]) -> Result<(), Error> {
        self.straight_through_rows(mask, 0..self.layout.rows, input, gradients)
    }

    /// Applies the straight-through mask to some rows; the slices hold these rows and nothing else.
    ///
    /// # Errors
    /// [`Error::Rows`] when there are no such rows, [`Error::Length`] when a slice does not fit them.
    pub fn straight_through_rows(
        &self,
        mask: Mask,
        rows: ops::Range<usize>,
        input: &[f32],
        gradients: &mut [f32],
    ) -> Result<(), Error> {
        self.layout.check_rows("input", &rows, input.len())?;
        self.layout.check_rows("gradients", &rows, gradients.len())?;
        if mask == Mask::None {
            return Ok(());
        }
        let (neurons, margin) = (&self.neurons, mask.margin());
        let select = |gradient: &mut f32, value: f32, low: f32, high: f32, step: f32| {
            // One select without a branch: both comparisons are taken.
            let inside = (low - margin * step <= value) & (value <= high + margin * step);
            *gradient = if inside { *gradient } else { 0.0 };
        };
        self.each_row(rows, input, gradients, |row, values, gradients| match row {
            Some(row) => {
                let (low, high, step) = (neurons.low[row], neurons.high[row], neurons.step[row]);
                for (gradient, &value) in gradients.iter_mut().zip(values) {
                    select(gradient, value, low, high, step);
                }
            }
            None => {
                let columns = neurons.low.iter().zip(&neurons.high).zip(&neurons.step);
                for ((gradient, &value), ((&low, &high), &step)) in gradients.iter_mut().zip(values).zip(columns) {
                    select(gradient, value, low, high, step);
                }
            }
        });
        Ok(())
    }

    /// Calls `work` for each row, with the row's number where a row has one range and `None` where the
    /// columns have.
    fn each_row<T>(
        &self,
        rows: ops::Range<usize>,
        input: &[f32],
        output: &mut [T],
        work: impl Fn(Option<usize>, &[f32], &mut [T]),
    ) {
        let cols = self.layout.cols;
        for (row, (values, results)) in rows.zip(input.chunks_exact(cols).zip(output.chunks_exact_mut(cols))) {
            work(self.layout.axis.is_by_row().then_some(row), values, results);
        }
    }
}
