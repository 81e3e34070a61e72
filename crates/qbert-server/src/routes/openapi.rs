//! The description of all routes, made from their code, and a page to read and try it that needs no network.

use std::sync::{Arc, OnceLock};

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Redirect, Response};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::{hub, kserve, models, native, openai, page, status, vectors};
use crate::app::App;
use crate::error::{ApiError, ApiResult};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "qbert",
        description = "Packed models over HTTP. Every route also exists under `/models/NAME`, for one model of several. \
                       Every answer has an `x-request-id`, and every error a hint.",
    ),
    paths(
        native::predict, native::rerank, native::entities, native::answer, hub::answer,
        vectors::embed, vectors::embed_all, vectors::similarity, vectors::tokenize,
        openai::embeddings, openai::rerank, models::list, models::one,
        kserve::server, kserve::live, kserve::ready, kserve::model, kserve::model_ready, kserve::infer,
        status::health, status::metrics, models::info, page::page,
    ),
    security(("key" = [])),
    modifiers(&Key),
)]
struct Description;

struct Key;

impl Modify for Key {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        description.components.get_or_insert_default().add_security_scheme("key", scheme);
    }
}

/// The OpenAPI document of a server that asks for an API key, as JSON.
pub fn openapi_json() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| Description::openapi().to_pretty_json().unwrap_or_default())
}

/// The same for a server that asks for no key.
fn openapi_json_without_key() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut description = Description::openapi();
        description.security = None;
        description.to_pretty_json().unwrap_or_default()
    })
}

pub(super) async fn document(State(app): State<App>) -> Response {
    let text = if app.settings().api_key_file.is_some() { openapi_json() } else { openapi_json_without_key() };
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

pub(super) async fn to_page() -> Redirect {
    Redirect::permanent("/docs/index.html")
}

pub(super) async fn file(Path(name): Path<String>) -> ApiResult<Response> {
    let config = utoipa_swagger_ui::Config::from("/openapi.json").try_it_out_enabled(true).validator_url("none");
    match utoipa_swagger_ui::serve(&name, Arc::new(config)) {
        Ok(Some(found)) => {
            // Swagger's page sets styles of its own.
            let policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                          connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
            let headers =
                [(header::CONTENT_TYPE, found.content_type), (header::CONTENT_SECURITY_POLICY, policy.to_owned())];
            // Files lie in the binary as browsers take them.
            let packed = found.gzpipped.then_some([(header::CONTENT_ENCODING, "gzip")]);
            Ok((headers, packed.map(AppendHeaders), found.bytes.into_owned()).into_response())
        }
        Ok(None) => Err(ApiError::new(StatusCode::NOT_FOUND, "unknown_route", "no such file", "see /docs/index.html")),
        Err(_) => Err(ApiError::internal("the page cannot be made")),
    }
}
