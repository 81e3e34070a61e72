//! What a step of quantization-aware training costs beside a step of plain training, at 2/3 bits, with products in f32
//! and in bf16.
//!
//! ```text
//! cargo run --release -p qbert-train --example qat_step -- "$(qbert fetch minilm)" [threads] [rounds] [tokens] [--json]
//! ```
//!
//! Steps alternate, so that all see the same machine; the table has the medians. With one thread the time is also the
//! processor's (`/proc/thread-self/schedstat`), which other programs disturb less than the clock. Each sequence has the
//! length of an SST-2 sentence (24 tokens) unless another one is given; batches are of 32.

#![allow(clippy::print_stdout, reason = "an example")]

use std::sync::Arc;
use std::time::Instant;

use qbert_kernels::{Compute, ProductPrecision};
use qbert_model::{Checkpoint, Head, Module, Parameters};
use qbert_quant::{GroupSpec, Plan, Precision, RangeMethod};
use qbert_train::bert::{Activations, BackwardBuffers, Mode, Pass, zero};
use qbert_train::optimizer::{Optimizer, OptimizerSettings};
use qbert_train::qat::distill::Distillation;
use qbert_train::qat::student::{QatSettings, StepOf, Student};
use qbert_train::qat::{Quantization, QuantizedPass};
use qbert_train::random::Stream;
use qbert_train::{Batch, Bert, Targets};

struct Machine {
    bert: Bert,
    compute: Compute,
    weights: Parameters,
    optimizer: Optimizer,
    gradients: Vec<f32>,
    activations: Activations,
    buffers: BackwardBuffers,
}

impl Machine {
    fn step(
        &mut self,
        batch: &Batch,
        step: usize,
        student: Option<&mut Student>,
        products: ProductPrecision,
    ) -> Result<(), qbert_train::Error> {
        let Self { bert, compute, weights, optimizer, gradients, activations, buffers } = self;
        let compute = &compute.with_products(products);
        let mode = Mode::Train { seed: 1, step: step as u64 };
        zero(compute, gradients);
        match student {
            None => {
                bert.forward(compute, weights.values(), batch, mode, activations);
                bert.loss(batch, activations, 1.0, buffers);
                bert.backward(
                    Pass { compute, weights: weights.values(), batch, mode },
                    activations,
                    buffers,
                    gradients,
                );
            }
            Some(student) => {
                student.before_step(
                    compute,
                    weights.values(),
                    StepOf { step, total: 1000 },
                    std::slice::from_ref(batch),
                )?;
                let pass = QuantizedPass { compute, batch, mode };
                student.learn(bert, pass, 1.0, activations, (buffers, gradients))?;
                student.after_backward(compute, weights.values(), gradients);
            }
        }
        optimizer.step(compute, 1e-7, weights.values_mut(), gradients);
        Ok(())
    }
}

