//! Quantization-aware training from files on a tiny model: it recovers what quantization lost, repeats itself, survives
//! being killed, and its checkpoint evaluates to what was reported.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;

use common::training::{Observer, data};
use common::{compute, goldens};
use qbert_quant::{GroupSpec, Plan, Precision, RangeMethod};
use qbert_tasks::{DataSource, Task};
use qbert_train::evaluate::{Evaluate, evaluate};
use qbert_train::finetune::{Finetune, finetune, recipe};
use qbert_train::qat::files;
use qbert_train::qat::run::{Quantize, quantize};
use qbert_train::qat::student::QatSettings;
use qbert_train::qat::weights::WeightRanges;
use qbert_train::trainer::StepRecord;

/// A fine-tuned model, and how to quantize it.
fn job(home: &Path, out: &str) -> Quantize {
    let mut settings = recipe(Task::Sst2);
    (settings.epochs, settings.batch) = (4, 8);
    settings.optimizer.learning_rate = 5e-3;
    let mut job = Finetune {
        model: goldens().join("tiny-sequence"),
        data: DataSource { max_len: 20, ..DataSource::new(Task::Sst2, [data(home, "train.tsv", 150, 1)]) },
        dev: data(home, "dev.tsv", 40, 2),
        out: home.join("tuned"),
        max_train: None,
        settings,
        resume: false,
    };
    if !job.out.exists() {
        finetune(&job, &compute(2), &mut Observer::default()).unwrap();
    }
    job.model = std::mem::replace(&mut job.out, home.join(out));
    job.settings.epochs = 3;
    job.settings.optimizer.learning_rate = 1e-3;
    let two = Precision::from_number(2).unwrap();
    let plan = Plan::uniform(3, two, GroupSpec::Count(4), RangeMethod::Mse);
    Quantize { job, plan, settings: QatSettings { calibration: 4, ..QatSettings::default() } }
}

/// All that a run leaves behind, by name.
fn results(job: &Quantize) -> Vec<(&'static str, Vec<u8>)> {
    let names =
        ["model.safetensors", "ranges.safetensors", "activations.json", "plan.toml", "metrics.json", "train.jsonl"];
    names.map(|name| (name, std::fs::read(job.job.out.join(name)).unwrap())).to_vec()
}

fn assert_same(found: &Quantize, expected: &Quantize, what: &str) {
    for ((name, found), (_, expected)) in results(found).into_iter().zip(results(expected)) {
        assert!(found == expected, "{name} differs {what}");
    }
}

fn dev_figure(job: &Quantize, masters: bool) -> f64 {
    let model = Evaluate { model: &job.job.out, masters };
    evaluate(model, &job.job.dev_data(), &compute(1), |_, _| {}).unwrap().evaluation.value
}

#[test]
fn training_recovers_and_the_checkpoint_evaluates_to_the_figure() {
    let home = tempfile::tempdir().unwrap();
    for (out, distill) in [("taught", true), ("alone", false)] {
        let mut job = job(home.path(), out);
        if !distill {
            job.settings.distillation = None;
        }
        let mut observer = Observer::default();
        let outcome = quantize(&job, &compute(2), &mut observer).unwrap();
        let before = outcome.before.unwrap();
        assert!(before.full_precision >= 95.0 && observer.full_precision == Some(before.full_precision), "{outcome:?}");
        assert!(outcome.best >= 95.0, "{outcome:?}");
        assert_eq!(observer.evaluations[0], (0, before.post_training, true));
        assert_eq!(observer.evaluations.len(), 4);
        assert_eq!(outcome.steps, 3 * 19);
        assert_eq!(dev_figure(&job, false), outcome.best, "{out}");
        assert!(files::is_quantized(&job.job.out).unwrap());
        let metrics: serde_json::Value =
            serde_json::from_slice(&std::fs::read(job.job.out.join("metrics.json")).unwrap()).unwrap();
        assert_eq!(metrics["before"]["post_training"], before.post_training);
        assert_eq!(metrics["run"]["quantization"]["plan"]["version"], 1);
    }
}

