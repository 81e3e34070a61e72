//! Several ranks give the bytes of one process: gradients, trainings, analyses, and what another number of ranks continues.
//!
//! The ranks here are threads of this process; `.ci/mpi` does the same with MPI.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::training::{Observer, data};
use common::{Golden, compute, goldens};
use qbert_kernels::{Compute, LocalRanks, ProductPrecision};
use qbert_model::{Checkpoint, Config, Head, ParameterLayout};
use qbert_quant::{ActivationPlan, GroupSpec, Plan, Precision, RangeMethod};
use qbert_tasks::{DataSource, Task};
use qbert_train::bert::{Activations, BackwardBuffers, Mode, Pass};
use qbert_train::finetune::{Finetune, finetune, recipe};
use qbert_train::qat::run::{Quantize, quantize};
use qbert_train::qat::student::QatSettings;
use qbert_train::random::Stream;
use qbert_train::sensitivity::{self, Analysis, Settings, Shard, analyze_saving};
use qbert_train::{Batch, Bert, Error, Targets};

/// Calls `task` on so many ranks at once, each on a thread, and returns what they return.
fn on_ranks<T: Send>(compute: &Compute, ranks: usize, task: impl Fn(usize, &Compute) -> T + Sync) -> Vec<T> {
    let team = LocalRanks::team(ranks);
    std::thread::scope(|scope| {
        let spawn = |(rank, own): (usize, LocalRanks)| {
            // Threads of their own: ranks share nothing.
            let fresh = Compute::new(compute.kernels(), qbert_kernels::Threads::new(1 + rank % 2).unwrap());
            let compute = fresh.with_products(compute.products()).with_ranks(Arc::new(own));
            let task = &task;
            scope.spawn(move || task(rank, &compute))
        };
        let handles: Vec<_> = team.into_iter().enumerate().map(spawn).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

/// Loss and gradients as bits.
fn step(bert: &Bert, weights: &[f32], compute: &Compute, whole: &Arc<Batch>) -> (u64, Vec<u32>) {
    let mode = Mode::Train { seed: 3, step: 5 };
    let ranks = compute.ranks().map_or((1, 0), |ranks| (ranks.size(), ranks.rank()));
    let part = (ranks.0 > 1).then(|| Batch::part(whole, ranks.0, ranks.1).unwrap());
    let batch = part.as_ref().unwrap_or(whole);
    let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
    let mut gradients = vec![0.0; weights.len()];
    bert.forward(compute, weights, batch, mode, &mut activations);
    let loss = bert.loss_of_whole(compute, batch, &activations, 1.0, &mut buffers).mean;
    bert.backward(Pass { compute, weights, batch, mode }, &activations, &mut buffers, &mut gradients);
    bert.share_gradients(compute, &mut gradients);
    (loss.to_bits(), gradients.iter().map(|value| value.to_bits()).collect())
}

fn assert_same_steps(bert: &Bert, weights: &[f32], compute: &Compute, batch: Batch, what: &str) {
    let batch = Arc::new(batch);
    let (loss, gradients) = step(bert, weights, compute, &batch);
    assert!(gradients.iter().any(|&value| value != 0), "{what}");
    for ranks in (2..=4).filter(|&ranks| ranks <= batch.sequences()) {
        for (rank, found) in on_ranks(compute, ranks, |_, own| step(bert, weights, own, &batch)).into_iter().enumerate()
        {
            assert_eq!(found.0, loss, "{what}: the loss on rank {rank} of {ranks}");
            for parameter in bert.layout().parameters() {
                let span = parameter.span.clone();
                assert!(
                    found.1[span.clone()] == gradients[span],
                    "{what}: {} on rank {rank} of {ranks}",
                    parameter.name
                );
            }
        }
    }
}

/// A model that is large enough for its matrices to be shared and its norms to have several chunks of rows.
#[test]
fn ranks_have_the_gradients_of_one_process() {
    let text = r#"{"model_type": "bert", "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
        "intermediate_size": 512, "vocab_size": 500, "max_position_embeddings": 100, "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}"#;
    let config = Config::parse(text.as_bytes(), Path::new("config.json")).unwrap();
    let lengths = [1, 64, 17, 33, 2, 90, 41, 48, 3];
    for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
        let layout = Arc::new(ParameterLayout::new(&config, head, 2, false));
        let mut weights = vec![0.0; layout.len()];
        Stream::new(3, "weights", 0).fill_normal(&mut weights, 0.08);
        let bert = Bert::new(&config, layout).unwrap();
        let (mut stream, mut batch) = (Stream::new(4, "batch", 0), Batch::new());
        for length in lengths {
            let ids: Vec<u32> = (0..length).map(|_| stream.below(500) as u32).collect();
            batch.push(&ids, &vec![0; length]);
        }
        batch.targets = match head {
            Head::SequenceClassification => Targets::Sequences(lengths.iter().map(|n| *n as u32 % 2).collect()),
            Head::TokenClassification => {
                Targets::Tokens((0..batch.tokens()).map(|t| (t % 3 != 0).then_some(t as u32 % 2)).collect())
            }
            _ => Targets::Spans(lengths.iter().map(|&n| (n as u32 / 3, n as u32 / 2)).collect()),
        };
        for products in [ProductPrecision::F32, ProductPrecision::Bf16] {
            let compute = compute(1).with_products(products);
            assert_same_steps(&bert, &weights, &compute, batch.clone(), &format!("{head:?}, {products:?}"));
        }
    }
}

/// Every family: shared layers, relative bias, rotary positions, windows, norms in front, poolers of their own.
#[test]
fn every_family_has_the_gradients_of_one_process() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens-families");
    let names: BTreeSet<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !name.ends_with(".safetensors"))
        .collect();
    for name in names {
        let checkpoint = Checkpoint::open(&directory.join(&name)).unwrap();
        let weights = checkpoint.load().unwrap();
        let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout())).unwrap();
        let batch = Golden::at(&directory.join(format!("{name}.safetensors"))).batch();
        if batch.targets != Targets::None {
            assert_same_steps(&bert, weights.values(), &compute(1), batch, &name);
        }
    }
}

