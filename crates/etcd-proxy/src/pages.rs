//! The proxy's own HTTP pages: health, version and metrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use sockets::Io;
use tokio_util::sync::CancellationToken;

use crate::endpoints::{Endpoints, Protocol};
use crate::metrics::Metrics;

/// The state that the pages show.
pub struct PageState {
    pub endpoints: Arc<Endpoints>,
    pub metrics: Arc<Metrics>,
}

/// The routes of all pages. `/livez` always succeeds. `/health` and `/readyz` succeed if an
/// endpoint is reachable.
pub fn routes(state: PageState) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(health))
        .route("/health", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(state))
}

async fn health(State(state): State<Arc<PageState>>) -> Response {
    let (code, reason) = match state.endpoints.connect(Protocol::Http1).await {
        Ok(_) => (StatusCode::OK, String::new()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")),
    };
    let healthy = if reason.is_empty() { "true" } else { "false" };
    (code, Json(json!({"health": healthy, "reason": reason}))).into_response()
}

async fn version() -> Json<serde_json::Value> {
    Json(json!({"etcd-proxy": env!("CARGO_PKG_VERSION")}))
}

async fn metrics(State(state): State<Arc<PageState>>) -> Response {
    match state.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Serves the pages on a connection. After `stop`, the request in progress is completed and the
/// connection is closed.
pub async fn serve(io: Box<dyn Io>, pages: Router, stop: CancellationToken) -> anyhow::Result<()> {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new());
    server.max_buf_size(sockets::HTTP1_HEAD_BYTES);
    server.header_read_timeout(sockets::HTTP1_HEAD_TIMEOUT);
    let mut connection =
        std::pin::pin!(server.serve_connection(TokioIo::new(io), TowerToHyperService::new(pages)));
    tokio::select! {
        result = connection.as_mut() => return Ok(result?),
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}
