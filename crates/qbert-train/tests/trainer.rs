//! The trainer on a tiny model: it learns, repeats itself, survives being killed, and stops when it diverges.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::{Path, PathBuf};

use common::training::{Observer, data};
use common::{compute, goldens};
use qbert_tasks::{DataSource, LabelSource, Labels, Task};
use qbert_train::Error;
use qbert_train::evaluate::{evaluate, evaluate_on};
use qbert_train::finetune::{Finetune, TrainingData, finetune, finetune_on, recipe};
use qbert_train::trainer::StepRecord;

fn job(home: &Path, out: &str) -> Finetune {
    let mut settings = recipe(Task::Sst2);
    settings.epochs = 4;
    settings.batch = 8;
    settings.optimizer.learning_rate = 5e-3;
    Finetune {
        model: goldens().join("tiny-sequence"),
        data: DataSource { max_len: 20, ..DataSource::new(Task::Sst2, [data(home, "train.tsv", 150, 1)]) },
        dev: data(home, "dev.tsv", 40, 2),
        out: home.join(out),
        max_train: None,
        settings,
        resume: false,
    }
}

fn weights(job: &Finetune) -> Vec<u8> {
    std::fs::read(job.out.join("model.safetensors")).unwrap()
}

#[test]
fn it_learns_and_writes_a_checkpoint_that_evaluates_the_same() {
    let home = tempfile::tempdir().unwrap();
    let job = job(home.path(), "out");
    let mut observer = Observer::default();
    let outcome = finetune(&job, &compute(2), &mut observer).unwrap();
    assert!(outcome.best >= 95.0, "{outcome:?}");
    assert_eq!(outcome.steps, 4 * 19);
    let dev = evaluate(&job.out, &job.dev_data(), &compute(1), |_, _| {}).unwrap();
    assert_eq!(dev.evaluation.value, outcome.best);
    let log = std::fs::read_to_string(job.out.join("train.jsonl")).unwrap();
    let (steps, evaluations): (Vec<&str>, Vec<&str>) = log.lines().partition(|line| line.contains("\"step\""));
    let records: Vec<StepRecord> = steps.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(evaluations.len(), 4, "one for each epoch: {evaluations:?}");
    assert!(evaluations[3].starts_with(r#"{"epoch":4,"dev":{"metric":"accuracy","value":"#), "{evaluations:?}");
    assert_eq!(records.iter().map(|r| r.loss).collect::<Vec<_>>(), observer.losses);
    assert_eq!(records.last().unwrap().step, outcome.steps);
    assert!(!job.out.join("resume.safetensors").exists(), "nothing is left to resume");
}

#[test]
fn the_same_seed_gives_the_same_bytes_with_one_and_two_threads() {
    let home = tempfile::tempdir().unwrap();
    let run = |out: &str, threads: usize, seed: u64, accumulate: usize| {
        let mut job = job(home.path(), out);
        (job.settings.seed, job.settings.epochs, job.settings.accumulate) = (seed, 2, accumulate);
        finetune(&job, &compute(threads), &mut Observer::default()).unwrap();
        (weights(&job), std::fs::read(job.out.join("train.jsonl")).unwrap())
    };
    let one = run("one", 1, 1, 1);
    assert!(one == run("two", 2, 1, 1), "two threads");
    assert!(one.0 != run("other", 1, 2, 1).0, "another seed");
    assert!(run("a", 1, 1, 3) == run("b", 2, 1, 3), "with accumulated gradients");
}

#[test]
fn a_run_that_is_stopped_anywhere_and_resumed_ends_with_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    let whole = job(home.path(), "whole");
    finetune(&whole, &compute(1), &mut Observer::default()).unwrap();
    // In the first epoch (only the start is saved), in the middle, at the last step of an epoch, and twice in one run.
    for stops in [vec![3], vec![30], vec![38], vec![57], vec![25, 60]] {
        let mut job = job(home.path(), &format!("stopped-{stops:?}"));
        for stop in &stops {
            let mut observer = Observer { stop_after: Some(*stop), ..Observer::default() };
            let run = || finetune(&job, &compute(2), &mut observer).map(|_| ());
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(unwound.is_err(), "the run was to be stopped after step {stop}");
            job.resume = true;
        }
        finetune(&job, &compute(1), &mut Observer::default()).unwrap();
        assert!(weights(&job) == weights(&whole), "stopped after {stops:?}");
        let log = |job: &Finetune| std::fs::read_to_string(job.out.join("train.jsonl")).unwrap();
        assert_eq!(log(&job), log(&whole), "stopped after {stops:?}");
    }
}

#[test]
fn another_run_is_never_overwritten_or_continued_by_mistake() {
    let home = tempfile::tempdir().unwrap();
    let mut job = job(home.path(), "out");
    job.settings.epochs = 2;
    let mut observer = Observer { stop_after: Some(25), ..Observer::default() };
    let run = || finetune(&job, &compute(1), &mut observer).map(|_| ());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    let again = finetune(&job, &compute(1), &mut Observer::default()).unwrap_err();
    assert!(again.to_string().contains("already holds a run"), "{again}");
    job.resume = true;
    job.settings.optimizer.learning_rate = 1e-3;
    let other = finetune(&job, &compute(1), &mut Observer::default()).unwrap_err();
    assert!(other.to_string().contains("`learning_rate` was 0.005, now it is 0.001"), "{other}");
    job.settings.optimizer.learning_rate = 5e-3;
    let state = job.out.join("resume.safetensors");
    let whole = std::fs::read(&state).unwrap();
    std::fs::write(&state, &whole[..whole.len() / 2]).unwrap();
    let damaged = finetune(&job, &compute(1), &mut Observer::default()).unwrap_err();
    assert!(damaged.to_string().contains("resume.safetensors: damaged"), "{damaged}");
    std::fs::write(&state, &whole).unwrap();
    let outcome = finetune(&job, &compute(1), &mut Observer::default()).unwrap();
    // A finished run says again how it ended, and not a step more; another one is refused.
    let mut observer = Observer::default();
    let again = finetune(&job, &compute(1), &mut observer).unwrap();
    assert_eq!((again.metric, again.best, again.best_epoch), (outcome.metric, outcome.best, outcome.best_epoch));
    assert_eq!((again.steps, observer.losses.len()), (outcome.steps, 0));
    job.settings.seed = 9;
    let other = finetune(&job, &compute(1), &mut Observer::default()).unwrap_err();
    assert!(other.to_string().contains("the finished run was made differently: `seed` was 1"), "{other}");
}

/// A run that was asked to stop after an epoch and some steps, ready to be resumed.
fn stopped_job(home: &Path, out: &str) -> Finetune {
    let mut job = job(home, out);
    job.settings.epochs = 2;
    let mut observer = Observer { ask_after: Some(25), ..Observer::default() };
    assert!(matches!(finetune(&job, &compute(1), &mut observer), Err(Error::Stopped { .. })));
    job.resume = true;
    job
}

/// What resuming a spoiled run says. It must be refused with a way out.
fn refusal(job: &Finetune) -> String {
    let refused = finetune(job, &compute(1), &mut Observer::default()).unwrap_err();
    assert!(matches!(refused, Error::State { .. }), "{refused}");
    let hint = refused.hint().unwrap();
    assert!(hint.contains(&format!("delete {} and start again", job.out.display())), "{hint}");
    refused.to_string()
}

/// Issue 17, point 19.
#[test]
fn a_damaged_training_state_is_never_resumed() {
    let home = tempfile::tempdir().unwrap();
    let job = stopped_job(home.path(), "out");
    let state = job.out.join("resume.safetensors");
    let whole = std::fs::read(&state).unwrap();
    // Every part of the file: the header's length, the header, its checksum, weights and moments.
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let sampled = (0..header).step_by(41).chain((header..whole.len()).step_by(whole.len() / 60)).chain(0..8);
    let data = TrainingData::read(&job, None).unwrap();
    for index in sampled {
        let mut damaged = whole.clone();
        damaged[index] ^= 1 << (index % 8);
        for (what, bytes) in [("byte", &damaged[..]), ("cut to", &whole[..index])] {
            std::fs::write(&state, bytes).unwrap();
            let refused = finetune_on(&job, data.clone(), &compute(1), &mut Observer::default()).unwrap_err();
            assert!(matches!(refused, Error::State { .. }), "{what} {index}: {refused}");
        }
    }
    assert!(refusal(&job).contains("resume.safetensors: damaged"));
    // What versions without a checksum wrote.
    let tensor = |values| qbert_model::FloatTensor { shape: &[1], values };
    qbert_model::atomic::write_tensors(&state, [("weights", tensor(&[1.0]))], Default::default()).unwrap();
    assert!(refusal(&job).contains("written by an older version of qbert: it has no checksum"));
    std::fs::write(&state, &whole).unwrap();
    finetune(&job, &compute(1), &mut Observer::default()).unwrap();
}

/// Issue 17, point 19: the state alone is not all that a run continues from.
#[test]
fn a_run_whose_log_state_or_best_model_is_gone_is_never_resumed() {
    let home = tempfile::tempdir().unwrap();
    let job = stopped_job(home.path(), "out");
    let files = ["train.jsonl", "resume.safetensors", "vocab.txt", "config.json", "metrics.json"];
    for name in files {
        let path = job.out.join(name);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(refusal(&job).contains(name), "{}", refusal(&job));
        std::fs::write(&path, bytes).unwrap();
    }
    let log = job.out.join("train.jsonl");
    let whole = std::fs::read(&log).unwrap();
    for spoiled in [whole[..whole.len() - 1].to_vec(), [b" ", &whole[1..]].concat()] {
        std::fs::write(&log, spoiled).unwrap();
        assert!(refusal(&job).contains("train.jsonl: damaged"), "{}", refusal(&job));
    }
    // Lines after the last save are cut off.
    std::fs::write(&log, [&whole[..], b"{}\n"].concat()).unwrap();
    finetune(&job, &compute(1), &mut Observer::default()).unwrap();
    std::fs::remove_file(job.out.join("vocab.txt")).unwrap();
    assert!(refusal(&job).contains("vocab.txt"), "a finished run");
}

/// Issue 17, point 21.
#[test]
fn two_trainings_never_share_a_directory() {
    let home = tempfile::tempdir().unwrap();
    let job = job(home.path(), "out");
    struct Second<'a>(&'a Finetune, Option<String>);
    impl qbert_train::trainer::Watch for Second<'_> {
        fn step(&mut self, _: &StepRecord, _: usize) {
            self.1.get_or_insert_with(|| {
                let job = Finetune { resume: true, ..self.0.clone() };
                finetune(&job, &compute(1), &mut Observer::default()).unwrap_err().to_string()
            });
        }
        fn evaluated(&mut self, _: usize, _: &qbert_train::evaluate::Evaluation, _: bool) {}
    }
    let mut second = Second(&job, None);
    finetune(&job, &compute(1), &mut second).unwrap();
    let said = second.1.unwrap();
    assert!(said.contains("another qbert") && said.contains("is at work in this directory"), "{said}");
}

