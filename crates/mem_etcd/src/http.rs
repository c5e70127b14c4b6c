//! What is served besides gRPC: health, version, metrics.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use mvcc::AlarmKind;
use pipeline::Pipeline;
use serde_json::json;

use crate::config::ETCD_VERSION;
use crate::metrics::Metrics;

/// The routes, as etcd has them.
pub fn routes(pipeline: Arc<Pipeline>, metrics: Arc<Metrics>) -> Router {
    let health = Router::new()
        .route("/health", get(health))
        .route("/readyz", get(readyz))
        .with_state(pipeline);
    Router::new()
        .route("/livez", get(livez))
        .route("/healthz", get(livez))
        .route("/version", get(version))
        .route("/metrics", get(async move || render(&metrics)))
        .merge(health)
}

/// Why the store cannot do all of its work, if it cannot.
fn ailment(pipeline: &Pipeline) -> Option<String> {
    let status = pipeline.status();
    let raised = |kind| status.alarms.iter().any(|alarm| alarm.kind == kind);
    match () {
        () if status.failure.is_some() => status.failure.map(|failure| failure.to_string()),
        () if raised(AlarmKind::Corrupt) => Some("ALARM CORRUPT".into()),
        () if status.no_space || raised(AlarmKind::NoSpace) => Some("ALARM NOSPACE".into()),
        () => None,
    }
}

async fn health(State(pipeline): State<Arc<Pipeline>>) -> Response {
    let reason = ailment(&pipeline);
    let code = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let healthy = if reason.is_none() { "true" } else { "false" };
    (code, Json(json!({"health": healthy, "reason": reason.unwrap_or_default()}))).into_response()
}

/// Alive is whoever answers at all.
async fn livez(Query(query): Query<HashMap<String, String>>) -> Response {
    checks(&query, "livez", "serializable_read", None)
}

async fn readyz(
    State(pipeline): State<Arc<Pipeline>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    checks(&query, "readyz", "data_corruption", ailment(&pipeline))
}

/// One check in the form that Kubernetes gave such pages.
fn checks(
    query: &HashMap<String, String>,
    page: &str,
    check: &str,
    reason: Option<String>,
) -> Response {
    match reason {
        Some(reason) => {
            let text = format!("[-]{check} failed: {reason}\n{page} check failed\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
        None if query.contains_key("verbose") => {
            format!("[+]{check} ok\n{page} check passed\n").into_response()
        }
        None => "ok\n".into_response(),
    }
}

async fn version() -> Response {
    let minor = ETCD_VERSION.rsplit_once('.').map_or(ETCD_VERSION, |(minor, _)| minor);
    let cluster = format!("{minor}.0");
    Json(json!({"etcdserver": ETCD_VERSION, "etcdcluster": cluster, "storage": cluster}))
        .into_response()
}

fn render(metrics: &Metrics) -> Response {
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
