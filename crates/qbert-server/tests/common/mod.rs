//! A server with tiny models on a port of its own, and the plainest of clients.

#![allow(dead_code, reason = "every test uses a part")]

#[path = "../../../qbert-runtime/tests/common/model.rs"]
pub(crate) mod tiny;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use qbert_model::{Config, Head};
use qbert_server::{ModelSource, Server, Settings};
use serde_json::Value;
use tokio::sync::mpsc;

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) directory: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    reload: mpsc::UnboundedSender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The four kinds of models, a reranker, and one without a head.
pub(crate) const NAMES: [&str; 5] = ["labels", "entities", "answers", "vectors", "ranks"];

pub(crate) fn write_model(directory: &Path, name: &str, positions: usize) {
    let widths = tiny::ALL_WIDTHS[0];
    let bytes = match name {
        "labels" => tiny::packed_for("sst2", Head::SequenceClassification, positions, widths),
        "entities" => tiny::packed_for("ner", Head::TokenClassification, positions, widths),
        "answers" => tiny::packed_for("qa", Head::QuestionAnswering, positions, widths),
        "vectors" => tiny::packed_for("", Head::None, positions, widths),
        _ => tiny::packed_of("score-pair", Head::SequenceClassification, &value_config(positions), widths),
    };
    // As a careful user replaces a model: whole, or not at all.
    let path = directory.join(format!("{name}.new"));
    std::fs::write(&path, bytes).unwrap();
    std::fs::rename(&path, directory.join(format!("{name}.qbert"))).unwrap();
}

fn value_config(positions: usize) -> Config {
    let text = format!(
        r#"{{"architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": 16, "hidden_size": 24,
            "num_hidden_layers": {}, "num_attention_heads": 3, "intermediate_size": 40, "problem_type": "regression",
            "max_position_embeddings": {positions}, "type_vocab_size": 2, "id2label": {{"0": "relevance"}}}}"#,
        tiny::LAYERS
    );
    Config::parse(text.as_bytes(), Path::new("config.json")).unwrap()
}

pub(crate) fn start() -> Running {
    start_with(|_| {})
}

pub(crate) fn start_with(change: impl FnOnce(&mut Settings)) -> Running {
    let directory = tempfile::tempdir().unwrap();
    NAMES.iter().for_each(|name| write_model(directory.path(), name, 48));
    let model =
        |name: &&str| ModelSource { name: (*name).to_owned(), path: directory.path().join(format!("{name}.qbert")) };
    let mut settings = Settings::new(NAMES.iter().map(model).collect());
    settings.port = 0;
    settings.threads = 2;
    // Tiny models need long texts to be busy for a while.
    settings.max_request_tokens = 1 << 20;
    settings.max_queue_tokens = 1 << 20;
    change(&mut settings);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (reload, mut reloads) = mpsc::unbounded_channel();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::bind(settings).await.unwrap();
            sender.send(server.address()).unwrap();
            let stop = async {
                let _ = stopped.await;
            };
            let reload = async || {
                if reloads.recv().await.is_none() {
                    std::future::pending::<()>().await;
                }
            };
            server.serve(stop, reload).await.unwrap();
        });
    });
    let running =
        Running { address: receiver.recv().unwrap(), directory, stop: Some(stop), reload, thread: Some(thread) };
    for _ in 0..500 {
        if running.get("/health").status == 200 {
            return running;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not ready");
}

impl Running {
    pub(crate) fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.request("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    /// The JSON of an answer that must be a good one.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{path} {body}: {}", response.text());
        response.json()
    }

    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        self.raw(&[head.as_bytes(), body].concat()).unwrap_or_else(|| panic!("no answer to {method} {path}"))
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends bytes and reads the response, if there is one.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Option<Response> {
        let mut stream = self.connect();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(bytes);
        Response::read(&mut stream)
    }

    pub(crate) fn reload(&self) {
        self.reload.send(()).unwrap();
    }

    pub(crate) fn begin_to_stop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.begin_to_stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|part| part == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Self { status, head, body: bytes[end + 4..].to_vec() })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}
