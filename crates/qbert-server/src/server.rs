//! Connections: listening, serving, ending.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::app::App;
use crate::auth::require_key;
use crate::error::ServeError;
use crate::middleware::{after_panic, observe, take_model_off};
use crate::patience::Patient;
use crate::routes;
use crate::settings::Settings;

/// How long a thread of the system waits for work that blocks before it ends.
const KEEP_BLOCKING_THREADS: Duration = Duration::from_secs(5);

/// A server that listens. Its models may still be loading.
#[derive(Debug)]
pub struct Server {
    app: App,
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
}

impl Server {
    /// Checks the settings and listens at the address.
    ///
    /// # Errors
    /// If the settings are wrong or the address cannot be used.
    pub async fn bind(settings: Settings) -> Result<Self, ServeError> {
        let cors = cors(&settings)?;
        let address = (settings.host.as_str(), settings.port);
        let listen = |source| ServeError::Listen { address: format!("{}:{}", settings.host, settings.port), source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr()?;
        let app = App::new(settings)?;
        let router = routes::router(app.clone())
            .layer(axum::middleware::from_fn_with_state(app.clone(), require_key))
            .layer(tower::util::option_layer(cors))
            .layer(CatchPanicLayer::custom(after_panic))
            .layer(axum::middleware::from_fn_with_state(app.clone(), observe));
        Ok(Self { app, listener, address, router })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loads the models, serves until `stop` is done, then finishes what is in flight. `reload` yields whenever models should be
    /// opened anew.
    ///
    /// # Errors
    /// If a model cannot be opened.
    pub async fn serve(self, stop: impl Future<Output = ()>, reload: impl AsyncFnMut()) -> Result<(), ServeError> {
        let Self { app, listener, router, address } = self;
        tracing::info!(%address, models = app.registry().names().join(","), "listening");
        let graceful = GracefulShutdown::new();
        let loading = load(app.clone());
        let ended = tokio::select! {
            ended = loading_then_forever(loading) => ended,
            () = accept(&app, &listener, &router, &graceful) => Ok(()),
            () = reload_forever(&app, reload) => Ok(()),
            () = stop => Ok(()),
        };
        drop(listener);
        if ended.is_ok() {
            tracing::info!("shutting down: requests in flight are finished");
            let patience = app.settings().shutdown_timeout;
            if tokio::time::timeout(patience, graceful.shutdown()).await.is_err() {
                tracing::warn!(seconds = patience.as_secs_f64(), "requests are left unfinished");
            }
        }
        app.batcher().close();
        ended
    }
}

async fn load(app: App) -> Result<(), ServeError> {
    let models = app.clone();
    let loaded = tokio::task::spawn_blocking(move || models.registry().load()).await;
    loaded.map_err(|error| ServeError::System(std::io::Error::other(error)))??;
    tracing::info!(milliseconds = (app.uptime_seconds() * 1e3) as u64, "ready");
    Ok(())
}

/// Ends only if loading fails.
async fn loading_then_forever(loading: impl Future<Output = Result<(), ServeError>>) -> Result<(), ServeError> {
    loading.await?;
    std::future::pending().await
}

async fn reload_forever(app: &App, mut reload: impl AsyncFnMut()) {
    loop {
        reload().await;
        tracing::info!("opening the models anew");
        let app = app.clone();
        // Reading files blocks; requests go on meanwhile.
        let _ = tokio::task::spawn_blocking(move || app.reload()).await;
    }
}

async fn accept(app: &App, listener: &TcpListener, router: &Router, graceful: &GracefulShutdown) {
    let places = std::sync::Arc::new(tokio::sync::Semaphore::new(app.settings().max_connections));
    loop {
        let Ok(place) = std::sync::Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = serve_connection(app, stream, router.clone());
                let connection = graceful.watch(connection);
                tokio::spawn(async move {
                    // Clients that break off are not worth a line.
                    let _ = connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, mostly: closing connections will free some.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

type Connection = hyper::server::conn::http1::Connection<
    TokioIo<Patient<TcpStream>>,
    hyper_util::service::TowerToHyperService<
        tower::util::BoxCloneService<
            Request<hyper::body::Incoming>,
            axum::response::Response,
            std::convert::Infallible,
        >,
    >,
>;

fn serve_connection(app: &App, stream: TcpStream, router: Router) -> Connection {
    let _ = stream.set_nodelay(true);
    let service = router.map_request(|request: Request<hyper::body::Incoming>| take_model_off(request.map(Body::new)));
    let service = hyper_util::service::TowerToHyperService::new(tower::util::BoxCloneService::new(service));
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.settings().read_timeout)
        .max_buf_size(64 << 10)
        .half_close(false)
        .serve_connection(TokioIo::new(Patient::new(stream, app.settings().write_timeout)), service)
}

/// `None` where pages of other origins have nothing to ask.
fn cors(settings: &Settings) -> Result<Option<CorsLayer>, ServeError> {
    if settings.cors.is_empty() {
        return Ok(None);
    }
    let layer = CorsLayer::new().allow_methods(Any).allow_headers(Any).expose_headers(Any);
    if settings.cors.iter().any(|origin| origin == "*") {
        return Ok(Some(layer.allow_origin(Any)));
    }
    let parse = |origin: &String| {
        let wrong = || ServeError::Cors { origin: origin.clone() };
        let (scheme, host) = origin.split_once("://").ok_or_else(wrong)?;
        if !matches!(scheme, "http" | "https") || host.is_empty() || host.contains('/') {
            return Err(wrong());
        }
        HeaderValue::from_str(origin).map_err(|_| wrong())
    };
    let origins = settings.cors.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(layer.allow_origin(AllowOrigin::list(origins))))
}

/// Serves until the process is told to end (Ctrl-C, SIGTERM); SIGHUP opens the models anew.
///
/// # Errors
/// As for [`Server::bind`] and [`Server::serve`].
pub fn run(settings: Settings, listening: impl FnOnce(SocketAddr)) -> Result<(), ServeError> {
    // Connections need little: the workers of the queue do the work.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.threads.clamp(1, 4))
        .max_blocking_threads(settings.threads.clamp(1, 512))
        .thread_keep_alive(KEEP_BLOCKING_THREADS)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        let server = Server::bind(settings).await?;
        listening(server.address());
        let stop = signals::stop()?;
        let reload = signals::reload()?;
        server.serve(stop, reload).await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

#[cfg(unix)]
mod signals {
    use tokio::signal::unix::{SignalKind, signal};

    pub(super) fn stop() -> std::io::Result<impl Future<Output = ()>> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
    }

    pub(super) fn reload() -> std::io::Result<impl AsyncFnMut()> {
        let mut hangup = signal(SignalKind::hangup())?;
        Ok(async move || {
            if hangup.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(not(unix))]
mod signals {
    pub(super) fn stop() -> std::io::Result<impl Future<Output = ()>> {
        Ok(async {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    pub(super) fn reload() -> std::io::Result<impl AsyncFnMut()> {
        Ok(async || std::future::pending::<()>().await)
    }
}
