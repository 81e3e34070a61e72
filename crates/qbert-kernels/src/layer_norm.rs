//! LayerNorm over rows with the residual addition fused in, its backward pass, and the tangents of
//! both.
//!
//! Letters: `s` the summed input, `x̂ = (s - mean) · rstd`, `y = γ·x̂ + β`, `n` the row length.
//! `J = rstd · (I - 11ᵀ/n - x̂x̂ᵀ/n)` is the (symmetric) derivative of `x̂`; all four passes are
//! products with it. Sums over a row go in the order of `simd::loops::sums`; sums over rows
//! (γ and β gradients) go row by row.

use crate::cpu::Kernels;
use crate::simd::loops::{Elementwise, Map, Terms, sums};
use crate::simd::{Kernel, Simd};

/// γ, β and ε of one LayerNorm.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// One factor per column.
    pub gamma: &'a [f32],
    /// One offset per column.
    pub beta: &'a [f32],
    /// Added to the variance.
    pub epsilon: f32,
}

/// What the forward pass leaves for the other passes: `rows × n` sums and two numbers per row.
#[derive(Clone, Copy, Debug)]
pub struct Normalized<'a> {
    /// `s`, the input plus the residual.
    pub sum: &'a [f32],
    /// Mean of each row of `sum`.
    pub mean: &'a [f32],
    /// `1 / √(variance + ε)` of each row.
    pub rstd: &'a [f32],
}

/// What [`Kernels::layer_norm_forward`] writes: see [`Normalized`]; `out` is `rows × n`.
#[derive(Debug)]
pub struct NormalizedMut<'a> {
    /// In: the layer's output. Out: that plus the residual.
    pub sum: &'a mut [f32],
    /// Mean of each row.
    pub mean: &'a mut [f32],
    /// `1 / √(variance + ε)` of each row.
    pub rstd: &'a mut [f32],
    /// `y`
    pub out: &'a mut [f32],
}

/// Where [`Kernels::layer_norm_backward`] adds the parameters' gradients.
#[derive(Debug)]
pub struct LayerNormGradients<'a> {
    /// `+= Σ_rows d_out · x̂`
    pub gamma: &'a mut [f32],
    /// `+= Σ_rows d_out`
    pub beta: &'a mut [f32],
}

/// The tangents that go into [`Kernels::layer_norm_backward_tangent`].
#[derive(Clone, Copy, Debug)]
pub struct LayerNormTangents<'a> {
    /// Tangent of `s`.
    pub sum_tangent: &'a [f32],
    /// Gradient of `y`.
    pub d_out: &'a [f32],
    /// Tangent of that gradient.
    pub d_out_tangent: &'a [f32],
}

struct Add;
impl Elementwise<1, 1> for Add {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [x]: [S::F32; 1], [y]: [S::F32; 1]) -> [S::F32; 1] {
        [simd.add(y, x)]
    }
}

pub(crate) struct Plain;
impl Terms<1, 1> for Plain {
    #[inline(always)]
    fn terms<S: Simd>(&self, _: S, x: [S::F32; 1]) -> [S::F32; 1] {
        x
    }
}

pub(crate) struct SquaredDistance(pub(crate) f32);
impl Terms<1, 1> for SquaredDistance {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [x]: [S::F32; 1]) -> [S::F32; 1] {
        let distance = simd.sub(x, simd.splat(self.0));
        [simd.mul(distance, distance)]
    }
}

/// The row's mean and rstd, and `x̂` from them.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) mean: f32,
    pub(crate) rstd: f32,
}

impl Row {
    #[inline(always)]
    pub(crate) fn hat<S: Simd>(&self, simd: S, s: S::F32) -> S::F32 {
        simd.mul(simd.sub(s, simd.splat(self.mean)), simd.splat(self.rstd))
    }
}

impl Elementwise<3, 1> for Row {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [s, g, b]: [S::F32; 3], _: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul_add(self.hat(simd, s), g, b)]
    }
}

