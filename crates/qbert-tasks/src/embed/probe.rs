//! A linear probe: can a linear model tell classes apart from the vectors alone? Multinomial logistic regression with an L2
//! penalty on the weights and none on the biases, as scikit-learn's `LogisticRegression` with its defaults.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Every fifth text is for the test, the others to learn from.
const TEST_EVERY: usize = 5;
/// How many steps of the optimizer at most. The problem is convex, so more would change nothing but the time.
const MOST_STEPS: usize = 200;
/// The length of the gradient, by its largest number, at which the optimizer stops: scikit-learn's `tol`.
const TOLERANCE: f64 = 1e-4;
/// Earlier steps that L-BFGS remembers.
const MEMORY: usize = 10;

/// How well a linear model tells the classes apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// The share of right classes among the tested texts.
    pub accuracy: f64,
    /// How many texts were tested.
    pub tested: usize,
    /// How many texts it learned from.
    pub learned_from: usize,
    /// How many classes there are.
    pub classes: usize,
}

/// The report, and whether each tested text got the right class.
pub(super) fn score(of_text: &[usize], classes: usize, vectors: &[Vec<f32>]) -> Result<(ProbeReport, Vec<bool>)> {
    let is_test = |&(index, _): &(usize, &Vec<f32>)| index % TEST_EVERY == TEST_EVERY - 1;
    let (test, train): (Vec<_>, Vec<_>) = vectors.iter().enumerate().partition(is_test);
    if test.is_empty() || classes < 2 {
        return Err(Error::NothingToScore { what: "classes: at least two, and five texts" });
    }
    let rows: Vec<&[f32]> = train.iter().map(|(_, vector)| vector.as_slice()).collect();
    let labels: Vec<usize> = train.iter().map(|&(index, _)| of_text[index]).collect();
    let probe = fit_probe(&rows, &labels, classes);
    let right: Vec<bool> = test.iter().map(|&(index, vector)| probe.class_of(vector) == of_text[index]).collect();
    let accuracy = right.iter().filter(|&&right| right).count() as f64 / right.len() as f64;
    Ok((ProbeReport { accuracy, tested: right.len(), learned_from: rows.len(), classes }, right))
}

/// A fitted linear model.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// A row of one weight per class for each number of a vector, then the row of biases: so the classes' scores are sums of rows.
    weights: Vec<f64>,
    classes: usize,
}

impl Probe {
    /// The class with the largest score.
    pub fn class_of(&self, vector: &[f32]) -> usize {
        let mut scores = vec![0.0; self.classes];
        add_scores(&self.weights, vector, &mut scores);
        let best = |best: usize, class: usize| if scores[class] > scores[best] { class } else { best };
        (0..self.classes).fold(0, best)
    }
}

/// Sets the score of each class.
fn add_scores(weights: &[f64], vector: &[f32], scores: &mut [f64]) {
    let classes = scores.len();
    let (rows, bias) = weights.split_at(weights.len() - classes);
    scores.copy_from_slice(bias);
    for (row, &x) in rows.chunks_exact(classes).zip(vector) {
        scores.iter_mut().zip(row).for_each(|(score, weight)| *score += f64::from(x) * weight);
    }
}

/// Fits a linear model that gives each row its class.
pub fn fit_probe(rows: &[&[f32]], labels: &[usize], classes: usize) -> Probe {
    let width = rows.first().map_or(0, |row| row.len());
    let problem = Problem { rows, labels, classes };
    Probe { weights: minimize(&problem, vec![0.0; classes * (width + 1)]), classes }
}

/// The sum of the losses plus half of the squared weights.
struct Problem<'a> {
    rows: &'a [&'a [f32]],
    labels: &'a [usize],
    classes: usize,
}

impl Problem<'_> {
    /// The value, with the gradient written to `gradient`.
    fn value(&self, weights: &[f64], gradient: &mut [f64]) -> f64 {
        let biases = weights.len() - self.classes;
        gradient[..biases].copy_from_slice(&weights[..biases]);
        gradient[biases..].fill(0.0);
        let mut total = 0.5 * weights[..biases].iter().map(|w| w * w).sum::<f64>();
        let mut scores = vec![0.0; self.classes];
        for (row, &label) in self.rows.iter().zip(self.labels) {
            add_scores(weights, row, &mut scores);
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let of_label = scores[label];
            scores.iter_mut().for_each(|score| *score = libm::exp(*score - most));
            let sum: f64 = scores.iter().sum();
            total += libm::log(sum) + most - of_label;
            // From here on the scores are their gradients.
            scores.iter_mut().for_each(|score| *score /= sum);
            scores[label] -= 1.0;
            let (rows, bias) = gradient.split_at_mut(biases);
            for (out, &x) in rows.chunks_exact_mut(self.classes).zip(*row) {
                out.iter_mut().zip(&scores).for_each(|(out, share)| *out += f64::from(x) * share);
            }
            bias.iter_mut().zip(&scores).for_each(|(out, share)| *out += share);
        }
        total
    }
}

