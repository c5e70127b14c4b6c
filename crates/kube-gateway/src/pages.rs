//! The gateway's own pages: health and metrics, on a port of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::protect::Protection;
use crate::upstream::Pool;

/// The state that the pages show.
pub struct PageState {
    /// The API servers.
    pub pool: Arc<Pool>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The limits.
    pub protection: Arc<Protection>,
    /// Whether clients are accepted.
    pub accepts: Arc<AtomicBool>,
    /// Cancelled when the process shuts down.
    pub stop: CancellationToken,
}

/// The routes of all pages. `/livez` and `/healthz` succeed while the process runs. `/readyz` fails
/// before clients are accepted, when the process shuts down, and while no API server is ready, so that a
/// load balancer chooses another gateway.
pub fn routes(state: PageState) -> Router {
    Router::new()
        .route("/livez", get(async || "ok"))
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(state))
}

async fn readyz(State(state): State<Arc<PageState>>) -> Response {
    let reason = if state.stop.is_cancelled() {
        "shutting down"
    } else if !state.accepts.load(Relaxed) {
        "the watch caches are not filled yet"
    } else if !state.pool.servers().iter().any(|server| server.is_ready()) {
        "no API server is ready"
    } else {
        return "ok".into_response();
    };
    (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
}

async fn metrics(State(state): State<Arc<PageState>>) -> Response {
    match state.metrics.render(&state.pool, &state.protection) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}
