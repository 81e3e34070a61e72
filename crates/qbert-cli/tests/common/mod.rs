//! A small model, data and a way to run (and kill) the command: what tests of the command line share.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]
#![allow(dead_code, reason = "every test file takes what it needs")]

pub(crate) mod home;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use qbert_model::{Config, Head, ParameterLayout, Parameters, TokenizerFiles, write_checkpoint};

const WORDS: [&str; 8] = ["good", "bad", "a", "the", "film", "plot", "very", "is"];

/// A small bare encoder and data whose label is which of the first two words occurs.
pub(crate) fn prepare(home: &Path) {
    prepare_with(home, Head::None, &[]);
}

/// The same with a head for these labels.
pub(crate) fn prepare_with(home: &Path, head: Head, labels: &[&str]) {
    let config = br#"{"model_type": "bert", "vocab_size": 13, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 16, "type_vocab_size": 2}"#;
    let config = Config::parse(config, Path::new("config.json")).unwrap();
    let layout = ParameterLayout::new(&config, head, labels.len(), true);
    let mut parameters = Parameters::zeros(layout.into());
    qbert_train::random::Stream::new(1, "test", 0).fill_normal(parameters.values_mut(), 0.1);
    let vocabulary = format!("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{}\n", WORDS.join("\n"));
    std::fs::create_dir(home.join("tokenizer")).unwrap();
    std::fs::write(home.join("tokenizer/vocab.txt"), vocabulary).unwrap();
    let tokenizer = TokenizerFiles::read(&home.join("tokenizer")).unwrap();
    let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
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
}

/// Runs the command; arguments are split at spaces.
pub(crate) fn qbert(home: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.current_dir(home).args(arguments.split_whitespace()).output().unwrap()
}

/// Runs a command that must succeed; returns what it prints.
pub(crate) fn succeed(home: &Path, arguments: &str) -> String {
    let output = qbert(home, arguments);
    assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must be refused; returns what it says.
pub(crate) fn fail(home: &Path, arguments: &str) -> String {
    let output = qbert(home, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {}", stderr(&output));
    stderr(&output)
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether the training log in a directory is there and has this many lines.
pub(crate) fn has_logged(out: &Path, steps: usize) -> bool {
    let log = std::fs::read(out.join("train.jsonl"));
    log.is_ok_and(|log| log.iter().filter(|&&byte| byte == b'\n').count() >= steps)
}

/// Starts the command and kills it when the run in `out` has logged this many steps; false if it was done before.
pub(crate) fn kill_at(command: &mut Command, out: &Path, steps: usize) -> bool {
    kill_when(command, || has_logged(out, steps))
}

/// Starts the command and kills it at a moment; false if it was done before.
pub(crate) fn kill_when(command: &mut Command, mut moment: impl FnMut() -> bool) -> bool {
    let mut child = command.spawn().unwrap();
    loop {
        if moment() {
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

/// All files below a directory, without the times.
pub(crate) fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(directory).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name != "times.jsonl" {
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}
