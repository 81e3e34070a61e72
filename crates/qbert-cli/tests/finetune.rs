//! Fine-tuning as a user runs it: killed without warning and resumed, evaluated, asked for the impossible.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{kill_at, prepare, stderr};

fn finetune(home: &Path, out: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.current_dir(home).args(["finetune", "--model", "model", "--task", "sst2", "--train", "train.tsv"]);
    command.args(["--dev", "dev.tsv", "--epochs", "12", "--batch", "8", "--lr", "2e-3", "--max-len", "16"]);
    command.args(["--out", out]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn killed_at_any_moment_and_resumed_it_ends_with_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let whole = finetune(home.path(), "whole", &["--threads", "1"]).output().unwrap();
    assert!(whole.status.success(), "{}", stderr(&whole));
    let said = String::from_utf8_lossy(&whole.stdout).into_owned();
    assert!(said.contains("dev accuracy 100.00"), "{said}");
    let bytes = |out: &str| std::fs::read(home.path().join(out).join("model.safetensors")).unwrap();
    let mut kills = 0;
    // Killed when the log has reached these steps (of 360), at once or one after the other.
    for (round, steps) in
        [vec![1], vec![29], vec![95, 96, 200], vec![5, 40, 150, 333], vec![359]].into_iter().enumerate()
    {
        let out = format!("killed-{round}");
        for step in steps {
            kills += usize::from(kill_at(
                &mut finetune(home.path(), &out, &["--resume", "--threads", "2"]),
                &home.path().join(&out),
                step,
            ));
        }
        if home.path().join(&out).join("resume.safetensors").exists() {
            let output = finetune(home.path(), &out, &["--resume", "--threads", "2"]).output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
        }
        assert!(bytes(&out) == bytes("whole"), "round {round}");
        let files = std::fs::read_dir(home.path().join(&out)).unwrap().map(|entry| entry.unwrap().file_name());
        let litter: Vec<String> = files
            .map(|name| name.into_string().unwrap())
            .filter(|name| name.starts_with("resume") || name.starts_with('.'))
            .collect();
        assert!(litter.is_empty(), "{litter:?}");
    }
    assert!(kills > 0, "no run was killed: all were faster than the watching");
}

#[test]
fn a_finished_run_evaluates_and_is_not_overwritten() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let first = finetune(home.path(), "out", &["--epochs", "3"]);
    // The last --epochs wins in no command line: clap refuses it, and says so.
    let output = { first }.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let output = finetune(home.path(), "out", &["--json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["steps"], 360);
    let again = finetune(home.path(), "out", &[]).output().unwrap();
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("the directory already holds a run"), "{}", stderr(&again));
    assert!(stderr(&again).contains("hint: --resume with the settings"), "{}", stderr(&again));

    let eval = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
        command.current_dir(home.path()).args(["eval", "out", "--data", "dev.tsv"]).args(arguments).output().unwrap()
    };
    let output = eval(&["--task", "sst2", "--max-len", "16", "--json", "--predictions", "answers.jsonl"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["value"], outcome["best"]);
    let answers = std::fs::read_to_string(home.path().join("answers.jsonl")).unwrap();
    assert_eq!(answers.lines().count(), 60);
    let answer: serde_json::Value = serde_json::from_str(answers.lines().next().unwrap()).unwrap();
    assert!(["negative", "positive"].contains(&answer["label"].as_str().unwrap()), "{answer}");
    let other = eval(&["--task", "ner", "--max-len", "16"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr(&other).contains("the task ner needs a token classification head"), "{}", stderr(&other));
    // The task's usual length is cut to what the model has; one that was asked for is not.
    let usual = eval(&["--task", "sst2"]);
    assert!(usual.status.success(), "{}", stderr(&usual));
    assert!(String::from_utf8_lossy(&usual.stdout).contains("on 60 examples (full precision)"));
    let long = eval(&["--task", "sst2", "--max-len", "17"]);
    assert_eq!(long.status.code(), Some(2));
    assert!(stderr(&long).contains("--max-len is 17") && stderr(&long).contains("at most 16"), "{}", stderr(&long));
}
