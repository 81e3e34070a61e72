//! Every method on matrices whose spectrum is known.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::convert::Infallible;

use proptest::prelude::*;
use qbert_hessian::landscape::{landscape, place};
use qbert_hessian::{Basis, Lanczos, Method, PowerIteration, Stop, SymmetricOperator, Trace, run};

/// `R·diag(λ)·R` with a reflection `R = I − 2wwᵀ`: dense, symmetric, and with exactly these eigenvalues.
struct Reflected {
    eigenvalues: Vec<f64>,
    mirror: Vec<f64>,
    products: usize,
}

impl Reflected {
    fn new(eigenvalues: &[f64], seed: u64) -> Self {
        let mirror: Vec<f64> = random(eigenvalues.len(), seed ^ 0xabcd).iter().map(|v| f64::from(*v)).collect();
        let length = mirror.iter().map(|v| v * v).sum::<f64>().sqrt();
        Self { eigenvalues: eigenvalues.to_vec(), mirror: mirror.iter().map(|v| v / length).collect(), products: 0 }
    }

    fn reflect(&self, v: &[f64]) -> Vec<f64> {
        let along: f64 = v.iter().zip(&self.mirror).map(|(a, b)| a * b).sum();
        v.iter().zip(&self.mirror).map(|(a, b)| a - 2.0 * along * b).collect()
    }

    /// The eigenvector of eigenvalue `index`.
    fn eigenvector(&self, index: usize) -> Vec<f64> {
        let unit: Vec<f64> = (0..self.mirror.len()).map(|i| f64::from(u8::from(i == index))).collect();
        self.reflect(&unit)
    }
}

impl SymmetricOperator for Reflected {
    type Error = Infallible;

    fn dimension(&self) -> usize {
        self.eigenvalues.len()
    }

