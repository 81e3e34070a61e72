//! `qbert serve`: packed models over HTTP.
//!
//! Every flag is also an environment variable, because that is how containers are set up.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_server::{LevelFilter, LogFormat, ModelSource, Pooling, ServeError, Settings};

use super::{is_verbose, note, stop};

const HEALTH_PATIENCE: Duration = Duration::from_secs(5);

/// Serve packed models over HTTP, with a page to try them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert serve model.qbert                                  http://127.0.0.1:8080 has a page to try it
  qbert serve reviews=small/model.qbert names=ner.qbert    two models; requests name one
  qbert serve model.qbert --host 0.0.0.0 --api-key-file keys.txt --log json
  curl localhost:8080/predict -H 'Content-Type: application/json' -d '{\"inputs\": \"a film to remember\"}'

Clients of OpenAI (embeddings), text-embeddings-inference, Cohere and Jina (rerank) and KServe V2 find their routes;
/docs describes them all. SIGHUP opens the models anew; SIGTERM and Ctrl-C finish what is in flight.
See docs/guide/serve.md.")]
pub(crate) struct Options {
    /// Packed models: FILE, or NAME=FILE. The first one answers requests that name none.
    #[arg(required_unless_present = "health", value_name = "MODEL", env = "QBERT_MODELS", value_delimiter = ',')]
    models: Vec<String>,
    /// The address to listen at; 0.0.0.0 for all of this machine.
    #[arg(long, default_value = "127.0.0.1", env = "QBERT_HOST")]
    host: String,
    /// The port to listen at; 0 for any free one.
    #[arg(long, default_value_t = 8080, env = "QBERT_PORT")]
    port: u16,
    /// Threads that compute; as many as there are cores if not given.
    #[arg(long, env = "QBERT_THREADS")]
    threads: Option<usize>,
    /// Longest sequence in tokens; as long as the model takes if not given.
    #[arg(long, env = "QBERT_MAX_LEN")]
    max_len: Option<usize>,
    /// How tokens become one vector: mean, first, last, max, weighted-mean, mean-sqrt-length or pooler; as the model's file says
    /// if not given.
    #[arg(long, value_name = "NAME", value_parser = crate::vectors::pooling, env = "QBERT_POOLING")]
    pooling: Option<Pooling>,
    /// Most tokens in one batch.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, env = "QBERT_MAX_BATCH_TOKENS")]
    max_batch_tokens: usize,
    /// Most requests that wait or are computed; further ones get status 429.
    #[arg(long, value_name = "REQUESTS", default_value_t = 512, env = "QBERT_MAX_QUEUE")]
    max_queue: usize,
    /// Most tokens that wait.
    #[arg(long, value_name = "TOKENS", default_value_t = 262_144, env = "QBERT_MAX_QUEUE_TOKENS")]
    max_queue_tokens: usize,
    /// Largest body of a request, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 2_097_152, env = "QBERT_MAX_BODY_BYTES")]
    max_body_bytes: usize,
    /// Most texts in one request.
    #[arg(long, value_name = "TEXTS", default_value_t = 1024, env = "QBERT_MAX_ITEMS")]
    max_items: usize,
    /// Most tokens in one request; a sixteenth of it where every token gets a vector.
    #[arg(long, value_name = "TOKENS", default_value_t = 131_072, env = "QBERT_MAX_REQUEST_TOKENS")]
    max_request_tokens: usize,
    /// Seconds until a request that is not answered gets status 504.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, env = "QBERT_TIMEOUT")]
    timeout: u64,
    /// Seconds that a client has to send a request's head, and again its body.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, env = "QBERT_READ_TIMEOUT")]
    read_timeout: u64,
    /// Seconds that a client has to take each 64 KiB of a response, or its rest.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, env = "QBERT_WRITE_TIMEOUT")]
    write_timeout: u64,
    /// Most connections at once; further ones wait.
    #[arg(long, default_value_t = 900, env = "QBERT_MAX_CONNECTIONS")]
    max_connections: usize,
    /// Seconds that a shutdown waits for requests in flight.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, env = "QBERT_SHUTDOWN_TIMEOUT")]
    shutdown_timeout: u64,
    /// A file with one API key per line; only health is answered without one.
    #[arg(long, value_name = "FILE", env = "QBERT_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// Origins whose pages may ask from a browser, such as `https://example.org`; `*` for all.
    #[arg(long, value_name = "ORIGIN", env = "QBERT_CORS", value_delimiter = ',')]
    cors: Vec<String>,
    /// Ask the server at host and port whether it is ready, and exit with 0 or 1: for health checks of containers.
    #[arg(long)]
    health: bool,
    /// What the log on standard error looks like.
    #[arg(long, value_enum, default_value_t = LogName::Text, env = "QBERT_LOG")]
    log: LogName,
    /// What is logged; every request from `info` on.
    #[arg(long, value_enum, env = "QBERT_LOG_LEVEL")]
    log_level: Option<LevelName>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogName {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LevelName {
    Error,
    Warn,
    Info,
    Debug,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    if options.health {
        return health(&options.host, options.port);
    }
    let level = match options.log_level {
        Some(LevelName::Error) => LevelFilter::ERROR,
        Some(LevelName::Warn) => LevelFilter::WARN,
        Some(LevelName::Info) => LevelFilter::INFO,
        Some(LevelName::Debug) => LevelFilter::DEBUG,
        None if quiet => LevelFilter::WARN,
        None if is_verbose() => LevelFilter::DEBUG,
        None => LevelFilter::INFO,
    };
    let format = match options.log {
        LogName::Text => LogFormat::Text,
        LogName::Json => LogFormat::Json,
    };
    qbert_server::start_logging(format, level);
    let settings = options.settings().map_err(serve_error)?;
    stop::set_serving();
    let listening = |address| {
        // A program that reads the log as JSON has this in it already.
        if !quiet && matches!(options.log, LogName::Text) {
            note(&format!("open http://{address} to try it"));
        }
    };
    qbert_server::run(settings, listening).map_err(serve_error)?;
    Ok(String::new())
}

impl Options {
    fn settings(&self) -> std::result::Result<Settings, ServeError> {
        let models =
            self.models.iter().map(|model| ModelSource::parse(model)).collect::<std::result::Result<_, _>>()?;
        let mut settings = Settings::new(models);
        settings.host.clone_from(&self.host);
        settings.port = self.port;
        settings.threads = self.threads.unwrap_or(settings.threads);
        settings.max_len = self.max_len;
        settings.pooling = self.pooling;
        settings.max_batch_tokens = self.max_batch_tokens;
        settings.max_queue = self.max_queue;
        settings.max_queue_tokens = self.max_queue_tokens;
        settings.max_body_bytes = self.max_body_bytes;
        settings.max_items = self.max_items;
        settings.max_request_tokens = self.max_request_tokens;
        settings.timeout = Duration::from_secs(self.timeout);
        settings.read_timeout = Duration::from_secs(self.read_timeout);
        settings.write_timeout = Duration::from_secs(self.write_timeout);
        settings.max_connections = self.max_connections;
        settings.shutdown_timeout = Duration::from_secs(self.shutdown_timeout);
        settings.api_key_file.clone_from(&self.api_key_file);
        settings.cors.clone_from(&self.cors);
        Ok(settings)
    }
}

/// Whether the server there is ready. An address that means all of the machine is asked on this machine.
fn health(host: &str, port: u16) -> Result<String> {
    let host = match host {
        "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        host => host,
    };
    let problem = |problem: String| {
        Error::environment(format!("{host}:{port} is not ready: {problem}"), "see the server's log".to_owned())
    };
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((host, port))?;
        stream.set_read_timeout(Some(HEALTH_PATIENCE))?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    match ask() {
        Ok(line) if line.split(' ').nth(1) == Some("200") => Ok("ready\n".to_owned()),
        Ok(line) => Err(problem(line.trim().to_owned())),
        Err(error) => Err(problem(error.to_string())),
    }
}

fn serve_error(error: ServeError) -> Error {
    let kind = if error.is_environment() { ErrorKind::Environment } else { ErrorKind::BadInput };
    Error::new(kind, error.to_string(), error.hint())
}
