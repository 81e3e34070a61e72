//! Whether the server is well.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::body::json;
use crate::error::{ApiError, ApiResult, ErrorBody};

/// That the server is ready.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    #[schema(example = "ready")]
    status: &'static str,
}

/// Whether all models are loaded. Needs no API key.
#[utoipa::path(get, path = "/health", tag = "server", security(()),
    responses((status = 200, description = "Ready", body = Health),
              (status = 503, description = "Models are being loaded", body = ErrorBody)))]
pub(crate) async fn health(State(app): State<App>) -> ApiResult<Response> {
    if !app.registry().is_ready() {
        return Err(ApiError::unavailable("models are being loaded"));
    }
    Ok(json(&Health { status: "ready" }))
}

/// Metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "Metrics in OpenMetrics' text format", body = String,
                content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"),
              (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let inside = app.batcher().inside(app.settings().max_queue);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics().text(inside)).into_response()
}