struct Forward<'a> {
    norm: LayerNorm<'a>,
    residual: Option<&'a [f32]>,
    target: NormalizedMut<'a>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { norm, residual, target } = self;
        let n = norm.gamma.len();
        let rows = target.sum.chunks_exact_mut(n).zip(target.out.chunks_exact_mut(n));
        let numbers = target.mean.iter_mut().zip(target.rstd.iter_mut());
        for (index, ((sum, out), (mean, rstd))) in rows.zip(numbers).enumerate() {
            if let Some(residual) = residual {
                let residual = &residual[index * n..(index + 1) * n];
                Map { function: Add, inputs: [residual], outputs: [&mut *sum] }.run(simd);
            }
            let [total] = sums(simd, &Plain, [&*sum]);
            *mean = total / n as f32;
            let [squares] = sums(simd, &SquaredDistance(*mean), [&*sum]);
            *rstd = 1.0 / (squares / n as f32 + norm.epsilon).sqrt();
            let function = Row { mean: *mean, rstd: *rstd };
            Map { function, inputs: [sum, norm.gamma, norm.beta], outputs: [out] }.run(simd);
        }
    }
}

/// `Σ γ·d` and `Σ γ·d·x̂` from `[s, γ, d]`.
struct Projections(Row);
impl Terms<3, 2> for Projections {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [s, gamma, d]: [S::F32; 3]) -> [S::F32; 2] {
        let g = simd.mul(gamma, d);
        [g, simd.mul(g, self.0.hat(simd, s))]
    }
}

/// `J·(γ·d)` into the first output; `+= d·x̂` and `+= d` into the others.
struct BackwardRow {
    row: Row,
    means: [f32; 2],
}
impl Elementwise<3, 3> for BackwardRow {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [s, gamma, d]: [S::F32; 3], [_, d_gamma, d_beta]: [S::F32; 3]) -> [S::F32; 3] {
        let hat = self.row.hat(simd, s);
        let g = simd.sub(simd.mul(gamma, d), simd.splat(self.means[0]));
        let g = simd.neg_mul_add(hat, simd.splat(self.means[1]), g);
        let d_in = simd.mul(g, simd.splat(self.row.rstd));
        [d_in, simd.mul_add(d, hat, d_gamma), simd.add(d_beta, d)]
    }
}

struct Backward<'a> {
    gamma: &'a [f32],
    saved: Normalized<'a>,
    d_out: &'a [f32],
    d_in: &'a mut [f32],
    gradients: LayerNormGradients<'a>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { gamma, saved, d_out, d_in, gradients } = self;
        let n = gamma.len();
        let rows = saved.sum.chunks_exact(n).zip(d_out.chunks_exact(n));
        for (index, ((s, d), d_in)) in rows.zip(d_in.chunks_exact_mut(n)).enumerate() {
            let row = Row { mean: saved.mean[index], rstd: saved.rstd[index] };
            let totals = sums(simd, &Projections(row), [s, gamma, d]);
            let function = BackwardRow { row, means: totals.map(|total| total / n as f32) };
            let outputs = [d_in, &mut *gradients.gamma, &mut *gradients.beta];
            Map { function, inputs: [s, gamma, d], outputs }.run(simd);
        }
    }
}

/// `Σ ṡ` and `Σ ṡ·x̂` from `[s, ṡ]`.
struct TangentProjections(Row);
impl Terms<2, 2> for TangentProjections {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [s, tangent]: [S::F32; 2]) -> [S::F32; 2] {
        [tangent, simd.mul(tangent, self.0.hat(simd, s))]
    }
}

/// `J·ṡ` for one row.
#[derive(Clone, Copy)]
struct HatTangent {
    row: Row,
    means: [f32; 2],
}
impl HatTangent {
    #[inline(always)]
    fn value<S: Simd>(&self, simd: S, hat: S::F32, tangent: S::F32) -> S::F32 {
        let centered = simd.sub(tangent, simd.splat(self.means[0]));
        let projected = simd.neg_mul_add(hat, simd.splat(self.means[1]), centered);
        simd.mul(projected, simd.splat(self.row.rstd))
    }
}
impl Elementwise<3, 1> for HatTangent {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, [s, t, gamma]: [S::F32; 3], _: [S::F32; 1]) -> [S::F32; 1] {
        [simd.mul(gamma, self.value(simd, self.row.hat(simd, s), t))]
    }
}

