//! A thousand bad requests: each gets a 4xx or a closed connection, and the server lives.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use common::{Response, Running, start_with};
use serde_json::json;

/// A stream of numbers without a pattern, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % most.max(1)
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

const POSTS: [&str; 14] = [
    "/",
    "/predict",
    "/embed",
    "/embed_all",
    "/rerank",
    "/similarity",
    "/tokenize",
    "/entities",
    "/answer",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/models/labels/infer",
    "/models/vectors/embed",
    "/models/answers/answer",
];

/// JSON that is whole but no request.
const WRONG: [&str; 18] = [
    "{}",
    "[]",
    "null",
    "7",
    "\"inputs\"",
    r#"{"inputs": null}"#,
    r#"{"inputs": 7}"#,
    r#"{"inputs": []}"#,
    r#"{"inputs": [[]]}"#,
    r#"{"inputs": {"question": 1}}"#,
    r#"{"inputs": [["a", "b", "c"]]}"#,
    r#"{"input": [1, 2, 3]}"#,
    r#"{"query": "a", "texts": "b"}"#,
    r#"{"inputs": "a", "model": {"name": "labels"}}"#,
    r#"{"inputs": "a", "model": 7}"#,
    r#"{"inputs": "a", "model": "nobody", "query": "a"}"#,
    r#"{"inputs": [{"name": "text", "shape": [18446744073709551615], "datatype": "BYTES", "data": []}]}"#,
    r#"{"inputs": {"source_sentence": "a", "sentences": []}}"#,
];

const PATHS: [&str; 12] = [
    "/../etc/passwd",
    "/docs/../../etc/passwd",
    "/docs/%2e%2e%2fCargo.toml",
    "//predict",
    "/predict/",
    "/%00",
    "/models//info",
    "/models/nobody/info",
    "/v1/models/%ff%fe",
    "/v2/models/..%2f/infer",
    "/docs/nothing.js",
    "/predict;x=1",
];

/// Sends one bad request and returns the response, if there is one.
fn send(server: &Running, random: &mut Random, kind: usize) -> Option<Response> {
    let path = random.pick(&POSTS);
    let json_type = [("Content-Type", "application/json")];
    match kind {
        0 => Some(server.request("POST", path, &json_type, random.pick(&WRONG).as_bytes())),
        1 => {
            // A good request that is cut off somewhere.
            let whole =
                json!({ "inputs": "two owls", "input": "two owls", "query": "owl", "texts": ["a"] }).to_string();
            Some(server.request("POST", path, &json_type, &whole.as_bytes()[..random.below(whole.len() - 1)]))
        }
        2 => {
            let noise: Vec<u8> = (0..random.below(400)).map(|_| random.below(256) as u8).collect();
            Some(server.request("POST", path, &json_type, &noise))
        }
        3 => Some(server.request("POST", path, &json_type, "[".repeat(random.below(100_000) + 200).as_bytes())),
        4 => Some(server.request("POST", path, &json_type, b"{\"inputs\": \"\\ud800\", \"input\": \"\xc3\x28\"}")),
        5 => {
            let huge = "a".repeat(300_000);
            Some(server.request(
                "POST",
                path,
                &json_type,
                json!({ "inputs": huge, "input": huge }).to_string().as_bytes(),
            ))
        }
        6 => Some(server.request(
            random.pick(&["GET", "POST", "PUT", "DELETE", "BREW"]),
            random.pick(&PATHS),
            &json_type,
            b"{",
        )),
        7 => Some(server.request(random.pick(&["DELETE", "PUT", "PATCH", "BREW"]), path, &json_type, b"{}")),
        8 => {
            // The body breaks off and the socket is half closed.
            let mut stream = server.connect();
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{{\"inputs\""
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            Response::read(&mut stream)
        }
        9 => {
            // A head that is no head.
            let lines = [
                "GET\r\n\r\n",
                "\x16\x03\x01\x02\x00\x01\x00",
                "GET / HTTP/9.9\r\n\r\n",
                "POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                "POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
                "GET / HTTP/1.1\r\nX: \u{0}\r\n\r\n",
                "POST /embed HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
            ];
            let mut stream = server.connect();
            let _ = stream.write_all(random.pick(&lines).as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
            Response::read(&mut stream)
        }
        10 => server.raw(format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(200_000)).as_bytes()),
        11 => Some(server.request(
            "POST",
            path,
            &[("Content-Type", "application/json"), ("Content-Encoding", "gzip")],
            b"\x1f\x8b{}",
        )),
        12 => Some(server.request(
            "POST",
            path,
            &[("Content-Type", "text/plain"), ("Inference-Header-Content-Length", "99999999999")],
            b"hello",
        )),
        13 => {
            // A client that leaves at once.
            let mut stream = server.connect();
            let _ = stream.write_all(
                b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{",
            );
            drop(stream);
            None
        }
        _ => {
            // A slow sender.
            let mut stream = server.connect();
            let _ = stream.write_all(
                b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{",
            );
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(50));
                let _ = stream.write_all(b" ");
            }
            Response::read(&mut stream)
        }
    }
}

#[test]
fn a_thousand_bad_requests() {
    let server = start_with(|settings| {
        settings.max_body_bytes = 200_000;
        settings.read_timeout = Duration::from_millis(150);
    });
    let counts = std::sync::Mutex::new(std::collections::BTreeMap::<String, usize>::new());
    std::thread::scope(|scope| {
        for client in 0..4_u64 {
            let (server, counts) = (&server, &counts);
            scope.spawn(move || {
                let mut random = Random(client + 1);
                for number in 0..260 {
                    // Slow senders are slow for us, too.
                    let kind = if number % 26 == 25 { 14 } else { number % 14 };
                    let found = match send(server, &mut random, kind) {
                        Some(response) => {
                            assert!(
                                (400..500).contains(&response.status),
                                "kind {kind}: {} {}",
                                response.head,
                                response.text()
                            );
                            response.status.to_string()
                        }
                        None => "closed".to_owned(),
                    };
                    *counts.lock().unwrap().entry(found).or_default() += 1;
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap();
    assert_eq!(counts.values().sum::<usize>(), 1040);
    for status in ["400", "404", "405", "408", "413", "415", "422"] {
        assert!(counts.contains_key(status), "no {status}: {counts:?}");
    }
    server.ask("/predict", &json!({ "inputs": "two owls" }));
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("qbert_requests_inside 0"), "no place is lost");
    // /health said 503 while the models were loaded.
    let fives: Vec<&str> =
        metrics.lines().filter(|line| line.contains("status=\"5") && !line.contains("\"/health\"")).collect();
    assert!(fives.is_empty(), "{fives:?}");
}
