//! The analysis on a tiny fine-tuned model: both methods agree, crashes and shards change no byte, misuse is refused.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{compute, goldens};
use qbert_hessian::Stop;
use qbert_tasks::{DataSource, Task};
use qbert_train::bert::{HessianPass, Point};
use qbert_train::evaluate::Evaluation;
use qbert_train::finetune::{Finetune, finetune, recipe};
use qbert_train::landscape::{self, landscapes};
use qbert_train::loading::Loaded;
use qbert_train::sensitivity::{
    self, Analysis, FILE, Method, Outcome, Sensitivity, Settings, Shard, Step, analyze_saving, merge, parts_in,
};
use qbert_train::trainer::{StepRecord, Watch};

struct Silent;

impl Watch for Silent {
    fn step(&mut self, _: &StepRecord, _: usize) {}
    fn evaluated(&mut self, _: usize, _: &Evaluation, _: bool) {}
}

/// A tiny model that has learnt which of two words occurs, and its data.
fn prepare(home: &Path) {
    let vocabulary = std::fs::read_to_string(goldens().join("tiny-sequence/vocab.txt")).unwrap();
    let words: Vec<&str> = vocabulary.lines().filter(|word| word.chars().all(char::is_alphabetic)).collect();
    let mut text = "sentence\tlabel\n".to_owned();
    for example in 0..80 {
        let at = |offset: usize| words[2 + (example * 7 + offset * 5) % (words.len() - 2)];
        let filler: Vec<&str> = (0..example % 5 + 1).map(at).collect();
        writeln!(text, "{} {} {}\t{}", at(9), words[example % 2], filler.join(" "), example % 2).unwrap();
    }
    std::fs::write(home.join("data.tsv"), text).unwrap();
    let mut settings = recipe(Task::Sst2);
    settings.epochs = 4;
    settings.batch = 8;
    settings.optimizer.learning_rate = 5e-3;
    let job = Finetune {
        model: goldens().join("tiny-sequence"),
        data: DataSource { max_len: 16, ..DataSource::new(Task::Sst2, [home.join("data.tsv")]) },
        dev: home.join("data.tsv"),
        out: home.join("tuned"),
        max_train: None,
        settings,
        resume: false,
    };
    finetune(&job, &compute(1), &mut Silent).unwrap();
}

fn analysis(home: &Path, out: &str) -> Analysis {
    let settings = Settings {
        runs: 3,
        fraction: 0.5,
        max_examples: Some(30),
        method: Method::Lanczos,
        stop: Stop { iterations: 60, tolerance: 1e-4 },
        trace: 2,
        seed: 5,
    };
    Analysis {
        model: home.join("tuned"),
        data: DataSource { max_len: 16, ..DataSource::new(Task::Sst2, [home.join("data.tsv")]) },
        settings,
        shard: Shard::WHOLE,
        out: home.join(out),
        resume: false,
    }
}

fn run(analysis: &Analysis, threads: usize) -> qbert_train::Result<Outcome> {
    analyze_saving(analysis, &compute(threads), Duration::ZERO, &mut |_| ControlFlow::Continue(()))
}

fn whole(outcome: Outcome) -> Sensitivity {
    match outcome {
        Outcome::Whole(found) => *found,
        Outcome::Part(path) => panic!("a part: {}", path.display()),
    }
}

fn bytes(out: &Path) -> Vec<u8> {
    std::fs::read(out.join(FILE)).unwrap()
}

#[test]
fn both_methods_find_the_same_eigenvalues() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let lanczos = whole(run(&analysis(home.path(), "lanczos"), 1).unwrap());
    let mut power = analysis(home.path(), "power");
    power.settings.method = Method::Power;
    power.settings.stop = Stop { iterations: 3000, tolerance: 1e-7 };
    let power = whole(run(&power, 2).unwrap());
    assert_eq!(lanczos.layers.len(), 3);
    for (a, b) in lanczos.layers.iter().zip(&power.layers) {
        assert_eq!((a.eigenvalues.len(), a.converged), (3, 3), "{a:?}");
        for (ours, theirs) in a.eigenvalues.iter().zip(&b.eigenvalues) {
            assert!((ours - theirs).abs() < 1e-3 * theirs.abs(), "layer {}: {ours} and {theirs}", a.layer);
        }
        assert!(a.iterations.iter().sum::<usize>() < b.iterations.iter().sum::<usize>(), "{a:?} {b:?}");
        let (mean, std) = (a.mean.abs(), a.std);
        assert!((a.omega - mean - std).abs() < 1e-12 && std > 0.0, "{a:?}");
        assert_eq!(a.trace, b.trace, "the same signs, the same trace");
    }
    let read = sensitivity::read(&home.path().join("lanczos").join(FILE)).unwrap();
    assert_eq!(read, lanczos);
}

