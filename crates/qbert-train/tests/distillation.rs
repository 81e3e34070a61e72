//! The gradient of a student's loss (labels, answers, hidden states, attention) against central differences, for the
//! three heads, in evaluation and with dropout. The student is not quantized here: rounding has no derivative, and what
//! it does to gradients is shown by `qat_goldens.rs`.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::sync::Arc;

use common::derivative::{Differences, check_gradient, norm};
use common::{Golden, compute, goldens};
use qbert_kernels::Compute;
use qbert_model::Checkpoint;
use qbert_train::bert::{Activations, BackwardBuffers, Mode, Pass};
use qbert_train::qat::distill::{Distillation, DistilledLoss, Teacher};
use qbert_train::random::Stream;
use qbert_train::{Batch, Bert};

struct Student {
    compute: Compute,
    bert: Bert,
    batch: Batch,
    weights: Vec<f32>,
    teacher: Teacher,
}

impl Student {
    fn tiny(name: &str, settings: Distillation) -> Self {
        let checkpoint = Checkpoint::open(&goldens().join(format!("tiny-{name}"))).unwrap();
        let weights = checkpoint.load().unwrap();
        let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout())).unwrap();
        let batch = Golden::open(&format!("tiny_{name}.safetensors")).batch();
        let compute = compute(2);
        let mut others = weights.values().to_vec();
        let mut noise = vec![0.0; others.len()];
        Stream::new(8, "teacher", 0).fill_normal(&mut noise, 0.1);
        others.iter_mut().zip(&noise).for_each(|(weight, noise)| *weight += noise);
        let mut teacher = Teacher::new(others, settings);
        teacher.look(&bert, &compute, &batch);
        Self { compute, bert, batch, weights: weights.values().to_vec(), teacher }
    }

    fn pass<'a>(&'a self, weights: &'a [f32], mode: Mode) -> Pass<'a> {
        Pass { compute: &self.compute, weights, batch: &self.batch, mode }
    }

    /// The loss in training buffers, which keep every layer's hidden states and attention.
    fn loss(&self, weights: &[f32], mode: Mode) -> DistilledLoss {
        let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
        self.bert.forward_with(self.pass(weights, mode), None, &mut activations);
        self.teacher.loss(&self.bert, &self.compute, &self.batch, &activations, 1.0, &mut buffers)
    }

    fn gradient(&self, mode: Mode, scale: f64) -> Vec<f32> {
        let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
        let (mut gradient, pass) = (vec![0.0; self.weights.len()], self.pass(&self.weights, mode));
        self.bert.forward_with(pass, None, &mut activations);
        self.teacher.loss(&self.bert, &self.compute, &self.batch, &activations, scale, &mut buffers);
        let targets = Some(self.teacher.targets(scale));
        self.bert.backward_with(pass, targets, &activations, &mut buffers, &mut gradient);
        gradient
    }
}

const TRAIN: Mode = Mode::Train { seed: 11, step: 3 };

/// As for the loss without a teacher (`model_derivatives.rs`).
fn differences(gradient: &[f32]) -> Differences {
    let step = (1e-3 / norm(gradient)).min(0.5 / (gradient.len() as f64).sqrt());
    Differences { step: step as f32, tolerance: 1e-3 }
}

#[test]
fn every_term_alone_and_all_together() {
    let none =
        Distillation { labels: 0.0, answers: 0.0, hidden: 0.0, attention: 0.0, similarities: 0.0, temperature: 1.0 };
    let cases = [
        ("answers", Distillation { answers: 1.0, temperature: 2.5, ..none }),
        ("hidden", Distillation { hidden: 1.0, ..none }),
        ("attention", Distillation { attention: 1.0, ..none }),
        (
            "all",
            Distillation {
                labels: 0.7,
                answers: 1.3,
                hidden: 0.4,
                attention: 0.9,
                similarities: 1.0,
                temperature: 1.5,
            },
        ),
    ];
    for name in ["sequence", "token", "span"] {
        for (term, settings) in cases {
            let student = Student::tiny(name, settings);
            for mode in [Mode::Evaluate, TRAIN] {
                let gradient = student.gradient(mode, 1.0);
                let what = format!("{name}, {term}, {mode:?}");
                check_gradient(&what, differences(&gradient), &student.weights, &gradient, |weights| {
                    student.loss(weights, mode).total
                });
            }
        }
    }
}

#[test]
fn a_student_that_is_its_teacher_has_nothing_to_learn_but_labels() {
    for name in ["sequence", "token", "span"] {
        let mut student = Student::tiny(name, Distillation::default());
        student.teacher =
            Teacher::new(student.weights.clone(), Distillation { labels: 0.5, ..Distillation::default() });
        student.teacher.look(&student.bert, &student.compute, &student.batch);
        let loss = student.loss(&student.weights, Mode::Evaluate);
        assert!((loss.total - 0.5 * loss.labels).abs() < 1e-12 && loss.labels > 0.1, "{name}: {loss:?}");
    }
}

#[test]
fn shares_of_a_loss_are_shares_of_its_gradient() {
    let student = Student::tiny("token", Distillation::default());
    let (whole, half) = (student.gradient(TRAIN, 1.0), student.gradient(TRAIN, 0.5));
    let difference: Vec<f32> = whole.iter().zip(&half).map(|(whole, half)| whole - 2.0 * half).collect();
    assert!(norm(&difference) < 1e-5 * norm(&whole), "{}", norm(&difference) / norm(&whole));
}
