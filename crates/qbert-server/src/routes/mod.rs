//! The routes, one file for each family of clients. All of them ask [`App::answer`](crate::app::App::answer).

mod hub;
mod kserve;
mod models;
mod native;
mod openai;
mod openapi;
mod page;
mod shapes;
mod status;
mod vectors;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::routing::{get, post};

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::middleware::PathModel;
use crate::registry::Model;

pub use openapi::openapi_json;

/// All routes, without what is round them.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/", get(page::page).post(hub::answer))
        .route("/health", get(status::health))
        .route("/info", get(models::info))
        .route("/metrics", get(status::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/docs", get(openapi::to_page))
        .route("/docs/{*file}", get(openapi::file))
        .route("/embed", post(vectors::embed))
        .route("/embed_all", post(vectors::embed_all))
        .route("/similarity", post(vectors::similarity))
        .route("/tokenize", post(vectors::tokenize))
        .route("/predict", post(native::predict))
        .route("/rerank", post(native::rerank))
        .route("/entities", post(native::entities))
        .route("/answer", post(native::answer))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{model}", get(models::one))
        .route("/v1/embeddings", post(openai::embeddings))
        .route("/v1/rerank", post(openai::rerank))
        .route("/v2", get(kserve::server))
        .route("/v2/health/live", get(kserve::live))
        .route("/v2/health/ready", get(status::health))
        .route("/v2/models/{model}", get(kserve::model))
        .route("/v2/models/{model}/ready", get(kserve::model_ready))
        .route("/v2/models/{model}/infer", post(kserve::infer))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

async fn unknown(uri: Uri) -> ApiError {
    let shown: String = uri.path().chars().take(100).collect();
    ApiError::new(
        StatusCode::NOT_FOUND,
        "unknown_route",
        format!("there is nothing at {shown}"),
        "/docs lists the routes",
    )
}

async fn wrong_method(uri: Uri) -> ApiError {
    let hint = "the header Allow says which methods there are";
    let shown: String = uri.path().chars().take(100).collect();
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", format!("not a method of {shown}"), hint)
}

/// The model that a request is for: the body's `model`, the path's (`/models/NAME/…`), or the first one.
#[derive(Debug)]
pub(crate) struct Chosen {
    app: App,
    in_path: Option<String>,
}

impl FromRequestParts<App> for Chosen {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Self::Rejection> {
        let in_path = parts.extensions.get::<PathModel>().map(|model| model.0.clone());
        Ok(Self { app: app.clone(), in_path })
    }
}

impl Chosen {
    fn model(&self, in_body: Option<&str>) -> ApiResult<Arc<Model>> {
        self.app.registry().get(in_body.or(self.in_path.as_deref()))
    }
}