/// A pass that ends with a crash: unwinding out of the middle, with the state as the last save left it.
#[test]
fn a_crash_after_any_pass_changes_no_byte() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let total = {
        let mut passes = 0;
        let mut count = |_| {
            passes += 1;
            ControlFlow::Continue(())
        };
        analyze_saving(&analysis(home.path(), "whole"), &compute(1), Duration::ZERO, &mut count).unwrap();
        passes
    };
    assert!(total > 20, "{total} passes are too few to be interrupted");
    let mut interrupted = analysis(home.path(), "crashed");
    interrupted.resume = true;
    let mut crashes = 0;
    // Fewer passes with every crash, so that each of several saves is picked up.
    for allowed in (1..=6).rev() {
        let mut passes = 0;
        let mut stop = |_: Step| {
            passes += 1;
            if passes == allowed {
                std::panic::resume_unwind(Box::new(()));
            }
            ControlFlow::Continue(())
        };
        let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            analyze_saving(&interrupted, &compute(2), Duration::ZERO, &mut stop).map(|_| ())
        }));
        crashes += usize::from(attempt.is_err());
    }
    assert_eq!(crashes, 6, "all attempts were to crash");
    // Asked to stop it stops, with everything written down, whatever the time since the last save.
    let mut asked = 0;
    let mut stop = |_: Step| {
        asked += 1;
        if asked == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = analyze_saving(&interrupted, &compute(1), Duration::from_secs(3600), &mut stop).unwrap_err();
    assert!(matches!(stopped, qbert_train::Error::Stopped { .. }), "{stopped}");
    assert_eq!(asked, 2);
    run(&interrupted, 1).unwrap();
    assert!(bytes(&interrupted.out) == bytes(&home.path().join("whole")));
    let left: Vec<_> = std::fs::read_dir(&interrupted.out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [FILE], "nothing but the result is left");
    // Finished already: the same answer at once, and not a pass more.
    let again = analyze_saving(&interrupted, &compute(1), Duration::ZERO, &mut |_| panic!("a pass")).unwrap();
    assert_eq!(whole(again), sensitivity::read(&interrupted.out.join(FILE)).unwrap());
}

/// Damages a file in many places; `resume` must refuse each of them.
fn never_accepts(path: &Path, resume: impl Fn() -> qbert_train::Result<()>) {
    let whole = std::fs::read(path).unwrap();
    for index in (0..whole.len()).step_by(whole.len() / 60 + 1).chain(0..8) {
        let mut damaged = whole.clone();
        damaged[index] ^= 1 << (index % 8);
        for (what, bytes) in [("byte", &damaged[..]), ("cut to", &whole[..index])] {
            std::fs::write(path, bytes).unwrap();
            let refused = resume().expect_err(&format!("{what} {index}"));
            assert!(matches!(refused, qbert_train::Error::State { .. }), "{what} {index}: {refused}");
            assert!(refused.hint().unwrap().contains(&format!("delete {}", path.display())), "{refused}");
        }
    }
    std::fs::write(path, &whole).unwrap();
    resume().unwrap();
}

/// Issue 17, point 19.
#[test]
fn a_damaged_state_or_part_of_an_analysis_is_never_used() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let mut job = analysis(home.path(), "out");
    let mut passes = 0;
    let mut stop = |_: Step| {
        passes += 1;
        if passes == 12 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(analyze_saving(&job, &compute(1), Duration::ZERO, &mut stop).is_err());
    job.resume = true;
    never_accepts(&job.out.join("analysis.safetensors"), || run(&job, 1).map(|_| ()));

    let mut shard = analysis(home.path(), "shards");
    for part in [1, 2] {
        shard.shard = Shard { part, of: 2 };
        run(&shard, 1).unwrap();
    }
    let parts = parts_in(&shard.out).unwrap();
    never_accepts(&parts[0], || merge(&parts, &shard.out).map(|_| ()));
}

