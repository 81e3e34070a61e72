//! The scripts of `examples/` as a user runs them: own labels, own entity types, own questions; and the example program that
//! embeds the runtime.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs an example's script into a temporary directory; returns what it prints and its summary.
fn run(name: &str) -> (String, Value, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    let script = root().join("examples").join(name).join("run.sh");
    let output =
        Command::new("sh").arg(script).env("QBERT", env!("CARGO_BIN_EXE_qbert")).env("OUT", &out).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let summary = serde_json::from_slice(&std::fs::read(out.join("summary.json")).unwrap()).unwrap();
    for name in ["model.qbert", "report.html", "README.md", "plan.toml"] {
        assert!(out.join(name).exists(), "{name}");
    }
    (said, summary, home)
}

/// The trained model's figure, in percent.
fn figure(summary: &Value) -> f64 {
    summary["trained"].as_f64().or(summary["post_training"].as_f64()).unwrap()
}

#[test]
fn three_classes_of_ones_own() {
    let (said, summary, _home) = run("classify");
    assert!(figure(&summary) > 80.0, "{summary}");
    let answers: Vec<&str> = said.lines().rev().take(2).collect();
    assert!(answers[1].starts_with("icy") && answers[0].starts_with("muddy"), "{said}");
}

#[test]
fn entity_types_of_ones_own() {
    let (said, summary, _home) = run("ner");
    assert_eq!(summary["metric"], "f1");
    assert!(figure(&summary) > 80.0, "{summary}");
    assert!(said.contains("BIRD  barn owl") && said.contains("SPOT  Mill Pond"), "{said}");
}

#[test]
fn questions_of_ones_own() {
    let (said, summary, home) = run("qa");
    assert_eq!((&summary["task"], &summary["metric"]), (&"qa".into(), &"f1".into()));
    assert!(figure(&summary) > 30.0, "{summary}");
    assert!(said.contains("When does the ferry Cora leave ?"), "{said}");
    let card = std::fs::read_to_string(home.path().join("run/README.md")).unwrap();
    assert!(card.contains("pipeline_tag: question-answering"), "{card}");
}

#[test]
fn the_tiny_model_is_small_and_holds_no_data() {
    let folder = root().join("examples/tiny-bert");
    let total: u64 = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(total < 200_000, "{total} bytes");
}
