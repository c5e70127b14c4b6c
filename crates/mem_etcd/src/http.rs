//! What is served besides gRPC: health, version, metrics.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use mvcc::AlarmKind;
use pipeline::{Pipeline, PipelineStatus};
use serde_json::json;
use url::form_urlencoded;

use crate::config::ETCD_VERSION;
use crate::metrics::Metrics;

/// The routes, as etcd has them.
pub fn routes(pipeline: Arc<Pipeline>, metrics: Arc<Metrics>) -> Router {
    checks("/livez", LIVEZ)
        .merge(checks("/healthz", LIVEZ))
        .merge(checks("/readyz", READYZ))
        .route("/health", get(health))
        .route("/version", get(version))
        .route("/metrics", get(async move || render(&metrics)))
        .with_state(pipeline)
}

/// A reason not to call the store healthy, and the alarm that it is, if it is one.
struct Ailment {
    alarm: Option<&'static str>,
    reason: String,
}

/// Why the store cannot do all of its work; the worst comes first.
fn ailments(status: &PipelineStatus) -> Vec<Ailment> {
    let raised = |kind| status.alarms.iter().any(|alarm| alarm.kind == kind);
    let alarm = |name| Ailment { alarm: Some(name), reason: format!("ALARM {name}") };
    let failed = |reason: &Arc<str>| Ailment { alarm: None, reason: reason.to_string() };
    let full = status.no_space || raised(AlarmKind::NoSpace);
    let mut ailments: Vec<_> = status.failure.iter().map(failed).collect();
    ailments.extend(raised(AlarmKind::Corrupt).then(|| alarm("CORRUPT")));
    ailments.extend(full.then(|| alarm("NOSPACE")));
    ailments
}

/// Alarms can be left out (`?exclude=NOSPACE`): kubeadm does so, for a store that
/// is full is not helped by a restart.
async fn health(State(pipeline): State<Arc<Pipeline>>, RawQuery(query): RawQuery) -> Response {
    let excluded = values(query.as_deref(), "exclude");
    let counts = |ailment: &Ailment| !ailment.alarm.is_some_and(|name| excluded.contains(name));
    let reason = ailments(&pipeline.status()).into_iter().find(counts).map(|a| a.reason);
    let code = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let healthy = if reason.is_none() { "true" } else { "false" };
    (code, Json(json!({"health": healthy, "reason": reason.unwrap_or_default()}))).into_response()
}

/// A check of a page, by name: why it fails, if it does.
type Check = (&'static str, fn(&PipelineStatus) -> Option<String>);

/// Alive is whoever answers at all.
const LIVEZ: &[Check] = &[("serializable_read", |_| None)];
const READYZ: &[Check] = &[
    ("data_corruption", |status| {
        let corrupt = status.alarms.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt);
        corrupt.then(|| "alarm activated: CORRUPT".into())
    }),
    ("serializable_read", |_| None),
    ("linearizable_read", |status| status.failure.as_ref().map(|reason| reason.to_string())),
    ("non_learner", |_| None),
];

/// The page of all `checks`, and below it one for each.
fn checks(page: &'static str, checks: &'static [Check]) -> Router<Arc<Pipeline>> {
    let all = async move |State(pipeline): State<Arc<Pipeline>>, RawQuery(query): RawQuery| {
        let excluded = values(query.as_deref(), "exclude");
        let wanted = checks.iter().filter(|(name, _)| !excluded.contains(*name));
        answer(&pipeline.status(), wanted, query.as_deref())
    };
    let one = async move |State(pipeline): State<Arc<Pipeline>>,
                          Path(name): Path<String>,
                          RawQuery(query): RawQuery| {
        match checks.iter().find(|(known, _)| *known == name) {
            Some(check) => answer(&pipeline.status(), [check].into_iter(), query.as_deref()),
            None => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
        }
    };
    Router::new().route(page, get(all)).route(&format!("{page}/{{check}}"), get(one))
}

/// The outcome of `checks`, as etcd writes it.
fn answer<'a>(
    status: &PipelineStatus,
    checks: impl Iterator<Item = &'a Check>,
    query: Option<&str>,
) -> Response {
    let (mut lines, mut failed) = (String::new(), false);
    for (name, check) in checks {
        match check(status) {
            None => lines.push_str(&format!("[+]{name} ok\n")),
            Some(reason) => {
                failed = true;
                lines.push_str(&format!("[-]{name} failed: {reason}\n"));
            }
        }
    }
    match () {
        () if failed => (StatusCode::SERVICE_UNAVAILABLE, lines + "\n").into_response(),
        () if has(query, "verbose") => (lines + "ok\n").into_response(),
        () => "ok\n".into_response(),
    }
}

fn has(query: Option<&str>, name: &str) -> bool {
    pairs(query).any(|(key, _)| key == name)
}

fn values(query: Option<&str>, name: &str) -> HashSet<String> {
    pairs(query).filter(|(key, _)| key == name).map(|(_, value)| value.into_owned()).collect()
}

fn pairs(query: Option<&str>) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes())
}

async fn version() -> Response {
    let minor = ETCD_VERSION.rsplit_once('.').map_or(ETCD_VERSION, |(minor, _)| minor);
    // In etcd's order, which a map does not keep.
    let text = format!(
        r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{minor}.0","storage":"{minor}.0"}}"#
    );
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn render(metrics: &Metrics) -> Response {
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