#[inline(always)]
fn hat_tangent<S: Simd>(simd: S, row: Row, s: &[f32], tangent: &[f32]) -> HatTangent {
    let totals = sums(simd, &TangentProjections(row), [s, tangent]);
    HatTangent { row, means: totals.map(|total| total / s.len() as f32) }
}

struct ForwardTangent<'a> {
    gamma: &'a [f32],
    saved: Normalized<'a>,
    sum_tangent: &'a [f32],
    out_tangent: &'a mut [f32],
}

impl Kernel for ForwardTangent<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.gamma.len();
        let rows = self.saved.sum.chunks_exact(n).zip(self.sum_tangent.chunks_exact(n));
        for (index, ((s, t), out)) in rows.zip(self.out_tangent.chunks_exact_mut(n)).enumerate() {
            let row = Row { mean: self.saved.mean[index], rstd: self.saved.rstd[index] };
            let function = hat_tangent(simd, row, s, t);
            Map { function, inputs: [s, t, self.gamma], outputs: [out] }.run(simd);
        }
    }
}

/// From `[s, ṡ, γ, d, ḋ]`: `Σ γd`, `Σ γd·x̂`, `Σ γḋ` and `Σ (γḋ·x̂ + γd·x̂̇)`.
struct BackwardTangentSums(HatTangent);
impl Terms<5, 4> for BackwardTangentSums {
    #[inline(always)]
    fn terms<S: Simd>(&self, simd: S, [s, t, gamma, d, dt]: [S::F32; 5]) -> [S::F32; 4] {
        let hat = self.0.row.hat(simd, s);
        let moved = self.0.value(simd, hat, t);
        let (g, gt) = (simd.mul(gamma, d), simd.mul(gamma, dt));
        [g, simd.mul(g, hat), gt, simd.mul_add(gt, hat, simd.mul(g, moved))]
    }
}

/// The tangent of `J·(γ·d)`: the change of rstd, of `γ·d` and of `x̂` put together.
struct BackwardTangentRow {
    hat: HatTangent,
    means: [f32; 4],
}
impl Elementwise<5, 1> for BackwardTangentRow {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, inputs: [S::F32; 5], _: [S::F32; 1]) -> [S::F32; 1] {
        let [s, t, gamma, d, dt] = inputs;
        let [mean_g, mean_g_hat, mean_gt, mean_mixed] = self.means;
        let (mean_g, mean_g_hat) = (simd.splat(mean_g), simd.splat(mean_g_hat));
        let (mean_gt, mean_mixed) = (simd.splat(mean_gt), simd.splat(mean_mixed));
        let hat = self.hat.row.hat(simd, s);
        let moved = self.hat.value(simd, hat, t);
        let g = simd.sub(simd.mul(gamma, d), mean_g);
        let projected = simd.neg_mul_add(hat, mean_g_hat, g);
        let gt = simd.sub(simd.mul(gamma, dt), mean_gt);
        let gt = simd.neg_mul_add(moved, mean_g_hat, gt);
        let gt = simd.neg_mul_add(hat, mean_mixed, gt);
        // d(rstd) = -rstd² · mean(x̂·ṡ), and `projected` still lacks its factor rstd.
        let shrink = simd.splat(self.hat.row.rstd * self.hat.means[1]);
        let total = simd.neg_mul_add(shrink, projected, gt);
        [simd.mul(total, simd.splat(self.hat.row.rstd))]
    }
}

struct BackwardTangent<'a> {
    gamma: &'a [f32],
    saved: Normalized<'a>,
    tangents: LayerNormTangents<'a>,
    d_in_tangent: &'a mut [f32],
}

