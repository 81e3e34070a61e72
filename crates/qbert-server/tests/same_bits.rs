//! An answer has the same bytes whatever it was computed with.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use common::start;
use serde_json::{Value, json};

/// Requests to every kind of model, of one token to several windows.
fn requests() -> Vec<(&'static str, Value)> {
    let words = ["the", "owl", "of", "ostby", "saw", "two", ",", ".", "who", "?"];
    let mut requests = Vec::new();
    for number in 0..40_usize {
        let text: Vec<&str> =
            (0..(number * 7) % 90 + 1).map(|word| words[(word * word + number) % words.len()]).collect();
        let text = text.join(" ");
        requests.push(("/models/labels/predict", json!({ "inputs": text })));
        requests.push(("/models/entities/entities", json!({ "inputs": text })));
        requests.push(("/models/answers/answer", json!({ "inputs": { "question": "who saw ?", "context": text } })));
        requests.push(("/models/vectors/embed", json!({ "inputs": [text, "two owls"] })));
        requests.push(("/models/vectors/embed_all", json!({ "inputs": text })));
        requests
            .push(("/models/ranks/rerank", json!({ "query": "the owl", "texts": [text, "owl"], "raw_scores": true })));
    }
    requests
}

#[test]
fn alone_or_in_a_crowd() {
    let (server, requests) = (start(), requests());
    let answer = |(path, body): &(&str, Value)| {
        let response = server.post(path, body);
        assert_eq!(response.status, 200, "{}", response.text());
        response.body
    };
    let alone: Vec<Vec<u8>> = requests.iter().map(answer).collect();
    let batches_alone = batched(&server);
    std::thread::scope(|scope| {
        for client in 0..16_usize {
            let (requests, alone, answer) = (&requests, &alone, &answer);
            scope.spawn(move || {
                for step in 0..requests.len() {
                    // Every client has an order of its own, so that neighbours change.
                    let index = (step * (2 * client + 1) + client * 17) % requests.len();
                    assert_eq!(answer(&requests[index]), alone[index], "request {index} of client {client}");
                }
            });
        }
    });
    let (batches, sequences) = batched(&server);
    let (batches, sequences) = (batches - batches_alone.0, sequences - batches_alone.1);
    assert!(sequences > 1.05 * batches, "nothing was batched: {sequences} sequences in {batches} batches");
}

/// The number of batches and of their sequences so far.
fn batched(server: &common::Running) -> (f64, f64) {
    let metrics = server.get("/metrics").text();
    let value =
        |name: &str| -> f64 { metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap() };
    (value("qbert_batch_sequences_count "), value("qbert_batch_sequences_sum "))
}
