//! Figures and models come with the CPU and the kernels that compute them.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{qbert, stderr};
use qbert_kernels::{Kernels, Machine};
use serde_json::Value;

/// Runs the command with kernels that every CPU has.
fn portable(home: &Path, arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.current_dir(home).args(arguments.split_whitespace()).env("QBERT_KERNELS", "portable");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn assert_names_the_machine(text: &str, kernels: &str) {
    let found: Value = serde_json::from_str(text).unwrap();
    let machine = Machine::here();
    assert_eq!((&found["kernels"], &found["cpu"]), (&kernels.into(), &machine.name().into()), "{text}");
    assert_eq!(found["cpu_features"], serde_json::json!(machine.features()), "{text}");
}

#[test]
fn bench_and_inspect_name_the_cpu_and_its_kernels() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny-bert").canonicalize().unwrap();
    let model = model.display();
    let named = "kernels portable+portable on ";

    let infer = "--work A --threads 1 --budget 0 --runs 1";
    let measured = portable(home, &format!("bench infer --model {model} --bits 4 {infer} --save m.qbert --json -q"));
    assert_names_the_machine(&measured, "portable+portable");
    // The saved file is the model that was measured.
    let again = portable(home, &format!("bench infer --model m.qbert {infer} --json"));
    assert_names_the_machine(&again, "portable+portable");
    let [measured, again] = [measured, again].map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!((&again["bits"], &again["file_bytes"], &again["n"]), (&"4".into(), &measured["file_bytes"], &1.into()));
    let text = portable(home, &format!("bench infer --model m.qbert {infer}"));
    assert!(text.starts_with(named) && text.contains("A 1x32, 1 threads: "), "{text}");
    let refused = qbert(home, "bench infer --model m.qbert --save other.qbert");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--save: the model is packed already"), "{}", stderr(&refused));

    for model in ["m.qbert".to_owned(), model.to_string()] {
        assert_names_the_machine(&portable(home, &format!("inspect {model} --json")), "portable+portable");
        let text = portable(home, &format!("inspect {model}"));
        let lines = format!("\n  kernels     portable+portable\n  CPU         {}\n", Machine::here());
        assert!(text.contains(&lines), "{text}");
    }
    if std::env::var_os("QBERT_KERNELS").is_none() {
        let found = common::succeed(home, "inspect m.qbert --json");
        assert_names_the_machine(&found, &Kernels::best().to_string());
    }
}