    fn multiply(&mut self, vector: &[f32], product: &mut [f32]) -> Result<(), Infallible> {
        self.products += 1;
        let turned = self.reflect(&vector.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        let scaled: Vec<f64> = turned.iter().zip(&self.eigenvalues).map(|(v, e)| v * e).collect();
        for (out, value) in product.iter_mut().zip(self.reflect(&scaled)) {
            *out = value as f32;
        }
        Ok(())
    }
}

/// Numbers between −1 and 1 from a small generator.
fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A bulk between −1 and 1 with given outliers in front.
fn spectrum(outliers: &[f64], size: usize) -> Vec<f64> {
    let bulk = (outliers.len()..size).map(|i| (i as f64 * 0.618).fract() * 2.0 - 1.0);
    outliers.iter().copied().chain(bulk).collect()
}

const STOP: Stop = Stop { iterations: 400, tolerance: 1e-5 };

struct Case {
    name: &'static str,
    eigenvalues: Vec<f64>,
    dominant: f64,
}

fn cases() -> Vec<Case> {
    let case = |name, eigenvalues, dominant| Case { name, eigenvalues, dominant };
    vec![
        case("a positive top", spectrum(&[10.0, 5.0], 200), 10.0),
        case("a negative dominant", spectrum(&[-12.0, 7.0], 200), -12.0),
        case("a degenerate top", spectrum(&[9.0, 9.0, 9.0, 3.0], 200), 9.0),
        case("a close second", spectrum(&[8.0, 7.6], 200), 8.0),
        case("zero", vec![0.0; 50], 0.0),
        case("the identity", vec![1.0; 50], 1.0),
        case("minus the identity", vec![-2.0; 7], -2.0),
        case("one row", vec![-3.0], -3.0),
        case("two rows", vec![4.0, -1.0], 4.0),
        case("one outlier in a null space", spectrum(&[5.0], 1).into_iter().chain(vec![0.0; 99]).collect(), 5.0),
        case("tiny", spectrum(&[3e-6], 1).into_iter().chain(vec![1e-6; 30]).collect(), 3e-6),
        case("huge", vec![2e15, -1e14, 3e13, 5e12], 2e15),
    ]
}

#[test]
fn power_iteration_finds_the_largest_in_size_with_its_sign() {
    for Case { name, eigenvalues, dominant } in cases() {
        let mut operator = Reflected::new(&eigenvalues, 3);
        let mut power = PowerIteration::new(&random(eigenvalues.len(), 7), STOP);
        run(&mut power, &mut operator).unwrap();
        let found = power.found();
        assert!(found.converged, "{name}: {found:?}");
        // The change between two iterations is below 1e-5, which for a close second is some 1e-4 from the end.
        assert!((found.value - dominant).abs() <= 3e-4 * dominant.abs(), "{name}: {found:?}");
        assert_eq!(found.iterations, operator.products, "{name}");
        let nearest = eigenvalues.iter().map(|e| (e - found.value).abs()).fold(f64::INFINITY, f64::min);
        assert!(nearest <= found.residual + 1e-5 * dominant.abs(), "{name}: the residual is no bound: {found:?}");
    }
}

#[test]
fn lanczos_finds_both_ends_in_fewer_products() {
    for Case { name, eigenvalues, dominant } in cases() {
        for basis in [Basis::Forgotten, Basis::Kept] {
            let mut operator = Reflected::new(&eigenvalues, 3);
            let start = random(eigenvalues.len(), 7);
            let mut lanczos = Lanczos::new(&start, STOP, basis);
            run(&mut lanczos, &mut operator).unwrap();
            let found = lanczos.spectrum();
            assert!(found.converged, "{name} {basis:?}: {found:?}");
            assert!((found.dominant().0 - dominant).abs() <= 2e-5 * dominant.abs(), "{name} {basis:?}: {found:?}");
            let products = operator.products;
            assert_eq!(found.iterations, products, "{name}");
            let needed = power_products(&eigenvalues, &start, dominant);
            assert!(products <= needed.max(6) + 2, "{name} {basis:?}: {products} products, power iteration {needed}");
            if name == "a close second" {
                assert!(3 * products < needed, "{products} products, power iteration {needed}");
            }
        }
    }
}

/// Products that power iteration needs to be within 1e-5 of the truth, which it does not know.
fn power_products(eigenvalues: &[f64], start: &[f32], dominant: f64) -> usize {
    let mut operator = Reflected::new(eigenvalues, 3);
    let mut power = PowerIteration::new(start, Stop { iterations: 400, tolerance: 0.0 });
    let mut product = vec![0.0; eigenvalues.len()];
    while let Some(vector) = power.vector() {
        operator.multiply(vector, &mut product).unwrap();
        power.advance(&product);
        if (power.found().value - dominant).abs() <= 1e-5 * dominant.abs() {
            break;
        }
    }
    power.found().iterations
}

#[test]
fn lanczos_sees_both_signs() {
    let eigenvalues = spectrum(&[-12.0, 7.0], 300);
    for basis in [Basis::Forgotten, Basis::Kept] {
        let mut lanczos = Lanczos::new(&random(300, 5), Stop { iterations: 30, tolerance: 0.0 }, basis);
        run(&mut lanczos, &mut Reflected::new(&eigenvalues, 2)).unwrap();
        let found = lanczos.spectrum();
        assert!((found.highest - 7.0).abs() < 1e-4 && (found.lowest + 12.0).abs() < 1e-4, "{basis:?}: {found:?}");
        assert_eq!(found.iterations, 30, "the limit holds when the tolerance asks for the impossible");
    }
}

#[test]
fn the_first_eigenvectors() {
    let eigenvalues = spectrum(&[10.0, -8.0, 6.0], 250);
    let mut operator = Reflected::new(&eigenvalues, 4);
    let mut lanczos = Lanczos::for_eigenvectors(&random(250, 1), Stop { iterations: 80, tolerance: 1e-6 }, 3);
    run(&mut lanczos, &mut operator).unwrap();
    let pairs = lanczos.eigenpairs(3);
    assert_eq!(pairs.len(), 3);
    for (index, pair) in pairs.iter().enumerate() {
        assert!((pair.value - eigenvalues[index]).abs() < 1e-4, "{index}: {}", pair.value);
        let overlap: f64 = pair.vector.iter().zip(operator.eigenvector(index)).map(|(a, b)| f64::from(*a) * b).sum();
        assert!(overlap.abs() > 1.0 - 1e-6, "{index}: {overlap}");
    }
    assert!(Lanczos::new(&random(9, 1), STOP, Basis::Forgotten).eigenpairs(1).is_empty());
}

#[test]
fn a_degenerate_top_gives_an_eigenvector_of_its_space() {
    let eigenvalues = spectrum(&[9.0, 9.0, 2.0], 100);
    let mut operator = Reflected::new(&eigenvalues, 8);
    let mut power = PowerIteration::new(&random(100, 2), STOP);
    run(&mut power, &mut operator).unwrap();
    let inside: f64 = (0..2)
        .map(|i| power.eigenvector().iter().zip(operator.eigenvector(i)).map(|(a, b)| f64::from(*a) * b).sum::<f64>())
        .map(|overlap| overlap * overlap)
        .sum();
    assert!(inside > 1.0 - 1e-4, "{inside}");
}

#[test]
fn the_trace_is_within_its_error() {
    let eigenvalues = spectrum(&[10.0, -4.0], 400);
    let signs = |seed| random(400, seed).into_iter().map(f32::signum).collect();
    let mut trace = Trace::new((1..=60).map(signs).collect());
    run(&mut trace, &mut Reflected::new(&eigenvalues, 6)).unwrap();
    let found = trace.estimate();
    let exact: f64 = eigenvalues.iter().sum();
    assert_eq!(found.samples, 60);
    assert!(found.error > 0.0 && (found.mean - exact).abs() < 4.0 * found.error, "{found:?}, exact {exact}");
    // For a diagonal matrix every sample is exact.
    let mut diagonal = Reflected { mirror: vec![0.0; 400], ..Reflected::new(&eigenvalues, 6) };
    let mut trace = Trace::new((1..=2).map(signs).collect());
    run(&mut trace, &mut diagonal).unwrap();
    assert!((trace.estimate().mean - exact).abs() < 1e-3);
}

#[test]
fn starts_and_limits_at_the_edge() {
    let zero = PowerIteration::new(&[0.0; 5], STOP);
    assert!(zero.vector().is_none() && zero.found().converged);
    assert!(Lanczos::new(&[0.0; 5], STOP, Basis::Kept).vector().is_none());
    let none = Stop { iterations: 0, tolerance: 1e-3 };
    assert!(PowerIteration::new(&[1.0; 5], none).vector().is_none());
    // A product that is no number ends the iteration instead of running on it.
    let mut power = PowerIteration::new(&[1.0; 3], STOP);
    power.advance(&[f32::NAN; 3]);
    assert!(power.vector().is_none() && !power.found().converged);
    let mut lanczos = Lanczos::new(&[1.0; 3], STOP, Basis::Kept);
    lanczos.advance(&[f32::NAN; 3]);
    assert!(lanczos.vector().is_none() && !lanczos.spectrum().converged);
}

#[test]
fn the_landscape_of_a_bowl_is_a_bowl() {
    let (base, first, second) = ([1.0f32, 2.0, 3.0], [1.0f32, 0.0, 0.0], [0.0f32, 1.0, 0.0]);
    let mut moved = [0.0; 3];
    let grid = landscape(0.5, 4, |row, column| {
        place(&base, (row, &first), (column, &second), &mut moved);
        let [x, y, _] = moved.map(f64::from);
        Ok::<_, Infallible>(4.0 * (x - 1.0).powi(2) - (y - 2.0).powi(2))
    })
    .unwrap();
    assert_eq!(grid.rows, [-0.5, -0.25, 0.0, 0.25, 0.5]);
    assert_eq!(grid.losses[2][2], 0.0, "the middle is the model itself");
    assert_eq!((grid.losses[0][2], grid.losses[2][4]), (1.0, -0.25));
}

proptest! {
    #[test]
    fn lanczos_keeps_its_promises_for_any_small_matrix(
        eigenvalues in proptest::collection::vec(-100.0..100.0f64, 1..40),
        seed in 1..1000u64,
    ) {
        let mut operator = Reflected::new(&eigenvalues, seed);
        let start = random(eigenvalues.len(), seed + 1);
        let mut lanczos = Lanczos::new(&start, Stop { iterations: 60, tolerance: 1e-7 }, Basis::Kept);
        run(&mut lanczos, &mut operator).unwrap();
        let found = lanczos.spectrum();
        let largest = eigenvalues.iter().fold(0.0f64, |m, e| m.max(e.abs()));
        // What is certain for any start: there is an eigenvalue within the residual, and none beyond the ends.
        let (value, residual) = found.dominant();
        let nearest = eigenvalues.iter().map(|e| (e - value).abs()).fold(f64::INFINITY, f64::min);
        prop_assert!(nearest <= residual + 1e-4 * largest, "{found:?} for {eigenvalues:?}");
        let (lowest, highest) = (found.lowest, found.highest);
        let bounds = eigenvalues.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), e| (a.min(*e), b.max(*e)));
        prop_assert!(lowest >= bounds.0 - 1e-3 * largest && highest <= bounds.1 + 1e-3 * largest);
    }
}
