//! Round every request: an id, a log line, metrics, headers, the shape of errors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::body::refuse_large;
use crate::error::ApiError;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LONGEST_ID: usize = 128;

/// The model that the path names: `/models/NAME/…` is the same as `…` with `"model": "NAME"`.
#[derive(Debug, Clone)]
pub(crate) struct PathModel(pub(crate) String);

/// Takes `/models/NAME` off the front of the path, before the routes look at it.
pub(crate) fn take_model_off<B>(mut request: axum::http::Request<B>) -> axum::http::Request<B> {
    let Some(rest) = request.uri().path().strip_prefix("/models/") else { return request };
    let (name, path) = match rest.split_once('/') {
        Some((name, path)) => (name.to_owned(), format!("/{path}")),
        None => (rest.to_owned(), "/".to_owned()),
    };
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    if let Ok(uri) = Uri::try_from(format!("{path}{query}")) {
        *request.uri_mut() = uri;
        request.extensions_mut().insert(PathModel(name));
    }
    request
}

/// The id that the client gave, if it is fit for a log, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let fits = |id: &&str| !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(|byte| byte.is_ascii_graphic());
    if let Some(id) = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(fits) {
        return id.to_owned();
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
    format!("{time:x}-{:x}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The trace that a W3C `traceparent` header names, so that logs can be joined with those of other services.
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get("traceparent")?.to_str().ok()?.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// The outermost layer.
pub(crate) async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = request_id(request.headers());
    let trace = trace_id(request.headers()).map(str::to_owned);
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    // Not the path itself: anybody can make up paths.
    let route =
        request.extensions().get::<MatchedPath>().map_or_else(|| "none".to_owned(), |own| own.as_str().to_owned());
    let mut response = match refuse_large(&app, request).await {
        Ok(request) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    if path.starts_with("/v1/")
        && let Some(error) = response.extensions().get::<ApiError>().cloned()
    {
        let headers = std::mem::take(response.headers_mut());
        response = error.into_openai_response();
        for (name, value) in &headers {
            if name != header::CONTENT_LENGTH && !response.headers().contains_key(name) {
                response.headers_mut().append(name, value.clone());
            }
        }
    }
    let (status, time) = (response.status().as_u16(), begun.elapsed());
    app.metrics().request(&route, status, time);
    let milliseconds = (time.as_secs_f64() * 1e5).round() / 100.0;
    let problem = response.extensions().get::<ApiError>().map(|error| error.message.clone());
    if status >= 500 {
        tracing::error!(request_id = id, trace_id = trace, %method, path, status, milliseconds, problem, "request");
    } else {
        tracing::info!(request_id = id, trace_id = trace, %method, path, status, milliseconds, problem, "request");
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Ok(timing) = HeaderValue::from_str(&format!("total;dur={milliseconds}")) {
        headers.insert(HeaderName::from_static("server-timing"), timing);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The answer where a handler panicked. None should.
pub(crate) fn after_panic(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    ApiError::internal("the request could not be handled").into_response()
}
