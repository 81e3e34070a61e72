//! HTTP over packed models: `qbert serve`.
//!
//! ```no_run
//! use qbert_server::{ModelSource, Settings};
//!
//! let settings = Settings::new(vec![ModelSource::parse("reviews=model.qbert")?]);
//! qbert_server::run(settings, |address| println!("listening at http://{address}"))?;
//! # Ok::<(), qbert_server::ServeError>(())
//! ```
//!
//! A request goes this way: `middleware` gives it an id, `auth` looks at its key, `routes` reads its form, `app` tokenizes it
//! within the limits, `batcher` computes its sequences together with those of other clients, and the route writes the answer.
//! No route computes anything, and nothing but the batcher's workers does.

mod app;
mod auth;
mod batcher;
mod body;
mod error;
mod logs;
mod metrics;
mod middleware;
mod patience;
mod registry;
mod routes;
mod server;
mod settings;

pub use error::ServeError;
pub use logs::{LogFormat, start_logging};
pub use routes::openapi_json;
pub use server::{Server, run};
pub use settings::{ModelSource, Settings};

// Types of other crates that appear in signatures here.
pub use qbert_runtime::Pooling;
pub use tracing::level_filters::LevelFilter;
