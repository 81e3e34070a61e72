//! Softmax over rows, its backward pass and that pass's tangent, and log-sum-exp.
//!
//! Rows may hold -∞ (probability 0) beside at least one finite number; a row that is all -∞, or
//! contains +∞ or NaN, gives NaN. Accuracy against f64 (tested): with `z = scale · (max - x)`,
//! probabilities within `4e-7 + 1.3e-7·z` relative (the exponent's own rounding grows with z); below
//! 1e-38 they are 0. Softmax adds up sixteen lanes, group after group, then the lanes by a tree; the
//! other sums go in the order of `simd::loops::sums`.

use crate::cpu::Kernels;
use crate::simd::loops::{Elementwise, LaneSums, Map, Terms, sums};
use crate::simd::math::{EXP2_LOWEST, exp, exp2_of_each};
use crate::simd::{Kernel, SUM_LANES, Simd};
use std::f32::consts::LOG2_E;

struct SoftmaxRows<'a> {
    rows: &'a mut [f32],
    cols: usize,
    scale: f32,
}

#[inline(always)]
fn row_max<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let lowest = simd.splat(f32::NEG_INFINITY);
    let (chunks, rest) = (row.chunks_exact(S::LANES), row.len() % S::LANES);
    let tail = chunks.remainder();
    let mut highest = lowest;
    for chunk in chunks {
        highest = simd.max(highest, simd.load(chunk));
    }
    if rest > 0 {
        highest = simd.max(highest, simd.select_first(rest, simd.load_partial(tail), lowest));
    }
    simd.reduce_max(highest)
}

/// `e^(scale·z)` is `2^(binary_scale(scale)·z)`. Finite, so that a difference of 0 stays 0 whatever the scale.
#[inline(always)]
pub(crate) fn binary_scale(scale: f32) -> f32 {
    (scale * LOG2_E).min(f32::MAX)
}

/// `2^(scale·(x - max))`, 0 where that would not be a normal number.
#[inline(always)]
fn exponential<S: Simd>(simd: S, x: S::F32, max: S::F32, scale: S::F32) -> S::F32 {
    let exponent = simd.mul(simd.sub(x, max), scale);
    let [value] = exp2_of_each(simd, [exponent]);
    simd.select_less(exponent, simd.splat(EXP2_LOWEST), simd.splat(0.0), value)
}

/// `row = 2^(scale·(row - max))`, and the sum of that.
#[inline(always)]
fn exponentials<S: Simd>(simd: S, row: &mut [f32], max: f32, scale: f32) -> f32 {
    let (max, scale) = (simd.splat(max), simd.splat(scale));
    let mut total = LaneSums::zero(simd);
    let mut groups = row.chunks_exact_mut(SUM_LANES);
    for group in &mut groups {
        for (part, chunk) in group.chunks_exact_mut(S::LANES).enumerate() {
            let value = exponential(simd, simd.load(chunk), max, scale);
            simd.store(chunk, value);
            total.add_vector(simd, part, value);
        }
    }
    for (part, tail) in groups.into_remainder().chunks_mut(S::LANES).enumerate() {
        let value = exponential(simd, simd.load_partial(tail), max, scale);
        simd.store_partial(tail, value);
        total.add_vector(simd, part, simd.select_first(tail.len(), value, simd.splat(0.0)));
    }
    total.total(simd)
}

/// Rows of at most this many vectors stay in registers from start to end.
const SHORT: usize = 4;

/// Loads one row as `VECTORS` vectors, -∞ beyond its end.
#[inline(always)]
fn load_row<S: Simd, const VECTORS: usize>(simd: S, row: &[f32]) -> [S::F32; VECTORS] {
    let lowest = simd.splat(f32::NEG_INFINITY);
    let mut values = [lowest; VECTORS];
    let (whole, tail) = row.split_at((VECTORS - 1) * S::LANES);
    for (value, part) in values.iter_mut().zip(whole.chunks_exact(S::LANES)) {
        *value = simd.load(part);
    }
    values[VECTORS - 1] = simd.select_first(tail.len(), simd.load_partial(tail), lowest);
    values
}