/// Issue 17, point 21.
#[test]
fn an_analysis_has_its_directory_to_itself_and_shards_share_one() {
    use qbert_model::lock::DirectoryLock;
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let mut job = analysis(home.path(), "out");
    std::fs::create_dir(&job.out).unwrap();
    let shard_elsewhere = DirectoryLock::shared(&job.out).unwrap();
    let said = run(&job, 1).unwrap_err().to_string();
    assert!(said.contains("is at work in this directory"), "{said}");
    job.shard = Shard { part: 1, of: 2 };
    run(&job, 1).unwrap();
    drop(shard_elsewhere);
    let _whole_elsewhere = DirectoryLock::exclusive(&job.out).unwrap();
    job.shard = Shard { part: 2, of: 2 };
    let said = run(&job, 1).unwrap_err().to_string();
    assert!(said.contains("is at work in this directory"), "{said}");
}

#[test]
fn shards_merge_to_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    run(&analysis(home.path(), "whole"), 1).unwrap();
    for of in [2, 4] {
        let out = format!("shards-{of}");
        for part in (1..=of).rev() {
            let mut shard = analysis(home.path(), &out);
            shard.shard = Shard { part, of };
            assert!(matches!(run(&shard, part).unwrap(), Outcome::Part(_)));
        }
        let directory = home.path().join(&out);
        let parts = parts_in(&directory).unwrap();
        assert_eq!(parts.len(), of);
        let incomplete = merge(&parts[1..], &directory).unwrap_err().to_string();
        assert!(incomplete.contains("run 0, layer 0"), "{incomplete}");
        let twice: Vec<PathBuf> = parts.iter().chain(&parts[..1]).cloned().collect();
        let doubled = merge(&twice, &directory).unwrap_err().to_string();
        assert!(doubled.contains("earlier part"), "{doubled}");
        merge(&parts, &directory).unwrap();
        assert!(bytes(&directory) == bytes(&home.path().join("whole")), "{of} shards");
    }
    let mut other = analysis(home.path(), "other");
    other.settings.seed = 6;
    other.shard = Shard { part: 1, of: 2 };
    run(&other, 1).unwrap();
    let mixed =
        [home.path().join("other/sensitivity.1-of-2.json"), home.path().join("shards-2/sensitivity.2-of-2.json")];
    let error = merge(&mixed, home.path()).unwrap_err().to_string();
    assert!(error.contains("another analysis") && error.contains("\"seed\":6"), "{error}");
    assert!(merge(&[], home.path()).unwrap_err().to_string().contains("no part"));
}

/// Hutchinson's mean over many signs is the sum of the diagonal, which products with unit vectors give one by one.
#[test]
fn the_trace_is_that_of_the_dense_block() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let mut job = analysis(home.path(), "trace");
    job.settings = Settings { runs: 1, fraction: 1.0, max_examples: None, trace: 600, ..job.settings };
    job.settings.stop.iterations = 1;
    let found = whole(run(&job, 2).unwrap());
    let loaded = Loaded::open(&job.model, &job.data).unwrap();
    let all: Vec<usize> = (0..loaded.data.features.len()).collect();
    let batch = loaded.data.features.batch(&all, true).unwrap();
    let (compute, layer) = (compute(2), 1);
    let point = Point { bert: &loaded.bert, compute: &compute, weights: loaded.weights.values(), batch: &batch };
    let mut pass = HessianPass::new();
    pass.prepare(point, layer, 1.0);
    let size = loaded.bert.layout().layers()[layer].len();
    let (mut trace, mut squares) = (0.0, 0.0);
    for column in 0..size {
        let (mut unit, mut product) = (vec![0.0; size], vec![0.0; size]);
        unit[column] = 1.0;
        pass.product(point, layer, &unit, &mut product);
        trace += f64::from(product[column]);
        squares += product.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
    }
    // The variance of one sample is at most twice the squared Frobenius norm.
    let error = (2.0 * squares / 600.0).sqrt();
    let estimate = found.layers[layer].trace.unwrap() * size as f64;
    assert!((estimate - trace).abs() < 4.0 * error, "{estimate} where the diagonal sums to {trace} (± {error})");
    assert!(error < 0.2 * trace.abs(), "an error of {error} shows nothing about a trace of {trace}");
}

