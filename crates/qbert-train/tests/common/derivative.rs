//! Gradients against central differences, in a way that shows it would notice a wrong one.
//!
//! The engine computes in f32, so a difference of two of its results is noise where the step is too small. Objectives
//! are therefore sums in f64 over many outputs (the noise averages out), and a gradient is compared along directions
//! that move every input at once, where the objective changes by much more than it is rounded. The direction is what the
//! inputs were really moved by: `x + h·v` is rounded to f32, and `g·(x₊ − x₋)` takes that into account.

use qbert_train::random::Stream;

/// How a gradient is compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Differences {
    /// By how much an input moves (root mean square over all inputs); half of it is the second step.
    pub step: f32,
    /// The largest error of a directional derivative, relative to the derivative, or to the gradient's norm where the
    /// direction happens to be nearly orthogonal to the gradient.
    pub tolerance: f64,
}

/// For values of order 1 and smooth operations. Measured: within 7e-5 with every instruction set, most within 1e-5, which
/// is what rounding leaves (`6e-8/h` of the outputs).
pub(crate) const OPERATION: Differences = Differences { step: 2e-2, tolerance: 2e-4 };

const RANDOM_DIRECTIONS: u64 = 3;
/// In steps; a random direction is `√n` steps long.
const LENGTH_ALONG_GRADIENT: f64 = 4.0;

/// One central difference: how the inputs moved, how the objective changed, and the step `h` of both.
struct Difference {
    moved: Vec<f64>,
    change: f64,
    step: f64,
}

impl Difference {
    /// Central difference minus directional derivative.
    fn excess(&self, gradient: &[f32]) -> f64 {
        let expected: f64 = gradient.iter().zip(&self.moved).map(|(g, d)| f64::from(*g) * d).sum();
        (self.change - expected) / (2.0 * self.step)
    }
}

/// What was measured along one direction, with the step and with half of it.
struct Measured([Difference; 2]);

impl Measured {
    /// The error of `gradient`, as [`Differences::tolerance`] counts it.
    ///
    /// A central difference is off by `h²/6` of the third derivative; two steps together (Richardson's extrapolation)
    /// leave only terms of `h⁴`, so that a step may be large enough for f32.
    fn error(&self, gradient: &[f32], norm: f64) -> f64 {
        let [whole, half] = &self.0;
        let excess = (4.0 * half.excess(gradient) - whole.excess(gradient)) / 3.0;
        let derivative = whole.change / (2.0 * whole.step);
        excess.abs() / derivative.abs().max(norm)
    }
}

/// Standard normal values of a stream of this name.
pub(crate) fn normal(name: &str, length: usize) -> Vec<f32> {
    let mut values = vec![0.0; length];
    Stream::new(20, name, 0).fill_normal(&mut values, 1.0);
    values
}

/// The Euclidean norm.
pub(crate) fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

/// A fixed linear functional of an operation's output.
pub(crate) fn weighted_sum(weights: &[f32], values: &[f32]) -> f64 {
    assert_eq!(weights.len(), values.len());
    weights.iter().zip(values).map(|(w, v)| f64::from(*w) * f64::from(*v)).sum()
}

/// Checks `gradient` of `objective` at `point`; then that the same check refuses it with 1 % more length and with its
/// largest entry missing, so that a passing check means something.
pub(crate) fn check_gradient(
    what: &str,
    differences: Differences,
    point: &[f32],
    gradient: &[f32],
    objective: impl FnMut(&[f32]) -> f64,
) {
    assert_eq!(point.len(), gradient.len(), "{what}");
    let length = norm(gradient);
    assert!(length.is_finite() && length > 1e-3, "{what}: a gradient of norm {length} shows nothing");
    let measured = measure(what, differences.step, point, gradient, objective);
    let worst = |gradient: &[f32]| measured.iter().map(|m| m.error(gradient, length)).fold(0.0, f64::max);
    let error = worst(gradient);
    let allowed = differences.tolerance;
    assert!(error < allowed, "{what}: off by {error:e} along {} directions, allowed {allowed:e}", measured.len());

    let longer: Vec<f32> = gradient.iter().map(|g| 1.01 * g).collect();
    let error = worst(&longer);
    assert!(error > allowed, "{what}: a gradient 1 % too long would pass ({error:e})");
    let mut incomplete = gradient.to_vec();
    let largest = (0..gradient.len()).max_by(|&a, &b| gradient[a].abs().total_cmp(&gradient[b].abs())).unwrap();
    incomplete[largest] = 0.0;
    let error = worst(&incomplete);
    assert!(error > allowed, "{what}: a gradient without its largest entry would pass ({error:e})");
}

/// The objective's changes along the gradient and along random directions.
fn measure(
    what: &str,
    step: f32,
    point: &[f32],
    gradient: &[f32],
    mut objective: impl FnMut(&[f32]) -> f64,
) -> Vec<Measured> {
    // Along the gradient all inputs pull together, and a much shorter way changes the objective enough.
    let shorter = (LENGTH_ALONG_GRADIENT / norm(gradient)).min((gradient.len() as f64).sqrt() / norm(gradient));
    let mut directions = vec![gradient.iter().map(|g| (f64::from(*g) * shorter) as f32).collect::<Vec<_>>()];
    for index in 0..RANDOM_DIRECTIONS {
        let mut direction = vec![0.0; point.len()];
        Stream::new(21, what, index).fill_normal(&mut direction, 1.0);
        directions.push(direction);
    }
    let mut measured = Vec::new();
    for direction in directions {
        measured.push(Measured([step, step / 2.0].map(|step| {
            let shifted = |by: f32| -> Vec<f32> { point.iter().zip(&direction).map(|(x, v)| x + by * v).collect() };
            let (above, below) = (shifted(step), shifted(-step));
            let moved = above.iter().zip(&below).map(|(a, b)| f64::from(*a) - f64::from(*b)).collect();
            Difference { moved, change: objective(&above) - objective(&below), step: f64::from(step) }
        })));
    }
    measured
}