#[inline(always)]
fn store_row<S: Simd, const VECTORS: usize>(simd: S, row: &mut [f32], values: &[S::F32; VECTORS]) {
    let (whole, tail) = row.split_at_mut((VECTORS - 1) * S::LANES);
    for (&value, part) in values.iter().zip(whole.chunks_exact_mut(S::LANES)) {
        simd.store(part, value);
    }
    if tail.len() == S::LANES {
        simd.store(tail, values[VECTORS - 1]);
    } else {
        simd.store_partial(tail, values[VECTORS - 1]);
    }
}

/// Rows of exactly `VECTORS` vectors, four at a time: the same operations in the same order as the
/// long way, but each element is read and written once, and no row waits for the one before (a load
/// next to a fresh partial store would).
#[inline(always)]
fn short_rows<S: Simd, const VECTORS: usize>(simd: S, rows: &mut [f32], cols: usize, scale: f32) {
    const TOGETHER: usize = 4;
    let factor = simd.splat(binary_scale(scale));
    for rows in rows.chunks_mut(TOGETHER * cols) {
        let mut values = [[simd.splat(0.0); VECTORS]; TOGETHER];
        for (values, row) in values.iter_mut().zip(rows.chunks_exact(cols)) {
            *values = load_row(simd, row);
        }
        for values in &mut values {
            let mut highest = values[0];
            for &value in &values[1..] {
                highest = simd.max(highest, value);
            }
            let max = simd.splat(simd.reduce_max(highest));
            let mut total = LaneSums::zero(simd);
            for (vector, value) in values.iter_mut().enumerate() {
                // Lanes beyond the row hold -∞ and become 0.
                *value = exponential(simd, *value, max, factor);
                total.add_vector(simd, vector, *value);
            }
            let share = simd.splat(1.0 / total.total(simd));
            for value in values.iter_mut() {
                *value = simd.mul(*value, share);
            }
        }
        for (values, row) in values.iter().zip(rows.chunks_exact_mut(cols)) {
            store_row(simd, row, values);
        }
    }
}

struct ScaleBy(f32);

impl Elementwise<0, 1> for ScaleBy {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, []: [S::F32; 0], [y]: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul(simd.splat(self.0), y)]
    }
}

impl Kernel for SoftmaxRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rows, cols, scale } = self;
        match cols.div_ceil(S::LANES) {
            1 => return short_rows::<S, 1>(simd, rows, cols, scale),
            2 => return short_rows::<S, 2>(simd, rows, cols, scale),
            3 => return short_rows::<S, 3>(simd, rows, cols, scale),
            SHORT => return short_rows::<S, SHORT>(simd, rows, cols, scale),
            _ => {}
        }
        for row in rows.chunks_exact_mut(cols) {
            let max = row_max(simd, row);
            let total = exponentials(simd, row, max, binary_scale(scale));
            Map { function: ScaleBy(1.0 / total), inputs: [], outputs: [row] }.run(simd);
        }
    }
}

/// What attention adds to its scores, for every head and distance between key and query.
#[derive(Debug, Clone, PartialEq)]
pub struct DistanceBias {
    /// Per head `2·longest - 1` numbers, from the key farthest before its query to the one farthest after it; each
    /// times log₂ e, because exponentials are powers of 2.
    values: Vec<f32>,
    longest: usize,
}

impl DistanceBias {
    /// The numbers `bias(head, key - query)` for sequences of up to `longest` tokens.
    pub fn new(heads: usize, longest: usize, bias: impl Fn(usize, isize) -> f32) -> Self {
        let ahead = longest.saturating_sub(1).cast_signed();
        let distances = || (-ahead..=ahead).take(if longest == 0 { 0 } else { usize::MAX });
        let of_head = |head: usize| distances().map(move |distance| (head, distance));
        let values = (0..heads).flat_map(of_head).map(|(head, distance)| bias(head, distance) * LOG2_E).collect();
        Self { values, longest }
    }

    /// The longest sequence.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// What is added to the scores of one query with the first `keys` keys, times log₂ e.
    ///
    /// # Panics
    /// When the sequence is longer than the longest, or there is no such head.
    #[inline]
    pub(crate) fn row(&self, head: usize, query: usize, keys: usize) -> &[f32] {
        assert!(query < self.longest && keys <= self.longest, "query {query} of {keys} keys; {}", self.longest);
        let start = head * (2 * self.longest - 1) + self.longest - 1 - query;
        &self.values[start..start + keys]
    }
}

