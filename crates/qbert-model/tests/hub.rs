//! Hub ids, against a server on this machine that answers as the hub does.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]
#![cfg(feature = "hub")]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::Model;
use qbert_model::hub::{HubOptions, resolve};
use qbert_model::{Checkpoint, Head};

/// Repositories by id, and every path that was asked for.
struct Hub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

type Repositories = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

impl Hub {
    fn start(repositories: Repositories) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up is its own business.
                let _ = answer(stream, &repositories, &log);
            }
        });
        Self { endpoint, requests }
    }

    fn options(&self, cache: &Path) -> HubOptions {
        HubOptions { endpoint: Some(self.endpoint.clone()), cache: Some(cache.to_owned()), progress: false }
    }

    fn asked(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn answer(stream: TcpStream, repositories: &Repositories, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(bytes) = header.strip_prefix("range: bytes=") {
            let (from, to) = bytes.split_once('-').unwrap_or((bytes, ""));
            range = Some((from.parse::<usize>().unwrap_or(0), to.parse::<usize>().ok()));
        }
    }
    log.lock().unwrap().push(path.clone());
    let mut stream = reader.into_inner();
    let listing = repositories.iter().find(|(id, _)| path.starts_with(&format!("/api/models/{id}/revision/")));
    if let Some((_, files)) = listing {
        let siblings: Vec<_> = files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let body = serde_json::json!({"siblings": siblings, "sha": "c0ffee"}).to_string();
        return write!(
            stream,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
    }
    let found = repositories.iter().find_map(|(id, files)| {
        let (_, name) = path.strip_prefix(&format!("/{id}/resolve/"))?.split_once('/')?;
        files.get_key_value(name)
    });
    let Some((name, bytes)) = found else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    };
    let (from, to) = range.unwrap_or((0, None));
    let end = to.map_or(bytes.len(), |to| (to + 1).min(bytes.len()));
    let part = &bytes[from.min(end)..end];
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nx-repo-commit: c0ffee\r\netag: \"{name}-tag\"\r\n\
         Content-Range: bytes {from}-{}/{}\r\nContent-Length: {}\r\n\r\n",
        end.max(1) - 1,
        bytes.len(),
        part.len()
    )?;
    stream.write_all(part)
}

fn files_of(write: impl FnOnce(&Path)) -> BTreeMap<String, Vec<u8>> {
    let home = tempfile::tempdir().unwrap();
    write(home.path());
    let entries = std::fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    entries.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
}

fn hub() -> Hub {
    let model = Model::new(Head::SequenceClassification);
    Hub::start(BTreeMap::from([
        ("team/small".to_owned(), files_of(|d| model.write(d))),
        ("team/sharded".to_owned(), files_of(|d| model.write_shards(d))),
        (
            "team/pickled".to_owned(),
            files_of(|d| {
                model.write_config(d);
                std::fs::write(d.join("pytorch_model.bin"), b"PK\x03\x04").unwrap();
            }),
        ),
    ]))
}

#[test]
fn a_hub_model_is_downloaded_once_and_then_read_from_the_cache() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    for id in ["team/small", "team/sharded", "team/small@v1"] {
        let directory = resolve(id, &hub.options(cache.path())).unwrap_or_else(|e| panic!("{id}: {e}"));
        let checkpoint = Checkpoint::open(&directory).unwrap();
        assert_eq!(checkpoint.head(), Head::SequenceClassification);
        assert!(checkpoint.load().is_ok());
        assert!(checkpoint.tokenizer_files().get("vocab.txt").is_some());
        let asked = hub.asked();
        assert_eq!(resolve(id, &hub.options(cache.path())).unwrap(), directory);
        assert_eq!(hub.asked(), asked, "a cached model needs no connection");
    }
}

#[test]
fn what_the_hub_cannot_give_is_said_with_a_way_out() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let error = resolve("team/pickled", &hub.options(cache.path())).unwrap_err();
    assert!(error.to_string().contains("no safetensors"), "{error}");
    let error = resolve("team/nothing", &hub.options(cache.path())).unwrap_err();
    assert!(error.to_string().contains("`team/nothing` is not a local directory"), "{error}");
    assert!(error.to_string().contains("404"), "{error}");
    assert!(error.hint().unwrap().contains("qbert fetch minilm"));
    assert!(error.is_environment());
    // Nobody listens there.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = HubOptions { endpoint: Some(format!("http://{closed}")), ..hub.options(cache.path()) };
    assert!(resolve("team/small", &options).unwrap_err().hint().is_some());
}

#[test]
fn a_path_that_does_not_exist_is_not_asked_of_the_hub() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let error = resolve("./no/such/model", &hub.options(cache.path())).unwrap_err();
    assert!(error.to_string().contains("not a directory"), "{error}");
    assert_eq!(hub.asked(), 0);
    let here = tempfile::tempdir().unwrap();
    let name = here.path().to_str().unwrap();
    assert_eq!(resolve(name, &hub.options(cache.path())).unwrap(), here.path());
}
