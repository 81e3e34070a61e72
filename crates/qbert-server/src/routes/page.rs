//! The page at `/`: one file of HTML, a style and a script, all inside the binary.

use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use sha2::{Digest, Sha256};

use crate::error::ErrorBody;

const PAGE: &str = include_str!("../page/index.html");
const STYLE: &str = include_str!("../page/style.css");
const SCRIPT: &str = include_str!("../page/script.js");

/// The page with its style and script, and the policy that allows nothing but these two.
fn parts() -> &'static (String, String) {
    static PARTS: OnceLock<(String, String)> = OnceLock::new();
    PARTS.get_or_init(|| {
        let hash = |text: &str| {
            let digest = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text.as_bytes()));
            format!("'sha256-{digest}'")
        };
        let page = PAGE.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
        let policy = format!(
            "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'",
            hash(STYLE),
            hash(SCRIPT)
        );
        (page, policy)
    })
}

/// A page to try the models.
#[utoipa::path(get, path = "/", tag = "server",
    responses((status = 200, description = "The page", body = String, content_type = "text/html; charset=utf-8"),
              (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn page() -> Response {
    let (page, policy) = parts();
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, page.as_str()).into_response()
}