/// Learned ranges leave the least squared error and end up elsewhere than ranges that follow the weights; the checkpoint
/// still evaluates to what was reported.
#[test]
fn ranges_are_learned_along_with_the_weights() {
    let home = tempfile::tempdir().unwrap();
    let trained = |out: &str, weight_ranges| {
        let mut job = job(home.path(), out);
        job.settings.weight_ranges = weight_ranges;
        let outcome = quantize(&job, &compute(2), &mut Observer::default()).unwrap();
        assert!(outcome.best >= 95.0, "{outcome:?}");
        assert_eq!(dev_figure(&job, false), outcome.best, "{out}");
        std::fs::read(job.job.out.join("ranges.safetensors")).unwrap()
    };
    let followed = trained("followed", WeightRanges::Followed);
    let learned = trained("learned", WeightRanges::Learned(10.0));
    assert!(followed != learned);
    let mut job = job(home.path(), "refused");
    job.settings.weight_ranges = WeightRanges::Learned(-1.0);
    let error = quantize(&job, &compute(1), &mut Observer::default()).unwrap_err().to_string();
    assert!(error.contains("`qat.weight_ranges`"), "{error}");
}

#[test]
fn activations_are_dropped_out_only_when_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let first_loss = |out: &str, dropout: bool| {
        let mut job = job(home.path(), out);
        (job.settings.dropout, job.job.settings.epochs) = (dropout, 1);
        quantize(&job, &compute(1), &mut Observer::default()).unwrap();
        let log = std::fs::read_to_string(job.job.out.join("train.jsonl")).unwrap();
        let mut steps = log.lines().filter_map(|line| serde_json::from_str::<StepRecord>(line).ok());
        steps.next().unwrap().loss
    };
    let (with, without) = (first_loss("with", true), first_loss("without", false));
    assert!(with > without, "{with} {without}");
}

#[test]
fn without_epochs_ranges_are_calibrated_and_nothing_is_trained() {
    let home = tempfile::tempdir().unwrap();
    let mut job = job(home.path(), "calibrated");
    job.job.settings.epochs = 0;
    job.settings.compensate = false;
    let outcome = quantize(&job, &compute(2), &mut Observer::default()).unwrap();
    assert_eq!((outcome.best_epoch, outcome.steps), (0, 0));
    assert_eq!(outcome.best, outcome.before.unwrap().post_training);
    assert_eq!(dev_figure(&job, false), outcome.best);
    assert_eq!(dev_figure(&job, true), outcome.before.unwrap().full_precision, "the masters are what came in");
    let weights = |directory: &Path| std::fs::read(directory.join("model.safetensors")).unwrap();
    assert!(weights(&job.job.out) == weights(&job.job.model));
    assert!(!job.job.out.join("resume.safetensors").exists());
    let compensated = Quantize {
        job: Finetune { out: home.path().join("compensated"), ..job.job.clone() },
        settings: QatSettings { compensate: true, ..job.settings.clone() },
        ..job.clone()
    };
    let outcome = quantize(&compensated, &compute(2), &mut Observer::default()).unwrap();
    assert_eq!(dev_figure(&compensated, false), outcome.best);
    assert!(weights(&compensated.job.out) != weights(&job.job.model), "the masters are rounded");
}

#[test]
fn the_same_seed_gives_the_same_bytes_with_any_number_of_threads() {
    let home = tempfile::tempdir().unwrap();
    for accumulate in [1, 3] {
        let [one, two] = [1, 2].map(|threads| {
            let mut job = job(home.path(), &format!("{accumulate}-{threads}"));
            job.job.settings.accumulate = accumulate;
            quantize(&job, &compute(threads), &mut Observer::default()).unwrap();
            job
        });
        assert_same(&two, &one, "with two threads");
    }
}