impl Kernel for BackwardTangent<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.gamma.len();
        for (index, out) in self.d_in_tangent.chunks_exact_mut(n).enumerate() {
            let part = index * n..(index + 1) * n;
            let s = &self.saved.sum[part.clone()];
            let t = &self.tangents.sum_tangent[part.clone()];
            let d = &self.tangents.d_out[part.clone()];
            let dt = &self.tangents.d_out_tangent[part];
            let row = Row { mean: self.saved.mean[index], rstd: self.saved.rstd[index] };
            let hat = hat_tangent(simd, row, s, t);
            let inputs = [s, t, self.gamma, d, dt];
            let totals = sums(simd, &BackwardTangentSums(hat), inputs);
            let function = BackwardTangentRow { hat, means: totals.map(|total| total / n as f32) };
            Map { function, inputs, outputs: [out] }.run(simd);
        }
    }
}

/// Panics unless everything is `rows × n`.
fn check(n: usize, rows: usize, lengths: &[usize]) {
    assert!(n > 0, "LayerNorm over rows of 0 elements");
    for &length in lengths {
        assert!(length == rows * n, "{length} elements where {rows} rows of {n} were expected");
    }
}

impl<'a> Normalized<'a> {
    /// The same for some of the rows, `n` columns each.
    pub(crate) fn rows_of(&self, n: usize, rows: std::ops::Range<usize>) -> Normalized<'a> {
        Normalized {
            sum: &self.sum[rows.start * n..rows.end * n],
            mean: &self.mean[rows.clone()],
            rstd: &self.rstd[rows],
        }
    }

    fn rows(&self) -> usize {
        let (means, deviations) = (self.mean.len(), self.rstd.len());
        assert!(means == deviations, "{means} means but {deviations} deviations");
        means
    }
}

impl Kernels {
    /// `sum += residual` (when given), then `out = γ · (sum - mean) · rstd + β` per row, keeping
    /// `mean` and `rstd`. The variance is summed around the mean (two passes), over n.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_forward(self, norm: LayerNorm<'_>, residual: Option<&[f32]>, target: NormalizedMut<'_>) {
        let (n, rows) = (norm.gamma.len(), target.mean.len());
        check(n, rows, &[target.sum.len(), target.out.len(), target.rstd.len() * n]);
        check(n, 1, &[norm.beta.len()]);
        check(n, rows, &[residual.map_or(rows * n, <[f32]>::len)]);
        self.run(Forward { norm, residual, target });
    }

    /// `d_in = J·(γ·d_out)` (the gradient of the input and of the residual alike); the gradients of
    /// γ and β are added to, row by row.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_backward(
        self,
        gamma: &[f32],
        saved: Normalized<'_>,
        d_out: &[f32],
        d_in: &mut [f32],
        gradients: LayerNormGradients<'_>,
    ) {
        let n = gamma.len();
        check(n, saved.rows(), &[saved.sum.len(), d_out.len(), d_in.len()]);
        check(n, 1, &[gradients.gamma.len(), gradients.beta.len()]);
        self.run(Backward { gamma, saved, d_out, d_in, gradients });
    }

    /// `out_tangent = γ · (J·sum_tangent)`.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_forward_tangent(
        self,
        gamma: &[f32],
        saved: Normalized<'_>,
        sum_tangent: &[f32],
        out_tangent: &mut [f32],
    ) {
        let lengths = [saved.sum.len(), sum_tangent.len(), out_tangent.len()];
        check(gamma.len(), saved.rows(), &lengths);
        self.run(ForwardTangent { gamma, saved, sum_tangent, out_tangent });
    }

    /// The tangent of `d_in` for fixed γ.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn layer_norm_backward_tangent(
        self,
        gamma: &[f32],
        saved: Normalized<'_>,
        tangents: LayerNormTangents<'_>,
        d_in_tangent: &mut [f32],
    ) {
        let LayerNormTangents { sum_tangent, d_out, d_out_tangent } = tangents;
        let lengths = [saved.sum.len(), sum_tangent.len(), d_out.len(), d_out_tangent.len()];
        check(gamma.len(), saved.rows(), &lengths);
        check(gamma.len(), saved.rows(), &[d_in_tangent.len()]);
        self.run(BackwardTangent { gamma, saved, tangents, d_in_tangent });
    }
}