/// Nanoseconds this thread has run.
fn processor_time() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn student(name: &str, machine: &Machine, frozen: bool) -> Result<Student, Box<dyn std::error::Error>> {
    let (range, distilled) = name.strip_suffix(", taught").map_or((name, false), |range| (range, true));
    let method: RangeMethod = range.parse()?;
    let config = machine.bert.config();
    let mut plan = Plan::uniform(config.layers, Precision::from_number(2)?, GroupSpec::Count(128), method);
    for layer in 0..config.layers / 2 {
        plan = plan.with_layer_bits(layer, Precision::from_number(3)?)?;
    }
    let mut quantization = Quantization::new(plan, config, machine.bert.layout())?;
    quantization.fit(&machine.compute, machine.weights.values())?;
    let settings = QatSettings {
        compensate: false,
        calibration: 1,
        freeze: if frozen { 0.0 } else { 1.0 },
        distillation: distilled.then(Distillation::default),
        ..QatSettings::default()
    };
    Ok(Student::new(quantization, settings, machine.weights.values())?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (flags, arguments): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let json = flags.iter().any(|flag| flag == "--json");
    let number = |index: usize, usual: usize| arguments.get(index).map_or(Ok(usual), |text| text.parse());
    let directory = arguments.first().ok_or("which checkpoint?")?;
    let (threads, rounds, tokens) = (number(1, 1)?, number(2, 9)?, number(3, 24)?);
    let checkpoint = Checkpoint::open(std::path::Path::new(directory))?;
    let mut weights = checkpoint.load_for(Head::SequenceClassification, 2)?.parameters;
    if let Some(head) = weights.role_mut(Module::Head.weight()) {
        Stream::new(0, "head", 0).fill_normal(head, 0.02);
    }
    let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout()))?;
    let mut batch = Batch::new();
    let mut stream = Stream::new(1, "tokens", 0);
    for _ in 0..32 {
        let ids: Vec<u32> = (0..tokens).map(|_| 1000 + stream.below(20_000) as u32).collect();
        batch.push(&ids, &vec![0; tokens]);
    }
    batch.targets = Targets::Sequences((0..32).map(|i| i % 2).collect());
    let mut machine = Machine {
        optimizer: Optimizer::new(OptimizerSettings::default(), bert.layout()),
        gradients: vec![0.0; weights.values().len()],
        activations: Activations::for_training(),
        buffers: BackwardBuffers::default(),
        compute: Compute::detect(threads)?,
        bert,
        weights,
    };
    let kinds = [("min-max", false), ("min-max", true), ("mse", false), ("mse", true), ("mse, taught", true)];
    let precisions = [ProductPrecision::F32, ProductPrecision::Bf16];
    let mut works = Vec::new();
    for products in precisions {
        works.push(("plain".to_owned(), None, products));
        for (name, frozen) in kinds {
            let title = format!("{name}, activations {}", if frozen { "frozen" } else { "learned" });
            works.push((title, Some(student(name, &machine, frozen)?), products));
        }
    }
    let mut times = vec![(Vec::new(), Vec::new()); works.len()];
    for round in 0..rounds {
        for ((_, student, products), (clock, processor)) in works.iter_mut().zip(&mut times) {
            let (start, used) = (Instant::now(), processor_time());
            machine.step(&batch, round, student.as_mut(), *products)?;
            clock.push(1e3 * start.elapsed().as_secs_f64());
            processor.push(1e-6 * (processor_time() - used));
        }
    }
    let figures: Vec<(f64, f64)> = times.into_iter().map(|(c, p)| (median(c), median(p))).collect();
    if json {
        let count = kinds.len() + 1;
        let steps: Vec<serde_json::Value> = works
            .iter()
            .zip(&figures)
            .enumerate()
            .map(|(index, ((name, _, products), (clock, _)))| {
                let (in_f32, plain) = (figures[index % count].0, figures[index / count * count].0);
                let rounded = |value: f64| (1e3 * value).round() / 1e3;
                let (to_f32, to_plain) = (rounded(clock / in_f32), rounded(clock / plain));
                let ms = (10.0 * clock).round() / 10.0;
                serde_json::json!({"step": name, "precision": products.name(), "ms": ms, "to_f32": to_f32, "to_plain": to_plain})
            })
            .collect();
        println!(
            "{}",
            serde_json::json!({"sequences": 32, "tokens": tokens, "threads": threads, "rounds": rounds, "steps": steps})
        );
        return Ok(());
    }
    println!(
        "32 x {tokens} tokens, {threads} threads, medians of {rounds}; ratios to the same step in f32 and to a plain one"
    );
    println!("{:34} {:>5} {:>9} {:>12} {:>7} {:>7}", "step", "", "clock ms", "processor ms", "to f32", "to plain");
    let count = kinds.len() + 1;
    for (index, ((name, _, products), (clock, processor))) in works.iter().zip(&figures).enumerate() {
        let (in_f32, plain) = (figures[index % count].0, figures[index / count * count].0);
        let (to_f32, to_plain) = (clock / in_f32, clock / plain);
        println!("{name:34} {:>5} {clock:9.1} {processor:12.1} {to_f32:7.3} {to_plain:7.3}", products.name());
    }
    Ok(())
}