#[test]
fn whoever_watches_can_stop_a_run_and_it_goes_on_from_that_very_step() {
    let home = tempfile::tempdir().unwrap();
    let mut job = job(home.path(), "out");
    job.settings.epochs = 1;
    let mut observer = Observer { ask_after: Some(7), ..Observer::default() };
    let stopped = finetune(&job, &compute(1), &mut observer).unwrap_err();
    assert!(matches!(stopped, Error::Stopped { .. }), "{stopped}");
    assert!(stopped.hint().unwrap().contains("`job.resume`"));
    job.resume = true;
    let mut rest = Observer::default();
    finetune(&job, &compute(1), &mut rest).unwrap();
    assert_eq!((observer.losses.len(), rest.losses.len()), (7, 12), "no step is done twice");
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_names_the_step() {
    let home = tempfile::tempdir().unwrap();
    let mut job = job(home.path(), "out");
    job.settings.optimizer.learning_rate = 0.99;
    job.settings.optimizer.clip = 0.0;
    job.settings.warmup = 0.0;
    job.settings.epochs = 40;
    // LayerNorm keeps even absurd weights finite for a while; weights near the end of f32 do not.
    let result =
        finetune(&Finetune { model: exploding(home.path()), ..job.clone() }, &compute(1), &mut Observer::default());
    match result {
        Err(error @ Error::Diverged { .. }) => {
            assert!(error.to_string().starts_with("step 1: the loss is"), "{error}");
            assert!(error.hint().unwrap().contains("`training.optimizer.learning_rate`"));
        }
        other => panic!("{other:?}"),
    }
    assert!(!job.out.join("model.safetensors").exists(), "nothing bad is kept");
}

/// A copy of the tiny model whose classifier overflows f32.
fn exploding(home: &Path) -> PathBuf {
    let checkpoint = qbert_model::Checkpoint::open(&goldens().join("tiny-sequence")).unwrap();
    let loaded = checkpoint.load_for(qbert_model::Head::SequenceClassification, 2).unwrap();
    let mut weights = loaded.parameters;
    weights.named_mut("pooler.dense.bias").unwrap().fill(50.0);
    weights.named_mut("classifier.weight").unwrap().fill(3e38);
    let labels = ["negative".to_owned(), "positive".to_owned()];
    let directory = home.join("exploding");
    qbert_model::write_checkpoint(&directory, checkpoint.config(), &weights, &labels, checkpoint.tokenizer_files())
        .unwrap();
    directory
}

#[test]
fn settings_that_make_no_sense_are_refused_by_the_name_of_their_flag() {
    let home = tempfile::tempdir().unwrap();
    type Change = fn(&mut Finetune);
    let changes: [(&str, Change); 6] = [
        ("`training.batch` is 0", |job| job.settings.batch = 0),
        ("`training.accumulate` is 0", |job| job.settings.accumulate = 0),
        ("`training.optimizer.learning_rate` is 0", |job| job.settings.optimizer.learning_rate = 0.0),
        ("`training.warmup` is 2", |job| job.settings.warmup = 2.0),
        ("`training.optimizer.clip` is -1", |job| job.settings.optimizer.clip = -1.0),
        ("`data.max_len` is 99", |job| job.data.max_len = 99),
    ];
    for (expected, change) in changes {
        let mut job = job(home.path(), "out");
        change(&mut job);
        let error = finetune(&job, &compute(1), &mut Observer::default()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!job.out.exists(), "nothing is written");
    }
}

#[test]
fn lent_data_gives_the_same_bytes_as_reading_it_again() {
    let home = tempfile::tempdir().unwrap();
    let (read, lent) = (job(home.path(), "read"), job(home.path(), "lent"));
    finetune(&read, &compute(2), &mut Observer::default()).unwrap();
    let data = TrainingData::read(&lent, None).unwrap();
    finetune_on(&lent, data.clone(), &compute(2), &mut Observer::default()).unwrap();
    assert!(weights(&read) == weights(&lent), "the weights differ");
    let again = evaluate(&read.out, &read.dev_data(), &compute(1), |_, _| {}).unwrap();
    let shared = evaluate_on(&lent.out, data.dev, &compute(1), |_, _| {}).unwrap();
    assert_eq!(shared.predictions, again.predictions);
    assert_eq!(shared.evaluation.value, again.evaluation.value);
}

#[test]
fn data_read_with_the_labels_in_another_order_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let first = job(home.path(), "first");
    finetune(&first, &compute(2), &mut Observer::default()).unwrap();
    let mut other = job(home.path(), "other");
    other.data.read.labels = LabelSource::Given(Labels::new(["positive", "negative"]).unwrap());
    let data = TrainingData::read(&other, None).unwrap();
    other.model = first.out;
    let error = evaluate_on(&other.model, data.dev.clone(), &compute(1), |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("head is for the labels negative, positive"), "{error}");
    let error = finetune_on(&other, data, &compute(1), &mut Observer::default()).unwrap_err().to_string();
    assert!(error.contains("the data was read with positive, negative"), "{error}");
}
