//! How a server is set up: models, limits, who may ask.

use std::path::{Path, PathBuf};
use std::time::Duration;

use qbert_runtime::{Pooling, Threads};

use crate::error::ServeError;

/// A packed model and the name that clients call it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSource {
    /// Letters, digits and `. _ - :`.
    pub name: String,
    /// The packed file.
    pub path: PathBuf,
}

impl ModelSource {
    /// Reads `NAME=PATH` or `PATH`. Without a name it is the file's, or the directory's for a file called `model.qbert`, which
    /// is what every run writes.
    ///
    /// # Errors
    /// If the name cannot be part of a URL.
    ///
    /// ```
    /// use qbert_server::ModelSource;
    ///
    /// assert_eq!(ModelSource::parse("reviews=small/model.qbert")?.name, "reviews");
    /// assert_eq!(ModelSource::parse("small/model.qbert")?.name, "small");
    /// assert_eq!(ModelSource::parse("minilm.qbert")?.name, "minilm");
    /// # Ok::<(), qbert_server::ServeError>(())
    /// ```
    pub fn parse(argument: &str) -> Result<Self, ServeError> {
        let (name, path) = match argument.split_once('=') {
            Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
            None => (name_of(Path::new(argument)), PathBuf::from(argument)),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
        if name.is_empty() || name.len() > 128 || !name.chars().all(fits) {
            return Err(ServeError::ModelName { name });
        }
        Ok(Self { name, path })
    }
}

fn name_of(path: &Path) -> String {
    let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let stem = text(path.file_stem()).unwrap_or_default();
    let directory = path.parent().and_then(|parent| text(parent.file_name()));
    match directory {
        Some(directory) if stem == "model" => directory,
        _ => stem,
    }
}

/// What a server does and how much it takes. The defaults suit a small model on a small machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The models; the first one answers requests that name none.
    pub models: Vec<ModelSource>,
    /// The address to listen at.
    pub host: String,
    /// The port to listen at; 0 for any free one.
    pub port: u16,
    /// Threads that compute, each a batch of its own.
    pub threads: usize,
    /// Longest sequence in tokens; as long as the model takes if `None`.
    pub max_len: Option<usize>,
    /// How embeddings are made of tokens' vectors; as the model's file says if `None`.
    pub pooling: Option<Pooling>,
    /// Tokens in one batch. Larger batches are hardly faster, and everything that arrives meanwhile waits for them.
    pub max_batch_tokens: usize,
    /// Requests that may wait or be computed at once. Further ones get status 429.
    pub max_queue: usize,
    /// Tokens that may wait at once.
    pub max_queue_tokens: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Texts in one request.
    pub max_items: usize,
    /// Tokens of one request.
    pub max_request_tokens: usize,
    /// Time from a request's arrival to its answer.
    pub timeout: Duration,
    /// Time for a client to send a request's head, and again its body.
    pub read_timeout: Duration,
    /// Time for a client to take each 64 KiB of a response, or the rest. Then its connection is closed.
    pub write_timeout: Duration,
    /// Connections at once; further ones wait.
    pub max_connections: usize,
    /// How long a shutdown waits for requests in flight.
    pub shutdown_timeout: Duration,
    /// A file with one key per line. Without it everybody may ask.
    pub api_key_file: Option<PathBuf>,
    /// Origins whose pages may ask from a browser; `*` for all.
    pub cors: Vec<String>,
}

impl Settings {
    /// Settings with every default for these models.
    pub fn new(models: Vec<ModelSource>) -> Self {
        Self {
            models,
            host: "127.0.0.1".to_owned(),
            port: 8080,
            threads: Threads::available(),
            max_len: None,
            pooling: None,
            max_batch_tokens: 1024,
            max_queue: 512,
            max_queue_tokens: 1 << 18,
            max_body_bytes: 2 << 20,
            max_items: 1024,
            max_request_tokens: 1 << 17,
            timeout: Duration::from_secs(60),
            read_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            max_connections: 900,
            shutdown_timeout: Duration::from_secs(30),
            api_key_file: None,
            cors: Vec::new(),
        }
    }

    /// Refuses settings with which nothing could be answered.
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        let limits = [
            ("threads", self.threads),
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_queue", self.max_queue),
            ("max_queue_tokens", self.max_queue_tokens),
            ("max_body_bytes", self.max_body_bytes),
            ("max_items", self.max_items),
            ("max_request_tokens", self.max_request_tokens),
            ("max_connections", self.max_connections),
        ];
        if let Some((name, _)) = limits.into_iter().find(|(_, value)| *value == 0) {
            return Err(ServeError::Zero { name });
        }
        if self.models.is_empty() {
            return Err(ServeError::NoModel);
        }
        let mut names: Vec<&str> = self.models.iter().map(|model| model.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ServeError::SameName { name: pair[0].to_owned() });
        }
        Ok(())
    }
}