/// L-BFGS with a backtracking line search.
fn minimize(problem: &Problem<'_>, mut weights: Vec<f64>) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut gradient = vec![0.0; weights.len()];
    let mut value = problem.value(&weights, &mut gradient);
    let mut memory: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
    for _ in 0..MOST_STEPS {
        if gradient.iter().all(|g| g.abs() <= TOLERANCE) {
            break;
        }
        let direction = descent(&memory, &gradient);
        let slope = dot(&direction, &gradient);
        // Without memory, the first step is as long as the gradient says; keep it short.
        let mut step = if memory.is_empty() { 1.0 / dot(&gradient, &gradient).sqrt() } else { 1.0 };
        let mut next_gradient = vec![0.0; weights.len()];
        let moved = loop {
            let next: Vec<f64> = weights.iter().zip(&direction).map(|(w, d)| w + step * d).collect();
            let next_value = problem.value(&next, &mut next_gradient);
            if next_value <= value + 1e-4 * step * slope {
                break Some((next, next_value));
            }
            step *= 0.5;
            if step < 1e-12 {
                break None;
            }
        };
        let Some((next, next_value)) = moved else { break };
        let change: Vec<f64> = next.iter().zip(&weights).map(|(a, b)| a - b).collect();
        let bend: Vec<f64> = next_gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        if dot(&change, &bend) > 1e-12 {
            memory.push((change, bend));
            if memory.len() > MEMORY {
                memory.remove(0);
            }
        }
        (weights, gradient, value) = (next, next_gradient, next_value);
    }
    weights
}

/// The direction that the remembered steps suggest: the two loops of L-BFGS.
fn descent(memory: &[(Vec<f64>, Vec<f64>)], gradient: &[f64]) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut factors = Vec::with_capacity(memory.len());
    for (change, bend) in memory.iter().rev() {
        let factor = dot(change, &direction) / dot(change, bend);
        direction.iter_mut().zip(bend).for_each(|(d, b)| *d -= factor * b);
        factors.push(factor);
    }
    if let Some((change, bend)) = memory.last() {
        let scale = dot(change, bend) / dot(bend, bend);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for ((change, bend), factor) in memory.iter().zip(factors.into_iter().rev()) {
        let own = dot(bend, &direction) / dot(change, bend);
        direction.iter_mut().zip(change).for_each(|(d, c)| *d += (factor - own) * c);
    }
    direction
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights of `LogisticRegression(tol=1e-10, max_iter=100000)` of scikit-learn 1.9 on the same rows.
    #[test]
    fn the_fit_is_that_of_scikit_learn() {
        let rows: [&[f32]; 6] = [&[0.0, 1.0], &[0.2, 0.8], &[1.0, 0.1], &[0.9, 0.3], &[-1.0, -1.0], &[-0.8, -0.6]];
        let probe = fit_probe(&rows, &[0, 0, 1, 1, 2, 2], 3);
        let expected = [
            -0.174_955_2,
            0.832_708_0,
            0.002_019_5,
            0.883_996_5,
            -0.144_155_5,
            0.004_548_6,
            -0.709_041_4,
            -0.688_552_4,
            -0.006_568_1,
        ];
        // There, the weights of a class are one row.
        for (place, expected) in expected.into_iter().enumerate() {
            let found = probe.weights[place % 3 * 3 + place / 3];
            assert!((found - expected).abs() < 1e-4, "{place}: {found} {expected}");
        }
        let classes: Vec<usize> = rows.iter().map(|row| probe.class_of(row)).collect();
        assert_eq!(classes, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn every_fifth_text_is_tested() {
        let of_text: Vec<usize> = (0..40).map(|index| index / 2 % 2).collect();
        let vectors: Vec<Vec<f32>> = of_text.iter().map(|&class| vec![class as f32, 1.0]).collect();
        let (report, right) = score(&of_text, 2, &vectors).unwrap();
        assert_eq!((report.tested, report.learned_from, report.accuracy), (8, 32, 1.0));
        assert_eq!(right, vec![true; 8]);
        assert!(score(&of_text[..4], 2, &vectors[..4]).is_err());
    }
}