#[test]
fn a_run_that_is_stopped_anywhere_and_resumed_ends_with_the_same_bytes() {
    // While ranges are learned, after they are frozen, at the last step of an epoch, and twice in one run.
    stopped_and_resumed(WeightRanges::Followed, &[&[3], &[16], &[38], &[57], &[20, 45]]);
}

#[test]
fn learned_ranges_survive_a_stop_too() {
    stopped_and_resumed(WeightRanges::Learned(10.0), &[&[3], &[38], &[20, 45]]);
}

fn stopped_and_resumed(weight_ranges: WeightRanges, all: &[&[usize]]) {
    let home = tempfile::tempdir().unwrap();
    let prepared = |out: &str| {
        let mut job = job(home.path(), out);
        job.settings.weight_ranges = weight_ranges;
        job
    };
    let whole = prepared("whole");
    quantize(&whole, &compute(1), &mut Observer::default()).unwrap();
    for stops in all {
        let mut job = prepared(&format!("stopped-{stops:?}"));
        for stop in *stops {
            let mut observer = Observer { stop_after: Some(*stop), ..Observer::default() };
            let run = || quantize(&job, &compute(2), &mut observer).map(|_| ());
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(unwound.is_err(), "the run was to be stopped after step {stop}");
            job.job.resume = true;
        }
        let mut observer = Observer::default();
        let outcome = quantize(&job, &compute(1), &mut observer).unwrap();
        assert_eq!(observer.full_precision, None, "what was known before is not measured again");
        assert!(outcome.before.is_some());
        assert_same(&job, &whole, &format!("after {stops:?}"));
    }
}

#[test]
fn another_plan_is_not_continued_and_a_model_without_a_head_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut job = job(home.path(), "out");
    let mut observer = Observer { stop_after: Some(5), ..Observer::default() };
    let run = || quantize(&job, &compute(1), &mut observer).map(|_| ());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    job.job.resume = true;
    let right = job.plan.clone();
    job.plan = right.clone().with_weight_range(RangeMethod::MinMax);
    let other = quantize(&job, &compute(1), &mut Observer::default()).unwrap_err();
    assert!(other.to_string().contains("the run was started differently"), "{other}");
    job.plan = right;
    quantize(&job, &compute(1), &mut Observer::default()).unwrap();

    job.job.out = home.path().join("other");
    job.job.model = goldens().join("tiny-token");
    let error = quantize(&job, &compute(1), &mut Observer::default()).unwrap_err();
    assert!(error.to_string().contains("needs a classification head"), "{error}");
    assert!(!job.job.out.exists());
}

#[test]
fn damaged_files_of_a_quantized_checkpoint_are_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let mut job = job(home.path(), "out");
    job.job.settings.epochs = 0;
    quantize(&job, &compute(1), &mut Observer::default()).unwrap();
    let out = &job.job.out;
    let error = || evaluate(out, &job.job.dev_data(), &compute(1), |_, _| {}).unwrap_err().to_string();
    let spoil = |name: &str, (from, to): (&str, &str), expected: &str| {
        let whole = std::fs::read(out.join(name)).unwrap();
        let text = String::from_utf8_lossy(&whole).into_owned();
        assert!(text.contains(from), "{name} has no {from}");
        std::fs::write(out.join(name), text.replacen(from, to, 1)).unwrap();
        let found = error();
        assert!(found.contains(expected), "{found}");
        std::fs::write(out.join(name), whole).unwrap();
    };
    spoil("activations.json", ("layer.2.inner", "layer.2.outer"), "activations.json: layer.2.inner is missing");
    spoil("activations.json", ("\"bits\": 8", "\"bits\": 4"), "activations.json: version 1 with 4 bits");
    spoil("activations.json", ("{", ""), "activations.json: invalid type");
    spoil(
        "plan.toml",
        ("groups = 4", "groups = 5"),
        "ranges.safetensors: layer.0.query: F32 [4, 2], but the plan has 5",
    );
    std::fs::remove_file(out.join("activations.json")).unwrap();
    assert!(error().contains("activations.json: cannot read"), "{}", error());
}
