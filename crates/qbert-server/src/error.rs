//! What stops a server from starting, and what a client is told.
//!
//! Every refusal has a status, a kind for programs, a message for people, and a hint that says what to do. The same error has
//! two bodies: OpenAI's clients look for an object under `error`, everybody else for a string.

use std::path::PathBuf;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A model cannot be opened.
    #[error("{0}")]
    Model(#[from] qbert_runtime::Error),
    /// No model was named.
    #[error("no model to serve")]
    NoModel,
    /// Two models have the same name.
    #[error("two models are called {name:?}")]
    SameName {
        /// Their name.
        name: String,
    },
    /// A model's name cannot be part of a URL.
    #[error("{name:?} cannot be the name of a model")]
    ModelName {
        /// The name.
        name: String,
    },
    /// A limit of 0.
    #[error("`serve.{name}` is 0")]
    Zero {
        /// The field of the settings.
        name: &'static str,
    },
    /// The file of API keys cannot be used.
    #[error("{}: {problem}", path.display())]
    ApiKeys {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An origin that no browser sends.
    #[error("{origin:?} is not an origin")]
    Cors {
        /// As it was given.
        origin: String,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Host and port.
        address: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The system refuses threads or signals.
    #[error("cannot start the server: {0}")]
    System(#[from] std::io::Error),
}

impl ServeError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Model(error) => return error.hint(),
            Self::NoModel => "name one or more packed models".to_owned(),
            Self::SameName { .. } => "give each a name of its own: NAME=FILE".to_owned(),
            Self::ModelName { .. } => "use letters, digits and `. _ - :`, as in reviews=FILE".to_owned(),
            Self::Zero { .. } => "ask for at least 1".to_owned(),
            Self::ApiKeys { .. } => {
                "put one key of at least 16 visible ASCII characters on each line, for example from `openssl rand -hex 32`".to_owned()
            }
            Self::Cors { .. } => "give scheme and host, such as https://example.org, or *".to_owned(),
            Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                "another program listens there: choose another port".to_owned()
            }
            Self::Listen { .. } => "choose an address of this machine and a port above 1023".to_owned(),
            Self::System(_) => return None,
        })
    }

    /// Whether the machine failed, as opposed to a wrong setting.
    pub fn is_environment(&self) -> bool {
        match self {
            Self::Model(error) => error.is_environment(),
            Self::Listen { .. } | Self::System(_) => true,
            _ => false,
        }
    }
}

/// The body of every refusal outside `/v1`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What is wrong.
    pub(crate) error: String,
    /// Which kind of error it is, for programs.
    #[schema(example = "validation")]
    pub(crate) error_type: String,
    /// What to do about it.
    pub(crate) hint: String,
}

/// The body of every refusal under `/v1`, in OpenAI's shape.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct OpenAiErrorBody {
    pub(crate) error: OpenAiError,
}

/// An error in OpenAI's shape.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct OpenAiError {
    /// What is wrong.
    pub(crate) message: String,
    /// Which kind of error it is, for programs.
    pub(crate) r#type: String,
    /// Always `null`.
    pub(crate) param: Option<String>,
    /// The same as `type`.
    pub(crate) code: String,
    /// What to do about it.
    pub(crate) hint: String,
}

/// A refusal.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) hint: String,
    /// Seconds after which asking again makes sense.
    pub(crate) retry_after: Option<u64>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(
        status: StatusCode,
        kind: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { status, kind, message: message.into(), hint: hint.into(), retry_after: None }
    }

    /// The body is no JSON, or no such request.
    pub(crate) fn malformed(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", message, hint)
    }

    /// JSON of the right form that asks for something impossible.
    pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "validation", message, hint)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let hint = "ask again in a moment; /health says when the server is ready";
        Self { retry_after: Some(1), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message, hint) }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let hint = "this is a bug of the server; the log has the request's id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message, hint)
    }

    /// The same in OpenAI's shape.
    pub(crate) fn into_openai_response(self) -> Response {
        let Self { kind, message, hint, .. } = self.clone();
        let error = OpenAiError { message, r#type: kind.to_owned(), param: None, code: kind.to_owned(), hint };
        self.respond(&OpenAiErrorBody { error })
    }

    fn respond(self, body: &impl Serialize) -> Response {
        let mut response = (self.status, crate::body::json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let schemes = [r#"Bearer realm="qbert""#, r#"Basic realm="qbert", charset="UTF-8""#];
            for scheme in schemes {
                response.headers_mut().append(header::WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
            }
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { kind, message, hint, .. } = self.clone();
        self.respond(&ErrorBody { error: message, error_type: kind.to_owned(), hint })
    }
}

/// What the runtime refuses is the client's input, unless the machine failed.
impl From<qbert_runtime::Error> for ApiError {
    fn from(error: qbert_runtime::Error) -> Self {
        if error.is_environment() {
            tracing::error!(%error, "the model cannot answer");
            return Self::internal("the model cannot answer");
        }
        let hint = error.hint().unwrap_or_else(|| "change the input".to_owned());
        let message = without_path(&error);
        match innermost(&error) {
            qbert_runtime::Error::InputTooLong { .. } => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "too_many_tokens",
                message,
                "break the text into shorter ones",
            ),
            qbert_runtime::Error::WrongTask { .. } | qbert_runtime::Error::SingleTexts { .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_task", message, hint)
            }
            _ => Self::invalid(message, hint),
        }
    }
}

fn innermost(error: &qbert_runtime::Error) -> &qbert_runtime::Error {
    match error {
        qbert_runtime::Error::Item { source, .. } => innermost(source),
        other => other,
    }
}

/// The message without the model's path, which is nobody's business outside.
fn without_path(error: &qbert_runtime::Error) -> String {
    let (text, path) = match innermost(error) {
        qbert_runtime::Error::WrongTask { path, .. }
        | qbert_runtime::Error::SingleTexts { path, .. }
        | qbert_runtime::Error::NoPooler { path } => (error.to_string(), path.display().to_string()),
        _ => return error.to_string(),
    };
    text.replace(&path, "the model")
}
