//! Quantizing as a user runs it: killed without warning and resumed, evaluated, asked for the impossible.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{kill_at, prepare_with, stderr};
use qbert_model::Head;
use qbert_quant::{GroupSpec, Plan, Precision, RangeMethod};

/// A small classifier, data it can learn, and two plans.
fn prepare(home: &Path) {
    prepare_with(home, Head::SequenceClassification, &["negative", "positive"]);
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
        let output = run(&out, "2").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        for name in FILES {
            let bytes = |out: &str| std::fs::read(home.path().join(out).join(name)).unwrap();
            assert!(bytes(&out) == bytes("whole"), "{name}, round {round}");
        }
    }
    assert!(kills > 0, "no run was killed: all were faster than the watching");
    // Killed after its last step but before packing: it has nothing to train any more, and packs.
    std::fs::remove_file(home.path().join("whole/model.qbert")).unwrap();
    let again = run("whole", "2").output().unwrap();
    assert!(again.status.success(), "{}", stderr(&again));
    assert_eq!(String::from_utf8_lossy(&again.stdout), said, "and says what it said");
    assert!(home.path().join("whole/model.qbert").exists());
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
    assert!(stderr(&again).contains("the directory already holds a run"), "{}", stderr(&again));
}

#[test]
fn what_cannot_be_done_is_refused_and_nothing_is_written() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let cases: [(&[&str], &str); 8] = [
        (&["--plan", "other.toml"], "error: the plan is for 12 encoder layers, the model has 2\nhint: use a plan with"),
        (&["--plan", "nowhere.toml"], "error: nowhere.toml: cannot read the plan"),
        (&["--plan", "plan.toml", "--range", "maximal"], "error: --range: \"maximal\" is not a range method"),
        (&["--plan", "plan.toml", "--range-batches", "0"], "error: --range-batches is 0: at least 1 batch"),
        (&["--plan", "plan.toml", "--distill", "1,1,-1,1"], "error: --distill is -1: a weight of the loss"),
        (&["--plan", "plan.toml", "--temperature", "0"], "error: --temperature is 0: it must be above 0"),
        (&["--plan", "plan.toml", "--temperature", "-1"], "error: --temperature is -1: it must be above 0"),
        (&["--plan", "plan.toml", "--range-freeze", "2"], "error: --range-freeze is 2: it is a share of the steps"),
    ];
    for (arguments, expected) in cases {
        let output = quantize(home.path(), "out", arguments).output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
        assert!(!home.path().join("out").exists(), "{arguments:?}");
    }
}
