//! HTTP pages: health, version, metrics.

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

/// Creates the routes of the pages. Paths and responses are those of etcd.
pub fn routes(pipeline: Arc<Pipeline>, metrics: Arc<Metrics>) -> Router {
    check_pages("/livez", LIVEZ)
        .merge(check_pages("/healthz", LIVEZ))
        .merge(check_pages("/readyz", READYZ))
        .route("/health", get(health))
        .route("/version", get(version))
        .route("/metrics", get(async move || render_metrics(&metrics)))
        .with_state(pipeline)
}

/// A reason why the store is unhealthy. `alarm` is set if the reason is an alarm.
struct Problem {
    alarm: Option<&'static str>,
    reason: String,
}

/// Returns the reasons why the store is unhealthy, the worst first.
fn problems(status: &PipelineStatus) -> Vec<Problem> {
    let raised = |kind| status.alarms.iter().any(|alarm| alarm.kind == kind);
    let alarm = |name| Problem { alarm: Some(name), reason: format!("ALARM {name}") };
    let failed = |reason: &Arc<str>| Problem { alarm: None, reason: reason.to_string() };
    let full = status.no_space || raised(AlarmKind::NoSpace);
    let mut problems: Vec<_> = status.failure.iter().map(failed).collect();
    problems.extend(raised(AlarmKind::Corrupt).then(|| alarm("CORRUPT")));
    problems.extend(full.then(|| alarm("NOSPACE")));
    problems
}

/// The page /health. A client can exclude alarms. A liveness probe, for example, should
/// add `?exclude=NOSPACE`, because a restart does not help a full store.
async fn health(State(pipeline): State<Arc<Pipeline>>, RawQuery(query): RawQuery) -> Response {
    let excluded = query_values(query.as_deref(), "exclude");
    let counts = |problem: &Problem| !problem.alarm.is_some_and(|name| excluded.contains(name));
    let reason = problems(&pipeline.status()).into_iter().find(counts).map(|a| a.reason);
    let code = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let healthy = if reason.is_none() { "true" } else { "false" };
    (code, Json(json!({"health": healthy, "reason": reason.unwrap_or_default()}))).into_response()
}

/// A named check: returns why it fails, or `None`.
type Check = (&'static str, fn(&PipelineStatus) -> Option<String>);

/// These checks always succeed: a process that responds is alive.
const LIVEZ: &[Check] = &[("serializable_read", |_| None)];
/// The server is ready unless the alarm CORRUPT is raised or the log has failed.
const READYZ: &[Check] = &[
    ("data_corruption", |status| {
        let corrupt = status.alarms.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt);
        corrupt.then(|| "alarm activated: CORRUPT".into())
    }),
    ("serializable_read", |_| None),
    ("linearizable_read", |status| status.failure.as_ref().map(|reason| reason.to_string())),
    ("non_learner", |_| None),
];

/// Creates a page that runs all `checks`, and a subpage for each check.
fn check_pages(page: &'static str, checks: &'static [Check]) -> Router<Arc<Pipeline>> {
    let all = async move |State(pipeline): State<Arc<Pipeline>>, RawQuery(query): RawQuery| {
        let excluded = query_values(query.as_deref(), "exclude");
        let wanted = checks.iter().filter(|(name, _)| !excluded.contains(*name));
        run_checks(&pipeline.status(), wanted, query.as_deref())
    };
    let one = async move |State(pipeline): State<Arc<Pipeline>>,
                          Path(name): Path<String>,
                          RawQuery(query): RawQuery| {
        match checks.iter().find(|(check, _)| *check == name) {
            Some(check) => run_checks(&pipeline.status(), [check].into_iter(), query.as_deref()),
            None => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
        }
    };
    Router::new().route(page, get(all)).route(&format!("{page}/{{check}}"), get(one))
}

/// Runs `checks` and reports the results in the format of etcd.
fn run_checks<'a>(
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
        () if query_has(query, "verbose") => (lines + "ok\n").into_response(),
        () => "ok\n".into_response(),
    }
}

fn query_has(query: Option<&str>, name: &str) -> bool {
    query_pairs(query).any(|(key, _)| key == name)
}

fn query_values(query: Option<&str>, name: &str) -> HashSet<String> {
    query_pairs(query).filter(|(key, _)| key == name).map(|(_, value)| value.into_owned()).collect()
}

fn query_pairs(query: Option<&str>) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes())
}

async fn version() -> Response {
    let minor = ETCD_VERSION.rsplit_once('.').map_or(ETCD_VERSION, |(minor, _)| minor);
    // Formatted without a JSON library, to keep etcd's order of fields.
    let text = format!(
        r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{minor}.0","storage":"{minor}.0"}}"#
    );
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn render_metrics(metrics: &Metrics) -> Response {
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
