//! Lines without an end: every reader refuses them by file and line, before they fill the memory.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::io::Write;

use qbert_tasks::files::LONGEST_LINE;
use qbert_tasks::{ReadOptions, Task, read};

/// A file whose line 2 is longer than allowed.
fn refusal(name: &str, first: &str, task: Task, filler: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    file.write_all(first.as_bytes()).unwrap();
    for _ in 0..=LONGEST_LINE / filler.len() {
        file.write_all(filler).unwrap();
    }
    file.into_inner().unwrap().sync_all().unwrap();
    let options = ReadOptions { require_labels: false, ..ReadOptions::default() };
    let error = read(task, &[&path], &options).expect_err("refused").to_string();
    error.replace(&path.display().to_string(), name)
}

#[test]
fn point_18_an_endless_line_is_refused_by_every_reader() {
    let user = "classify".parse().unwrap();
    for (name, first, task) in [
        ("data.tsv", "text\tlabel\n", user),
        ("data.csv", "text,label\n", user),
        ("data.jsonl", "{\"text\": \"x\"}\n", user),
        ("data.conll", "Mira B-PER\n", Task::Conll03),
    ] {
        assert_eq!(refusal(name, first, task, &[b'x'; 4096]), format!("{name}:2: more than 16 MiB"));
    }
    // A csv field may have line breaks, so a quote that is never closed is an endless record.
    let mut quoted = vec![b'x'; 4095];
    quoted.push(b'\n');
    assert_eq!(refusal("open.csv", "text,label\n\"", user, &quoted), "open.csv:2: more than 16 MiB");
}

#[test]
fn point_24c_numbers_of_any_length_are_ids_as_they_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.jsonl");
    let ids = ["18446744073709551617", "-9223372036854775809", "340282366920938463463374607431768211456", "7"];
    let lines: String = ids.iter().map(|id| format!("{{\"id\": {id}, \"text\": \"x\"}}\n")).collect();
    std::fs::write(&path, lines).unwrap();
    let options = ReadOptions { require_labels: false, ..ReadOptions::default() };
    let qbert_tasks::Dataset::Classify(data) = read("classify".parse().unwrap(), &[&path], &options).unwrap() else {
        panic!("a classification data set");
    };
    let found: Vec<&str> = data.examples.iter().map(|example| example.id.as_str()).collect();
    assert_eq!(found, ids);
    std::fs::write(&path, "{\"id\": 1.5, \"text\": \"x\"}\n").unwrap();
    let error = read("classify".parse().unwrap(), &[&path], &options).unwrap_err().to_string();
    assert!(error.contains("\"id\" is the number 1.5, not a string or whole number"), "{error}");
}
