//! Limits, keys, load, shutdown and reload: each with its own status, and nothing lost.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::io::Write;
use std::time::{Duration, Instant};

use common::{Response, Running, start, start_with, write_model};
use serde_json::{Value, json};

/// A request that keeps a worker busy for a while.
fn long() -> Value {
    json!({ "inputs": "the owl of ostby saw two owls , ".repeat(12_000) })
}

fn refusal(response: &Response) -> (u16, String) {
    let body = response.json();
    assert!(body["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "no hint: {body}");
    (response.status, body["error_type"].as_str().unwrap().to_owned())
}

fn metric(server: &Running, name: &str) -> f64 {
    let text = server.get("/metrics").text();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok()).unwrap()
}

#[test]
fn every_limit_has_its_status() {
    let server = start_with(|settings| {
        settings.max_body_bytes = 2000;
        settings.max_items = 3;
        settings.max_request_tokens = 64;
        settings.read_timeout = Duration::from_millis(300);
    });
    let case = |status: u16, kind: &str, response: &Response| assert_eq!(refusal(response), (status, kind.to_owned()));
    case(413, "body_too_large", &server.post("/predict", &json!({ "inputs": "a".repeat(3000) })));
    case(422, "too_many_items", &server.post("/predict", &json!({ "inputs": ["a", "b", "c", "d"] })));
    case(422, "too_many_items", &server.post("/tokenize", &json!({ "inputs": ["a", "b", "c", "d"] })));
    case(422, "too_many_tokens", &server.post("/embed", &json!({ "inputs": ["owl ".repeat(40), "owl ".repeat(40)] })));
    case(422, "too_many_tokens", &server.post("/embed_all", &json!({ "inputs": "owl owl owl" })));
    case(422, "too_many_tokens", &server.post("/embed", &json!({ "inputs": "owl ".repeat(60), "truncate": false })));
    case(404, "unknown_route", &server.get("/nothing"));
    case(404, "unknown_model", &server.post("/predict", &json!({ "inputs": "a", "model": "nobody" })));
    case(405, "wrong_method", &server.get("/predict"));
    assert_eq!(server.get("/predict").header("allow"), Some("POST"));
    let json_type = [("Content-Type", "application/json")];
    case(400, "malformed", &server.request("POST", "/predict", &json_type, b"{\"inputs\": \"a"));
    case(400, "malformed", &server.request("POST", "/predict", &json_type, b"{\"inputs\": \"\xff\"}"));
    case(422, "validation", &server.request("POST", "/predict", &json_type, b"{\"inputs\": 7}"));
    case(415, "media_type", &server.request("POST", "/predict", &[], b"{\"inputs\": \"a\"}"));
    // A body that never comes.
    let mut stream = server.connect();
    stream
        .write_all(
            b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{",
        )
        .unwrap();
    case(408, "slow_sender", &Response::read(&mut stream).unwrap());
    // A head that never ends: the connection is closed.
    let mut stream = server.connect();
    stream.write_all(b"POST /predict HTTP/1.1\r\nHost: t\r\n").unwrap();
    let begun = Instant::now();
    let response = Response::read(&mut stream);
    assert!(response.is_none_or(|response| response.status == 408) && begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    let server = start_with(|settings| {
        settings.max_connections = 1;
        settings.write_timeout = Duration::from_millis(300);
    });
    // An answer that is larger than the buffers of a socket.
    let body = json!({ "inputs": vec!["owl ".repeat(60); 1024] }).to_string();
    let head = format!(
        "POST /models/vectors/embed_all HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = server.connect();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    // There is one place for connections, and it becomes free.
    assert_eq!(server.get("/health").status, 200);
    let cut = Response::read(&mut stream).unwrap();
    assert_eq!(cut.status, 200);
    assert!(cut.body.len() < cut.header("content-length").unwrap().parse().unwrap(), "all was sent before it was read");
}

#[test]
fn a_full_queue_answers_429_and_recovers() {
    let server = start_with(|settings| {
        settings.threads = 1;
        settings.max_queue = 1;
    });
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| server.post("/models/entities/entities", &long()));
        while metric(&server, "qbert_requests_inside") < 1.0 {
            std::thread::yield_now();
        }
        let refused = server.post("/predict", &json!({ "inputs": "two owls" }));
        if refused.status == 200 {
            // The long one was already done: a very fast machine.
            assert!(busy.join().unwrap().status == 200);
            return;
        }
        assert_eq!(refusal(&refused), (429, "overloaded".to_owned()));
        assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        assert_eq!(server.get("/health").status, 200, "health is not work");
        assert_eq!(busy.join().unwrap().status, 200);
    });
    assert_eq!(server.post("/predict", &json!({ "inputs": "two owls" })).status, 200);
}

#[test]
fn short_requests_are_not_held_up_by_a_long_one() {
    let server = start_with(|settings| settings.threads = 1);
    let begun = Instant::now();
    server_post_long(&server);
    let whole = begun.elapsed();
    let server = &server;
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let again = scope.spawn(move || server_post_long(server));
        while metric(server, "qbert_queue_tokens") == 0.0 && !again.is_finished() {
            std::thread::yield_now();
        }
        let mut answered = 0;
        while !again.is_finished() {
            let own = Instant::now();
            assert_eq!(server.post("/models/labels/predict", &json!({ "inputs": "two owls" })).status, 200);
            assert!(own.elapsed() < whole / 2, "a short one waited {:?} of {whole:?}", own.elapsed());
            answered += 1;
        }
        again.join().unwrap();
        assert!(answered > 3, "{answered} short ones while the long one took {:?}", begun.elapsed());
    });
}

