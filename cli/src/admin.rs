//! The HTTP listener for operators: metrics, and whether the process lives and serves.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | all metrics, as OpenMetrics or Prometheus text, whichever the scraper asks for |
//! | `/healthz` | 200 unless a critical task died, then 503 |
//! | `/readyz` | 200 when the role serves, else 503 |
//!
//! The last two answer with one JSON object: `role`, `state`, `ok` and `why`. Everything else is 404 with the list of paths.
//!
//! It is plain HTTP without authentication and tells nothing of what is stored; it listens on loopback unless told otherwise.
//!
//! # Bounds
//! At most [`CONNECTIONS_MAX`] connections at a time, each for one request and at most [`CONNECTION_DEADLINE`], whatever its peer
//! does; further ones wait in the kernel's queue. A request's head is at most 16 KiB, its body is not read.
//!
//! It lives in a task tree of its own, stopped last, so that it can still say that the role is stopping or has failed. Its own
//! end is an error in the log and nothing more: a node that cannot be looked at still serves.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bookie::Bookie;
use common::metrics::Shelf;
use common::net::{BoxStream, Listener as _, TcpListener};
use common::shutdown::TaskTree;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;

use crate::Fault;
use crate::health::{Answer, Condition, Health};

pub mod metrics;

/// Connections served at a time.
pub const CONNECTIONS_MAX: usize = 16;
/// How long one connection may take, from its first byte to its last.
pub const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: usize = 16 << 10;
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the listener shows.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The metrics of this process; components add theirs as they come up.
    pub metrics: Shelf,
    /// The role's health.
    pub health: Health,
}

impl Admin {
    /// Of a role that is being started, with the metrics of the process itself.
    pub fn new(health: Health) -> Self {
        let shelf = Shelf::new();
        shelf.add(metrics::process(&health));
        Self { metrics: shelf, health }
    }

    /// Shows a bookie's metrics, and counts the role as read-only whenever the bookie is.
    pub fn watch_bookie(&self, bookie: &Bookie) {
        self.health.watch_bookie(bookie);
        self.metrics.add(bookie.metrics());
    }
}

/// Binds the address of the listener; best before anything else of the role exists, so that a busy port is told at once.
///
/// # Errors
/// A sentence that names the address and says what to do.
pub async fn bind(address: &str) -> Result<TcpListener, Fault> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| Fault::usage(format!("metrics and health: {error} (--admin, or the setting admin)")))
}

/// How far the port of metrics and health is above that of the role's front: far enough that roles whose fronts have ports side by
/// side do not meet.
const PORTS_ABOVE: u16 = 1_000;

/// Where to listen, from the setting `admin` and the address of the role's front. Nothing said means loopback, 1000 above the front's
/// port (any free one, where the front's is any free one); `off` means nowhere.
pub fn address(admin: &str, front: &str) -> Option<String> {
    match admin {
        "off" => None,
        "" => {
            let port = front.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).unwrap_or(0);
            let above = if port == 0 { 0 } else { port.checked_add(PORTS_ABOVE).unwrap_or(0) };
            Some(format!("127.0.0.1:{above}"))
        }
        given => Some(given.to_owned()),
    }
}

/// Serves until `tasks` is asked to stop; gives the address. To be called before a role starts, which may take long: then it can
/// be seen that it is being started.
pub fn serve(listener: TcpListener, admin: Admin, tasks: &TaskTree) -> String {
    let address = listener.address();
    let mut registry = Registry::default();
    admin.metrics.register(&mut registry);
    let shown = Arc::new(Shown { registry, health: admin.health });
    let router = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(show_health))
        .route("/readyz", get(show_readiness))
        .fallback(unknown_path)
        .with_state(shown);
    tracing::info!(address, "metrics and health are served");
    tasks.spawn("admin", accept(listener, router, tasks.clone()));
    address
}

struct Shown {
    registry: Registry,
    health: Health,
}

async fn accept(mut listener: TcpListener, router: Router, tasks: TaskTree) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let next = async {
            // The semaphore is never closed, so this waits until a place is free.
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = tasks.stopping() => return,
            next = next => next,
        };
        match accepted {
            Ok((stream, _peer)) => {
                let (router, stopping) = (router.clone(), tasks.clone());
                tasks.spawn("connection", async move {
                    tokio::select! {
                        biased;
                        () = stopping.stopping() => {}
                        _late = tokio::time::timeout(CONNECTION_DEADLINE, answer(stream, router)) => {}
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::error!(%error, "metrics and health are no longer served");
                return;
            }
        }
    }
}

async fn answer(stream: BoxStream, router: Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a peer of the metrics listener went away");
    }
}

async fn show_metrics(State(shown): State<Arc<Shown>>, headers: HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    let mut body = String::with_capacity(64 << 10);
    let (written, kind) = if accepted.contains("application/openmetrics-text") {
        (text::encode(&mut body, &shown.registry), OPEN_METRICS)
    } else {
        (prometheus_text::encode(&mut body, &shown.registry), prometheus_text::CONTENT_TYPE)
    };
    match written {
        Ok(()) => ([(header::CONTENT_TYPE, kind)], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("write metrics: {error}\n")).into_response(),
    }
}

async fn show_health(State(shown): State<Arc<Shown>>) -> Response {
    told(&Answer::new(&shown.health, Condition::is_alive))
}

async fn show_readiness(State(shown): State<Arc<Shown>>) -> Response {
    told(&Answer::new(&shown.health, Condition::is_serving))
}

fn told(answer: &Answer) -> Response {
    let status = if answer.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match serde_json::to_string(answer) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body + "\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("write the answer: {error}\n")).into_response(),
    }
}

async fn unknown_path(uri: axum::http::Uri) -> Response {
    let mut body = format!("nothing at {}; there are:\n", uri.path());
    for (path, what) in [
        ("/metrics", "all metrics, for Prometheus"),
        ("/healthz", "200 unless a critical task died"),
        ("/readyz", "200 when the role serves"),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(body, "  {path:<10} {what}");
    }
    (StatusCode::NOT_FOUND, body).into_response()
}

#[cfg(test)]
mod tests;