/// The part of a [`DistanceBias`] that belongs to some rows of scores.
#[derive(Debug, Clone, Copy)]
pub struct BiasRows<'a> {
    /// The bias of all heads.
    pub bias: &'a DistanceBias,
    /// The head that the rows belong to.
    pub head: usize,
    /// The query of the first row.
    pub first: usize,
}

struct BiasedSoftmaxRows<'a> {
    rows: &'a mut [f32],
    cols: usize,
    scale: f32,
    bias: BiasRows<'a>,
}

/// `scale·(x - max) + bias`
struct Biased {
    max: f32,
    scale: f32,
}

impl Elementwise<1, 1> for Biased {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [bias]: [S::F32; 1], [x]: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul_add(simd.sub(x, simd.splat(self.max)), simd.splat(self.scale), bias)]
    }
}

impl Kernel for BiasedSoftmaxRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rows, cols, scale, bias: BiasRows { bias, head, first } } = self;
        for (index, row) in rows.chunks_exact_mut(cols).enumerate() {
            let function = Biased { max: row_max(simd, row), scale: binary_scale(scale) };
            let inputs = [bias.row(head, first + index, cols)];
            Map { function, inputs, outputs: [&mut *row] }.run(simd);
            let max = row_max(simd, row);
            let total = exponentials(simd, row, max, 1.0);
            Map { function: ScaleBy(1.0 / total), inputs: [], outputs: [row] }.run(simd);
        }
    }
}

struct BackwardRows<'a> {
    p: &'a [f32],
    d_p: &'a mut [f32],
    cols: usize,
    scale: f32,
}

/// `Σ a·b`
struct Product;

impl Terms<2, 1> for Product {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [a, b]: [S::F32; 2]) -> [S::F32; 1] {
        [simd.mul(a, b)]
    }
}

/// `scale · p · (d - mean)`
struct Centered {
    mean: f32,
    scale: f32,
}

impl Elementwise<1, 1> for Centered {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [p]: [S::F32; 1], [d]: [S::F32; 1]) -> [S::F32; 1] {
        let scaled = simd.mul(p, simd.splat(self.scale));
        [simd.mul(scaled, simd.sub(d, simd.splat(self.mean)))]
    }
}

impl Kernel for BackwardRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.p.chunks_exact(self.cols).zip(self.d_p.chunks_exact_mut(self.cols));
        for (p, d_p) in rows {
            let [mean] = sums(simd, &Product, [p, d_p]);
            let function = Centered { mean, scale: self.scale };
            Map { function, inputs: [p], outputs: [d_p] }.run(simd);
        }
    }
}

/// The four row sets of [`Kernels::softmax_backward_tangent`], all of one shape.
#[derive(Debug)]
pub struct SoftmaxTangent<'a> {
    /// Probabilities.
    pub p: &'a [f32],
    /// Tangent of the probabilities.
    pub p_tangent: &'a [f32],
    /// Gradient of the probabilities.
    pub d_p: &'a [f32],
    /// In: tangent of that gradient. Out: tangent of the scores' gradient.
    pub d_p_tangent: &'a mut [f32],
}

struct BackwardTangentRows<'a> {
    data: SoftmaxTangent<'a>,
    cols: usize,
    scale: f32,
}

/// `Σ p·d` and `Σ (ṗ·d + p·ḋ)`
struct ProductAndTangent;

impl Terms<4, 2> for ProductAndTangent {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [p, pt, d, dt]: [S::F32; 4]) -> [S::F32; 2] {
        [simd.mul(p, d), simd.mul_add(pt, d, simd.mul(p, dt))]
    }
}

/// `scale · (ṗ·(d - mean) + p·(ḋ - mean_tangent))`
struct CenteredTangent {
    mean: f32,
    mean_tangent: f32,
    scale: f32,
}

impl Elementwise<3, 1> for CenteredTangent {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, [p, pt, d]: [S::F32; 3], [dt]: [S::F32; 1]) -> [S::F32; 1] {
        let moved = s.mul(pt, s.sub(d, s.splat(self.mean)));
        let both = s.mul_add(p, s.sub(dt, s.splat(self.mean_tangent)), moved);
        [s.mul(both, s.splat(self.scale))]
    }
}

