//! Quantizing as a user runs it: killed without warning and resumed, evaluated, asked for the impossible.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use qbert::model::{Config, Head, Layout, Parameters, TokenizerFiles, write_checkpoint};
use qbert::quant::{GroupSpec, Plan, Precision, RangeMethod};

const WORDS: [&str; 8] = ["good", "bad", "a", "the", "film", "plot", "very", "is"];

/// A small classifier, data whose label is which of the first two words occurs, and two plans.
fn prepare(home: &Path) {
    let config = br#"{"model_type": "bert", "vocab_size": 13, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 16, "type_vocab_size": 2}"#;
    let config = Config::parse(config, Path::new("config.json")).unwrap();
    let layout = Layout::new(&config, Head::SequenceClassification, 2, true);
    let mut parameters = Parameters::zeros(layout.into());
    qbert::train::random::Stream::new(1, "test", 0).fill_normal(parameters.values_mut(), 0.1);
    let vocabulary = format!("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{}\n", WORDS.join("\n"));
    std::fs::create_dir(home.join("tokenizer")).unwrap();
    std::fs::write(home.join("tokenizer/vocab.txt"), vocabulary).unwrap();
    let tokenizer = TokenizerFiles::read(&home.join("tokenizer")).unwrap();
    let labels = ["negative".to_owned(), "positive".to_owned()];
    write_checkpoint(&home.join("model"), &config, &parameters, &labels, &tokenizer).unwrap();
    for (name, count, shift) in [("train.tsv", 240, 0), ("dev.tsv", 60, 5)] {
        let mut text = "sentence\tlabel\n".to_owned();
        for i in 0..count {
            let filler = |k: usize| WORDS[2 + (i * 5 + k * 3 + shift) % 6];
            let label = (i * 7 + shift) % 2;
            writeln!(text, "{} {} {} {}\t{label}", filler(0), WORDS[1 - label], filler(1), filler(2)).unwrap();
        }
        std::fs::write(home.join(name), text).unwrap();
    }
    for (name, layers) in [("plan.toml", 2), ("other.toml", 12)] {
        let bits = Precision::from_number(3).unwrap();
        let plan = Plan::uniform(layers, bits, GroupSpec::Count(8), RangeMethod::Mse);
        std::fs::write(home.join(name), plan.to_toml()).unwrap();
    }
}

fn quantize(home: &Path, out: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.current_dir(home).args(["quantize", "--model", "model", "--task", "sst2", "--train", "train.tsv"]);
    command.args(["--dev", "dev.tsv", "--batch", "8", "--lr", "2e-3", "--max-len", "16", "--out", out]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const FILES: [&str; 5] = ["model.safetensors", "ranges.safetensors", "activations.json", "metrics.json", "train.jsonl"];

#[test]
fn killed_at_any_moment_and_resumed_it_ends_with_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let run = |out: &str, threads| {
        quantize(home.path(), out, &["--plan", "plan.toml", "--epochs", "6", "--resume", "--threads", threads])
    };
    let whole = run("whole", "1").output().unwrap();
    assert!(whole.status.success(), "{}", stderr(&whole));
    let said = String::from_utf8_lossy(&whole.stdout).into_owned();
    assert!(said.contains("full precision ") && said.contains("quantized without training "), "{said}");
    assert!(said.starts_with("whole: dev accuracy 100.00"), "{said}");
    let mut kills = 0;
    // Killed when the log has reached these steps (of 180): before the first, while ranges are learned, and after.
    for (round, steps) in [vec![0], vec![1, 20], vec![35, 95, 170], vec![179]].into_iter().enumerate() {
        let out = format!("killed-{round}");
        for step in steps {
            kills += usize::from(kill_at(&mut run(&out, "2"), &home.path().join(&out), step));
        }
        let exists = |name: &str| home.path().join(&out).join(name).exists();
        if exists("resume.safetensors") || !exists("model.safetensors") {
            let output = run(&out, "2").output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
        }
        for name in FILES {
            let bytes = |out: &str| std::fs::read(home.path().join(out).join(name)).unwrap();
            assert!(bytes(&out) == bytes("whole"), "{name}, round {round}");
        }
    }
    assert!(kills > 0, "no run was killed: all were faster than the watching");
}

/// Starts the command and kills it when the run in `out` has logged this many steps; false if it was done before.
fn kill_at(command: &mut Command, out: &Path, steps: usize) -> bool {
    let mut child = command.spawn().unwrap();
    loop {
        let log = std::fs::read(out.join("train.jsonl"));
        if log.is_ok_and(|log| log.iter().filter(|&&byte| byte == b'\n').count() >= steps) {
            child.kill().unwrap();
            child.wait().unwrap();
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn calibration_alone_writes_a_checkpoint_that_evaluates_as_quantized() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let output = quantize(home.path(), "out", &["--plan", "plan.toml", "--epochs", "0", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&outcome["steps"], &outcome["best_epoch"]), (&0.into(), &0.into()));
    let value = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
        command.current_dir(home.path()).args([
            "eval",
            "out",
            "--task",
            "sst2",
            "--data",
            "dev.tsv",
            "--max-len",
            "16",
        ]);
        let output = command.args(["--json"]).args(more).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["value"].clone()
    };
    assert_eq!(value(&[]), outcome["before"]["post_training"]);
    assert_eq!(value(&["--masters"]), outcome["before"]["full_precision"]);
    let again = quantize(home.path(), "out", &["--plan", "plan.toml", "--epochs", "0"]).output().unwrap();
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("the directory holds a run already"), "{}", stderr(&again));
}

#[test]
fn what_cannot_be_done_is_refused_and_nothing_is_written() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let cases: [(&[&str], &str); 6] = [
        (&["--plan", "other.toml"], "error: the plan is for 12 encoder layers, the model has 2\nhint: use a plan with"),
        (&["--plan", "nowhere.toml"], "error: nowhere.toml: cannot read the plan"),
        (&["--plan", "plan.toml", "--range", "maximal"], "error: --range: \"maximal\" is no range method"),
        (&["--plan", "plan.toml", "--range-batches", "0"], "error: --range-batches is 0: at least 1 batch"),
        (&["--plan", "plan.toml", "--distill", "1,1,-1,1"], "error: --distill is -1: a weight of the loss"),
        (&["--plan", "plan.toml", "--range-freeze", "2"], "error: --range-freeze is 2: it is a share of the steps"),
    ];
    for (arguments, expected) in cases {
        let output = quantize(home.path(), "out", arguments).output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
        assert!(!home.path().join("out").exists(), "{arguments:?}");
    }
}