fn training(home: &Path, out: &str) -> Finetune {
    let mut settings = recipe(Task::Sst2);
    (settings.epochs, settings.batch, settings.accumulate) = (2, 7, 2);
    settings.optimizer.learning_rate = 5e-3;
    Finetune {
        model: goldens().join("tiny-sequence"),
        data: DataSource { max_len: 20, ..DataSource::new(Task::Sst2, [data(home, "train.tsv", 80, 1)]) },
        dev: data(home, "dev.tsv", 40, 2),
        out: home.join(out),
        max_train: None,
        settings,
        resume: false,
    }
}

/// Everything in a directory but the lock, by name.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<(String, Vec<u8>)> = entries
        .filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .filter(|(name, _)| !name.contains("lock"))
        .collect();
    files.sort();
    files
}

fn assert_same_files(found: &Path, expected: &Path, what: &str) {
    let (found, expected) = (files(found), files(expected));
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        assert!(found == expected, "{name} differs {what}");
    }
}

/// The last batch has three sequences: four ranks compute it all alike.
#[test]
fn a_training_on_ranks_writes_the_bytes_of_one_process() {
    let home = tempfile::tempdir().unwrap();
    let alone = training(home.path(), "alone");
    let expected = finetune(&alone, &compute(1), &mut Observer::default()).unwrap();
    for ranks in 2..=4 {
        let job = training(home.path(), &format!("on-{ranks}"));
        for found in on_ranks(&compute(1), ranks, |_, own| finetune(&job, own, &mut Observer::default()).unwrap()) {
            assert_eq!(
                (found.best, found.best_epoch, found.steps),
                (expected.best, expected.best_epoch, expected.steps)
            );
        }
        assert_same_files(&job.out, &alone.out, &format!("on {ranks} ranks"));
    }
}

#[test]
fn another_number_of_ranks_continues_a_training() {
    let home = tempfile::tempdir().unwrap();
    let alone = training(home.path(), "alone");
    finetune(&alone, &compute(1), &mut Observer::default()).unwrap();
    let mut job = training(home.path(), "stopped");
    for (ranks, stop) in [(2, Some(3)), (3, Some(5)), (4, None)] {
        let outcomes = on_ranks(&compute(1), ranks, |rank, own| {
            // One rank alone is asked to stop; all do.
            let ask_after = stop.filter(|_| rank == ranks - 1);
            finetune(&job, own, &mut Observer { ask_after, ..Observer::default() })
        });
        for outcome in outcomes {
            assert_eq!(matches!(outcome, Err(Error::Stopped { .. })), stop.is_some(), "{outcome:?}");
        }
        job.resume = true;
    }
    assert_same_files(&job.out, &alone.out, "after it was continued");
    for outcome in on_ranks(&compute(1), 2, |_, own| finetune(&job, own, &mut Observer::default())) {
        assert_eq!(outcome.unwrap().steps, 12, "a finished run is told to all");
    }
}