impl Kernel for BackwardTangentRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let SoftmaxTangent { p, p_tangent, d_p, d_p_tangent } = self.data;
        for (index, out) in d_p_tangent.chunks_exact_mut(self.cols).enumerate() {
            let row = index * self.cols..(index + 1) * self.cols;
            let (p, pt, d) = (&p[row.clone()], &p_tangent[row.clone()], &d_p[row]);
            let [mean, mean_tangent] = sums(simd, &ProductAndTangent, [p, pt, d, out]);
            let function = CenteredTangent { mean, mean_tangent, scale: self.scale };
            Map { function, inputs: [p, pt, d], outputs: [out] }.run(simd);
        }
    }
}

struct LogSumExp<'a>(&'a [f32]);

/// `Σ e^(x - max)`
struct ShiftedExp(f32);

impl Terms<1, 1> for ShiftedExp {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [x]: [S::F32; 1]) -> [S::F32; 1] {
        [exp(simd, simd.sub(x, simd.splat(self.0)))]
    }
}

impl Kernel for LogSumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let max = row_max(simd, self.0);
        let [total] = sums(simd, &ShiftedExp(max), [self.0]);
        (f64::from(max) + libm::log(f64::from(total))) as f32
    }
}

/// Panics unless `length` is whole rows of `cols`.
fn check_rows(length: usize, cols: usize) {
    assert!(length == 0 || (cols > 0 && length.is_multiple_of(cols)), "{length} elements are not whole rows of {cols}");
}

impl Kernels {
    /// Every row of `cols` elements becomes `softmax(scale · row)`, in place.
    ///
    /// # Panics
    /// When `rows` is not a whole number of rows, or `scale` is not positive and finite.
    pub fn softmax(self, rows: &mut [f32], cols: usize, scale: f32) {
        check_rows(rows.len(), cols);
        assert!(scale > 0.0 && scale.is_finite(), "softmax scale {scale} is not positive");
        if !rows.is_empty() {
            self.run(SoftmaxRows { rows, cols, scale });
        }
    }

    /// Every row of `cols` elements becomes `softmax(scale · row + bias)`, in place. The scale is applied to the distance
    /// from the row's largest element, so that adding one number to a whole row changes no bit where sums are exact.
    ///
    /// # Panics
    /// As [`Kernels::softmax`], or when the bias is of shorter sequences.
    pub fn softmax_biased(self, rows: &mut [f32], cols: usize, scale: f32, bias: BiasRows<'_>) {
        check_rows(rows.len(), cols);
        assert!(scale > 0.0 && scale.is_finite(), "softmax scale {scale} is not positive");
        if !rows.is_empty() {
            self.run(BiasedSoftmaxRows { rows, cols, scale, bias });
        }
    }

    /// `d_p = scale · p ∘ (d_p - Σ p·d_p)` per row, in place: the gradient of the scores that went
    /// into [`Kernels::softmax`] with this scale. It is also softmax's forward tangent: give the
    /// tangent of the scores as `d_p`.
    ///
    /// # Panics
    /// When the lengths differ or are not whole rows.
    pub fn softmax_backward(self, p: &[f32], d_p: &mut [f32], cols: usize, scale: f32) {
        check_rows(p.len(), cols);
        assert!(p.len() == d_p.len(), "{} probabilities, {} gradients", p.len(), d_p.len());
        if !p.is_empty() {
            self.run(BackwardRows { p, d_p, cols, scale });
        }
    }

    /// The tangent of [`Kernels::softmax_backward`], in place of `d_p_tangent`.
    ///
    /// # Panics
    /// When the lengths differ or are not whole rows.
    pub fn softmax_backward_tangent(self, data: SoftmaxTangent<'_>, cols: usize, scale: f32) {
        check_rows(data.p.len(), cols);
        let lengths = [data.p.len(), data.p_tangent.len(), data.d_p.len(), data.d_p_tangent.len()];
        assert!(lengths.iter().all(|&length| length == lengths[0]), "row sets of {lengths:?}");
        if lengths[0] > 0 {
            self.run(BackwardTangentRows { data, cols, scale });
        }
    }

    /// `ln Σ e^x`; -∞ for an empty slice.
    pub fn log_sum_exp(self, row: &[f32]) -> f32 {
        if row.is_empty() {
            return f32::NEG_INFINITY;
        }
        self.run(LogSumExp(row))
    }
}
