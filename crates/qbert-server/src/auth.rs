//! API keys. They are kept as SHA-256, and every comparison looks at all bytes of all keys, so its time says nothing.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::app::App;
use crate::error::{ApiError, ServeError};

const SHORTEST_KEY: usize = 16;

/// The keys of a file, one per line; empty lines and lines that begin with `#` do not count.
#[derive(Debug)]
pub(crate) struct ApiKeys {
    path: Option<PathBuf>,
    digests: RwLock<Vec<[u8; 32]>>,
}

impl ApiKeys {
    pub(crate) fn new(path: Option<PathBuf>) -> Result<Self, ServeError> {
        let keys = Self { path, digests: RwLock::new(Vec::new()) };
        keys.reload()?;
        Ok(keys)
    }

    /// Reads the file anew, so that keys can be exchanged without a restart.
    pub(crate) fn reload(&self) -> Result<(), ServeError> {
        let Some(path) = &self.path else { return Ok(()) };
        let wrong = |problem: String| ServeError::ApiKeys { path: path.clone(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let mut digests = Vec::new();
        for (number, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.len() < SHORTEST_KEY || !line.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(wrong(format!("line {} is no key", number + 1)));
            }
            digests.push(Sha256::digest(line.as_bytes()).into());
        }
        if digests.is_empty() {
            return Err(wrong("no key in it".to_owned()));
        }
        *self.digests.write().unwrap_or_else(PoisonError::into_inner) = digests;
        Ok(())
    }

    /// Whether a request may pass.
    fn allow(&self, headers: &HeaderMap) -> bool {
        if self.path.is_none() {
            return true;
        }
        let given: [u8; 32] = Sha256::digest(given_key(headers).unwrap_or_default().as_bytes()).into();
        let digests = self.digests.read().unwrap_or_else(PoisonError::into_inner);
        let found = digests.iter().fold(Choice::from(0), |found, key| found | key.ct_eq(&given));
        found.into()
    }
}

/// The key of a request: a bearer token, an `x-api-key` or `api-key` header, or the password of Basic authentication, which is
/// what a browser can send.
fn given_key(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(key) = text("x-api-key").or_else(|| text("api-key")) {
        return Some(key.to_owned());
    }
    let (scheme, rest) = text(header::AUTHORIZATION.as_str())?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().to_owned());
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let bytes = base64::engine::general_purpose::STANDARD.decode(rest.trim()).ok()?;
        let (_, password) =
            String::from_utf8(bytes).ok()?.split_once(':').map(|(user, key)| (user.to_owned(), key.to_owned()))?;
        return Some(password);
    }
    None
}

/// What answers without a key: whether the server lives and is ready.
fn is_open(path: &str) -> bool {
    matches!(path, "/health" | "/v2/health/live" | "/v2/health/ready")
}

/// Refuses requests without a valid key.
pub(crate) async fn require_key(State(app): State<App>, request: Request, next: Next) -> Response {
    if is_open(request.uri().path()) || app.keys().allow(request.headers()) {
        return next.run(request).await;
    }
    let hint = "send the header Authorization: Bearer KEY";
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "no valid API key", hint).into_response()
}