#[test]
fn a_distilled_quantization_on_ranks_writes_the_bytes_of_one_process() {
    let home = tempfile::tempdir().unwrap();
    let tuned = training(home.path(), "tuned");
    finetune(&tuned, &compute(1), &mut Observer::default()).unwrap();
    let two = Precision::from_number(2).unwrap();
    for range in [RangeMethod::MinMax, RangeMethod::Mse] {
        let quantization = |out: String| {
            let mut job = training(home.path(), &out);
            job.model.clone_from(&tuned.out);
            job.settings.epochs = 1;
            let plan = Plan::uniform(3, two, GroupSpec::Count(4), RangeMethod::Mse);
            let activation = ActivationPlan { range, ..*plan.activation() };
            let plan = plan.with_activation(activation);
            let settings = QatSettings { calibration: 2, freeze: 0.5, dropout: true, ..QatSettings::default() };
            Quantize { job, plan, settings }
        };
        let alone = quantization(format!("alone-{range}"));
        quantize(&alone, &compute(1), &mut Observer::default()).unwrap();
        for ranks in 2..=4 {
            let job = quantization(format!("on-{ranks}-{range}"));
            on_ranks(&compute(1), ranks, |_, own| quantize(&job, own, &mut Observer::default()).unwrap());
            assert_same_files(&job.job.out, &alone.job.out, &format!("on {ranks} ranks, {range}"));
        }
    }
}

fn analysis(model: PathBuf, home: &Path, out: &str) -> Analysis {
    let settings = Settings { runs: 2, fraction: 1.0, max_examples: Some(40), trace: 1, ..Settings::default() };
    let data = DataSource { max_len: 20, ..DataSource::new(Task::Sst2, [home.join("train.tsv")]) };
    Analysis { model, data, settings, shard: Shard::WHOLE, out: home.join(out), resume: false }
}

#[test]
fn an_analysis_on_ranks_writes_the_bytes_of_one_process() {
    let home = tempfile::tempdir().unwrap();
    let tuned = training(home.path(), "tuned");
    finetune(&tuned, &compute(1), &mut Observer::default()).unwrap();
    let analyze = |job: &Analysis, compute: &Compute, stop: Option<usize>| {
        let mut passes = 0;
        analyze_saving(job, compute, Duration::ZERO, &mut |_| {
            passes += 1;
            if stop == Some(passes) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    };
    let alone = analysis(tuned.out.clone(), home.path(), "alone");
    let expected = analyze(&alone, &compute(1), None).unwrap();
    for ranks in 2..=4 {
        let job = analysis(tuned.out.clone(), home.path(), &format!("on-{ranks}"));
        for found in on_ranks(&compute(1), ranks, |_, own| analyze(&job, own, None).unwrap()) {
            assert_eq!(found, expected);
        }
        assert_same_files(&job.out, &alone.out, &format!("on {ranks} ranks"));
    }
    let mut job = analysis(tuned.out, home.path(), "stopped");
    for (ranks, stop) in [(2, Some(2)), (3, Some(3)), (4, None)] {
        for outcome in on_ranks(&compute(1), ranks, |_, own| analyze(&job, own, stop)) {
            assert_eq!(matches!(outcome, Err(Error::Stopped { .. })), stop.is_some(), "{outcome:?}");
        }
        job.resume = true;
    }
    assert_eq!(
        std::fs::read(job.out.join(sensitivity::FILE)).unwrap(),
        std::fs::read(alone.out.join(sensitivity::FILE)).unwrap()
    );
}

#[test]
fn ranks_with_different_jobs_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let outcomes = on_ranks(&compute(1), 2, |rank, own| {
        let mut job = training(home.path(), "out");
        job.settings.seed += rank as u64;
        finetune(&job, own, &mut Observer::default()).unwrap_err().to_string()
    });
    assert!(
        outcomes.iter().all(|error| error.contains("rank 1 has another job than rank 0: `seed` was 1")),
        "{outcomes:?}"
    );
    assert!(!home.path().join("out").exists());
}
