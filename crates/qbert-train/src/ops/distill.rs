//! Distillation: a student learns a teacher's soft answers, hidden states and attention besides the labels. This is not
//! in the paper; later work on ultra-low-bit models found that it matters most at 2 bits.
//!
//! | term | value | gradient |
//! |---|---|---|
//! | answers | mean over softmaxes of `τ²·KL(q ‖ p)`, `q` and `p` the softmax of the teacher's and the student's logits over `τ` | `τ·(p − q)` of the logits |
//! | vectors | mean over texts of `‖s − t‖²/‖t‖²` | `2·(s − t)/‖t‖²` |
//! | similarities | mean over pairs of texts of `(sᵢ·sⱼ − tᵢ·tⱼ)²/(‖tᵢ‖²·‖tⱼ‖²)` | `2·(sᵢ·sⱼ − tᵢ·tⱼ)·sⱼ/…` of `sᵢ` |
//! | hidden state | mean over all elements of `(s − t)²` | `2·(s − t)` |
//! | attention | mean over all rows of `KL(P_t ‖ P_s)` | `P_s − P_t` of the scaled scores |
//!
//! The softmaxes of the answers are those of the cross-entropy ([`super::loss`]): one per sequence, per labelled token,
//! per label of a text with several, or per end of a span. Answers that are values have `(s − t)²` and `2·(s − t)` instead. Sums have an order that does not depend on the
//! number of threads; those over hidden states and attention go over blocks in f32 and over the blocks in f64, since nothing
//! but the log reads them.

use qbert_kernels::{CHUNK, Compute};

use super::loss::{softmaxes, vector_share};
use crate::batch::{Batch, Targets};

/// Adds the gradient of the soft answers, times `scale`, to that of the logits and returns the term's value.
pub fn answers(
    (student, teacher): (&[f32], &[f32]),
    batch: &Batch,
    labels: usize,
    (temperature, scale): (f64, f64),
    d_logits: &mut [f32],
) -> f64 {
    if let Targets::Values(values) = &batch.targets {
        let share = 1.0 / values.len().max(1) as f64;
        let mut total = 0.0;
        for (d, (s, t)) in d_logits.iter_mut().zip(student.iter().zip(teacher)) {
            let difference = f64::from(*s) - f64::from(*t);
            total += difference * difference;
            *d += (2.0 * scale * share * difference) as f32;
        }
        return share * total;
    }
    if let Targets::Vectors { count, .. } = batch.targets {
        let mut total = 0.0;
        let rows = student.chunks_exact(labels).zip(teacher.chunks_exact(labels));
        for (d, (s, t)) in d_logits.chunks_exact_mut(labels).zip(rows) {
            let share = vector_share(t, count);
            for (d, (s, t)) in d.iter_mut().zip(s.iter().zip(t)) {
                let difference = f64::from(*s) - f64::from(*t);
                total += share * difference * difference;
                *d += (2.0 * scale * share * difference) as f32;
            }
        }
        return total;
    }
    let all = softmaxes(batch, labels);
    let share = 1.0 / all.len().max(1) as f64;
    let mut total = 0.0;
    for softmax in &all {
        let (p, log_p) = softmax.of(student, temperature);
        let (q, log_q) = softmax.of(teacher, temperature);
        let terms = q.iter().zip(log_q.iter().zip(&log_p));
        total += terms.map(|(q, (log_q, log_p))| q * (log_q - log_p)).sum::<f64>();
        for (index, (p, q)) in softmax.indices().zip(p.iter().zip(&q)) {
            d_logits[index] += (scale * share * temperature * (p - q)) as f32;
        }
    }
    temperature * temperature * share * total
}

/// How similar the texts of a batch are to each other, to the student and to the teacher: the mean over all pairs of two
/// texts of the squared difference of their products, relative to the lengths of the teacher's vectors. Adds its gradient,
/// times `scale`, to that of the vectors and returns the term's value.
pub fn similarities((student, teacher): (&[f32], &[f32]), width: usize, scale: f64, d_vectors: &mut [f32]) -> f64 {
    let row = |vectors: &'_ [f32], index: usize| -> Vec<f64> {
        vectors[index * width..(index + 1) * width].iter().map(|&value| f64::from(value)).collect()
    };
    let count = student.len() / width.max(1);
    if count < 2 {
        return 0.0;
    }
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let students: Vec<Vec<f64>> = (0..count).map(|index| row(student, index)).collect();
    let teachers: Vec<Vec<f64>> = (0..count).map(|index| row(teacher, index)).collect();
    let squares: Vec<f64> = teachers.iter().map(|own| dot(own, own).max(1e-12)).collect();
    let pairs = (count * (count - 1)) as f64 / 2.0;
    let mut total = 0.0;
    for first in 0..count {
        for second in first + 1..count {
            let weight = 1.0 / (pairs * squares[first] * squares[second]);
            let difference = dot(&students[first], &students[second]) - dot(&teachers[first], &teachers[second]);
            total += weight * difference * difference;
            let factor = 2.0 * scale * weight * difference;
            for (own, other) in [(first, second), (second, first)] {
                let d = &mut d_vectors[own * width..(own + 1) * width];
                d.iter_mut().zip(&students[other]).for_each(|(d, s)| *d += (factor * s) as f32);
            }
        }
    }
    total
}

/// The sum over the softmaxes of a batch of `KL(q ‖ p)`, and their number: the term of [`answers`] alone.
pub fn answer_divergence((student, teacher): (&[f32], &[f32]), batch: &Batch, labels: usize) -> (f64, usize) {
    if let Targets::Values(values) = &batch.targets {
        let squares = student.iter().zip(teacher).map(|(s, t)| (f64::from(*s) - f64::from(*t)).powi(2));
        return (squares.sum(), values.len());
    }
    if let Targets::Vectors { count, .. } = batch.targets {
        let rows = student.chunks_exact(labels).zip(teacher.chunks_exact(labels));
        let distance = |(s, t): (&[f32], &[f32])| {
            let squares = s.iter().zip(t).map(|(s, t)| (f64::from(*s) - f64::from(*t)).powi(2));
            vector_share(t, 1) * squares.sum::<f64>()
        };
        return (rows.map(distance).sum(), count);
    }
    let all = softmaxes(batch, labels);
    let mut total = 0.0;
    for softmax in &all {
        let ((_, log_p), (q, log_q)) = (softmax.of(student, 1.0), softmax.of(teacher, 1.0));
        let terms = q.iter().zip(log_q.iter().zip(&log_p));
        total += terms.map(|(q, (log_q, log_p))| q * (log_q - log_p)).sum::<f64>();
    }
    (total, all.len())
}

/// The mean of `(s − t)²`.
pub fn mean_square(compute: &Compute, student: &[f32], teacher: &[f32]) -> f64 {
    compute.squared_distance(student, teacher) / student.len().max(1) as f64
}

/// `d += factor·(s − t)`.
pub fn add_difference(compute: &Compute, factor: f32, student: &[f32], teacher: &[f32], d: &mut [f32]) {
    compute.threads().for_each_chunk([d], [CHUNK], |chunk, [d]| {
        let part = chunk * CHUNK..chunk * CHUNK + d.len();
        for (d, (s, t)) in d.iter_mut().zip(student[part.clone()].iter().zip(&teacher[part])) {
            *d += factor * (s - t);
        }
    });
}

/// The sum over all rows of `KL(P_t ‖ P_s)`.
pub fn divergence(compute: &Compute, student: &[f32], teacher: &[f32]) -> f64 {
    compute.divergence(teacher, student)
}