#[test]
fn misuse_is_refused() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let message = |job: &Analysis| run(job, 1).unwrap_err().to_string();
    run(&analysis(home.path(), "done"), 1).unwrap();
    assert!(message(&analysis(home.path(), "done")).contains("already"));
    let mut other = analysis(home.path(), "done");
    other.resume = true;
    other.settings.runs = 4;
    assert!(message(&other).contains("other settings"), "{}", message(&other));
    let mut headless = analysis(home.path(), "headless");
    headless.data.task = Task::Squad;
    assert!(message(&headless).contains("head"), "{}", message(&headless));
    type Spoil = fn(&mut Settings);
    let settings: [(&str, Spoil); 5] = [
        ("`analysis.runs`", |s| s.runs = 0),
        ("`analysis.fraction`", |s| s.fraction = 1.5),
        ("`analysis.max_examples`", |s| s.max_examples = Some(0)),
        ("`analysis.stop.iterations`", |s| s.stop.iterations = 0),
        ("`analysis.stop.tolerance`", |s| s.stop.tolerance = 0.0),
    ];
    for (setting, spoil) in settings {
        let mut wrong = analysis(home.path(), "wrong");
        spoil(&mut wrong.settings);
        assert!(message(&wrong).starts_with(setting), "{}", message(&wrong));
    }
    for (text, problem) in [
        ("{", "not valid JSON"),
        ("{}", "not a qbert-sensitivity file"),
        (r#"{"format": "qbert-sensitivity", "version": 9}"#, "version 9"),
        (r#"{"format": "qbert-sensitivity", "version": 1}"#, "missing field `layers`"),
        (r#"{"format": "qbert-sensitivity", "version": 1, "layers": []}"#, "there are no layers"),
    ] {
        let path = home.path().join("bad.json");
        std::fs::write(&path, text).unwrap();
        let error = sensitivity::read(&path).unwrap_err().to_string();
        assert!(error.contains("bad.json") && error.contains(problem), "{error}");
    }
}

/// Near the middle the surface is the parabola that the eigenvalues say, and the middle is the model's own loss.
#[test]
fn a_landscape_bends_as_its_eigenvalues_say() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let analysis = analysis(home.path(), "");
    let settings = landscape::Settings {
        points: 5,
        extent: 0.02,
        max_examples: Some(40),
        stop: Stop { iterations: 100, tolerance: 1e-4 },
        seed: 2,
    };
    let Analysis { model, data, .. } = analysis;
    let job = landscape::Job { model, data, layers: vec![1, 0], settings };
    let found = landscapes(&job, &compute(2), &mut |_, _, _| {}).unwrap();
    assert_eq!(found.layers.iter().map(|layer| layer.layer).collect::<Vec<_>>(), [1, 0]);
    for layer in &found.layers {
        let grid = layer;
        assert_eq!((grid.rows.len(), grid.losses.len(), grid.losses[0].len()), (5, 5, 5));
        assert_eq!(grid.losses[2][2], found.loss);
        let step = grid.rows[3];
        let along = [(3, 2, 1, 2), (2, 3, 2, 1)]
            .map(|(a, b, c, d)| (grid.losses[a][b] + grid.losses[c][d] - 2.0 * grid.losses[2][2]) / (step * step));
        for (bend, value) in along.iter().zip(&layer.eigenvalues) {
            let scale = layer.eigenvalues[0].abs();
            assert!((bend - value).abs() < 0.02 * scale, "layer {}: {bend} instead of {value}", layer.layer);
        }
    }
    let outside = landscape::Job { layers: vec![3], ..job };
    let error = landscapes(&outside, &compute(1), &mut |_, _, _| {}).unwrap_err().to_string();
    assert!(error.starts_with("`landscape.layers` is 3"), "{error}");
}
