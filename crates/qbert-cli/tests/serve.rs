//! `qbert serve` as a process: settings from the environment, signals, exit codes.

#![cfg(all(unix, feature = "serve"))]
#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use qbert_model::Head;
use serde_json::Value;

fn qbert(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.args(arguments).current_dir(home).env_clear();
    command
}

fn pack(home: &Path, bits: &str) {
    let arguments = ["pack", "model", "--bits", bits, "--activation-bits", "32", "--out", "model.qbert", "--quiet"];
    let output = qbert(home, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Reads the log until a line with this message.
fn line(log: &mut Lines<BufReader<ChildStderr>>, message: &str) -> Value {
    loop {
        let text = log.next().unwrap_or_else(|| panic!("the log ended before {message:?}")).unwrap();
        let line: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        if line["message"].as_str().unwrap().starts_with(message) {
            return line;
        }
    }
}

fn signal(server: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &server.id().to_string()]).status().unwrap().success());
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_server_is_set_up_by_its_environment_reloads_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path();
    common::prepare_with(home, Head::SequenceClassification, &["bad", "good"]);
    pack(home, "8");
    let mut server = qbert(home, &["serve"])
        .envs([
            ("QBERT_MODELS", "films=model.qbert"),
            ("QBERT_PORT", "0"),
            ("QBERT_LOG", "json"),
            ("QBERT_THREADS", "1"),
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = line(&mut log, "listening")["address"].as_str().unwrap().to_owned();
    line(&mut log, "ready");
    let port = address.rsplit(':').next().unwrap();
    let healthy = qbert(home, &["serve", "--health", "--host", "0.0.0.0", "--port", port]).output().unwrap();
    assert_eq!((healthy.status.code(), &*healthy.stdout), (Some(0), &b"ready\n"[..]));
    assert!(get(&address, "/info").contains("weights of 8 bits"));
    assert_eq!(line(&mut log, "request")["path"], "/health");

    pack(home, "4");
    signal(&server, "-HUP");
    assert_eq!(line(&mut log, "model loaded")["model"], "films");
    assert!(get(&address, "/info").contains("weights of 4, 8 bits"), "{}", get(&address, "/info"));

    signal(&server, "-TERM");
    line(&mut log, "shutting down");
    assert_eq!(server.wait().unwrap().code(), Some(0));
    let gone = qbert(home, &["serve", "--health", "--port", port]).output().unwrap();
    assert_eq!(gone.status.code(), Some(1));
}

#[test]
fn wrong_settings_exit_with_2_and_say_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path();
    std::fs::write(home.join("keys"), "short\n").unwrap();
    std::fs::write(home.join("no.qbert"), "no model").unwrap();
    for (arguments, message) in [
        (&["serve"][..], "MODEL"),
        (&["serve", "no.qbert", "--port", "0"], "no.qbert"),
        (&["serve", "a=no.qbert", "a=no.qbert"], "NAME=FILE"),
        (&["serve", "a b=no.qbert"], "cannot be the name"),
        (&["serve", "no.qbert", "--max-queue", "0"], "--max-queue is 0"),
        (&["serve", "no.qbert", "--port", "0", "--api-key-file", "keys"], "line 1 is no key"),
        (&["serve", "no.qbert", "--cors", "example.org"], "https://example.org"),
    ] {
        let output = qbert(home, arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
    }
}