fn server_post_long(server: &Running) {
    assert_eq!(server.post("/models/entities/entities", &long()).status, 200);
}

#[test]
fn clients_that_leave_free_their_place() {
    let server = start_with(|settings| {
        settings.threads = 1;
        settings.max_queue = 2;
    });
    for _ in 0..6 {
        let body = long().to_string();
        let mut stream = server.connect();
        let head = format!(
            "POST /models/entities/entities HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        while metric(&server, "qbert_requests_inside") < 1.0 {
            std::thread::yield_now();
        }
        drop(stream);
        let begun = Instant::now();
        while metric(&server, "qbert_requests_inside") > 0.0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "the place is not free");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(metric(&server, "qbert_queue_tokens"), 0.0);
    assert_eq!(server.post("/predict", &json!({ "inputs": "two owls" })).status, 200);
}

#[test]
fn too_slow_an_answer_is_504() {
    let server = start_with(|settings| {
        settings.threads = 1;
        settings.timeout = Duration::from_millis(20);
    });
    let response = server.post("/models/entities/entities", &long());
    assert_eq!(refusal(&response), (504, "timeout".to_owned()));
    let begun = Instant::now();
    while metric(&server, "qbert_queue_tokens") > 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "what nobody waits for is still queued");
    }
}

#[test]
fn with_a_key_only_health_answers_without_it() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "# keys\n0123456789abcdef-one\n\n0123456789abcdef-two\n").unwrap();
    let server = start_with(|settings| settings.api_key_file = Some(keys.path().to_owned()));
    let document: Value = serde_json::from_str(qbert_server::openapi_json()).unwrap();
    let mut seen = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{model}", "labels");
        let open = ["/health", "/v2/health/live", "/v2/health/ready"].contains(&path.as_str());
        for method in methods.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            let status = server.request(&method, &path, &[("Content-Type", "application/json")], b"{}").status;
            assert_eq!(status == 401, !open, "{method} {path}: {status}");
            let wrong = server.request(&method, &path, &[("Authorization", "Bearer 0123456789abcdef-on")], b"{}");
            assert_eq!(wrong.status == 401, !open, "{method} {path}");
            seen += 1;
        }
    }
    assert!(seen > 15);
    for path in [
        "/",
        "/docs",
        "/docs/index.html",
        "/openapi.json",
        "/nothing",
        "/models/labels/info",
        "/models/health",
        "/health/",
    ] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    assert!(server.get("/").head.contains("Basic"), "a browser asks for the key");
    // "any:0123456789abcdef-two"
    let basic = "Basic YW55OjAxMjM0NTY3ODlhYmNkZWYtdHdv";
    for header in [
        ("Authorization", "Bearer 0123456789abcdef-one"),
        ("Authorization", "bearer 0123456789abcdef-two"),
        ("x-api-key", "0123456789abcdef-one"),
        ("Authorization", basic),
    ] {
        assert_eq!(server.request("GET", "/info", &[header], b"").status, 200, "{header:?}");
    }
    std::fs::write(keys.path(), "fedcba9876543210-new\n").unwrap();
    server.reload();
    let new = [("Authorization", "Bearer fedcba9876543210-new")];
    let begun = Instant::now();
    while server.request("GET", "/info", &new, b"").status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(server.request("GET", "/info", &[("x-api-key", "0123456789abcdef-one")], b"").status, 401);
}

#[test]
fn browsers_of_other_origins_need_permission() {
    let server = start_with(|settings| settings.cors = vec!["https://example.org".to_owned()]);
    let preflight = |origin| {
        let headers = [("Origin", origin), ("Access-Control-Request-Method", "POST")];
        server.request("OPTIONS", "/predict", &headers, b"").header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(preflight("https://example.org").as_deref(), Some("https://example.org"));
    assert_eq!(preflight("https://other.org"), None);
}

#[test]
fn a_shutdown_finishes_what_is_in_flight() {
    let mut server = start_with(|settings| settings.threads = 1);
    let address = server.address;
    let body = long().to_string();
    let mut stream = server.connect();
    let head = format!(
        "POST /models/entities/entities HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    while metric(&server, "qbert_requests_inside") < 1.0 {
        std::thread::yield_now();
    }
    server.begin_to_stop();
    let response = Response::read(&mut stream).unwrap();
    assert_eq!(response.status, 200);
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_replaced_model_is_picked_up_without_a_dropped_request() {
    let server = start();
    let long_text = "owl ".repeat(100);
    let tokens = |server: &Running| {
        server.ask("/v1/embeddings", &json!({ "input": long_text, "model": "vectors" }))["usage"]["total_tokens"]
            .clone()
    };
    assert_eq!(tokens(&server), 48);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    server.ask("/models/vectors/embed", &json!({ "inputs": ["two owls", "owl"] }));
                    server.ask("/predict", &json!({ "inputs": "two owls" }));
                }
            });
        }
        write_model(server.directory.path(), "vectors", 32);
        // One model is damaged: the old one stays.
        std::fs::write(server.directory.path().join("labels.qbert"), b"no model").unwrap();
        server.reload();
        let begun = Instant::now();
        while tokens(&server) != 32 {
            assert!(begun.elapsed() < Duration::from_secs(20), "not reloaded");
        }
        server.ask("/predict", &json!({ "inputs": "two owls" }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
