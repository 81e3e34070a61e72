//! Bodies in and out: reading within limits of size and time, JSON with errors that say where, JSON out.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::error::{ApiError, ApiResult};

/// A refused body is read up to this much and thrown away, so that its client gets to read the refusal.
const DRAINED: usize = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// A value as a JSON response.
pub(crate) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer that is no JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// A request's JSON body.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        let kind =
            request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let fits = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
        let (headers, body) = (request.headers().clone(), request.into_body());
        let bytes = read(app, &headers, body).await?;
        if !fits {
            let message = format!("the body's type is {kind:?}");
            let hint = "send JSON, with the header Content-Type: application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", message, hint));
        }
        parse(&bytes).map(Self)
    }
}

/// A whole body, within the limits of the server.
pub(crate) async fn read(app: &App, headers: &HeaderMap, body: Body) -> ApiResult<Bytes> {
    let limit = app.settings().max_body_bytes;
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        drain(body).await;
        let hint = "send the body as it is, without Content-Encoding";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", "the body is compressed", hint));
    }
    let collect = http_body_util::Limited::new(body, limit).collect();
    match tokio::time::timeout(app.settings().read_timeout, collect).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large(limit)),
        Ok(Err(error)) => Err(ApiError::malformed(format!("the body breaks off: {error}"), "send it whole")),
        Err(_) => {
            let message = format!("the body did not arrive within {} s", app.settings().read_timeout.as_secs_f64());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow_sender", message, "send the body faster"))
        }
    }
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("a body of more than {limit} bytes");
    let hint = "send fewer or shorter texts in one request, or start the server with a larger max-body-bytes";
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message, hint)
}

/// Reads what is left of a body that nobody wants.
async fn drain(mut body: Body) {
    let all = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > DRAINED {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIME, all).await;
}

/// Refuses a body that says it is too large, after reading it away.
pub(crate) async fn refuse_large(app: &App, request: Request) -> ApiResult<Request> {
    let length =
        request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let limit = app.settings().max_body_bytes;
    if length.is_some_and(|length| length > limit as u64) {
        drain(request.into_body()).await;
        return Err(too_large(limit));
    }
    Ok(request)
}

/// JSON of a certain form, or where it is not.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    // Serde would take a list of the fields' values for an object.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| b"[\"-0123456789tfn".contains(byte))
        && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
    {
        return Err(ApiError::invalid("the body is no object", "/docs shows the form of every request"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let hint = "/docs shows the form of every request";
        match error.classify() {
            serde_json::error::Category::Data => ApiError::invalid(error.to_string(), hint),
            _ => ApiError::malformed(format!("the body is not JSON: {error}"), "send a JSON object in UTF-8"),
        }
    })
}
