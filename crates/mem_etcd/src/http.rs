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

impl Problem {
    fn other(reason: String) -> Self {
        Problem { alarm: None, reason }
    }
}

/// Returns why linearizable reads fail, or `None`.
async fn linearizable(pipeline: &Pipeline) -> Option<String> {
    let status = pipeline.status();
    if let Some(reason) = status.failure {
        return Some(reason.to_string());
    }
    // As in etcd, the check does not wait for a leader.
    if status.cluster.is_some_and(|cluster| cluster.leader == 0) {
        return Some("RAFT NO LEADER".into());
    }
    pipeline.linearize().await.err().map(|error| error.to_string())
}

/// Returns the reasons why the store is unhealthy, the worst first.
fn problems(status: &PipelineStatus) -> Vec<Problem> {
    let raised = |kind| status.alarms.iter().any(|alarm| alarm.kind == kind);
    let alarm = |name| Problem { alarm: Some(name), reason: format!("ALARM {name}") };
    let failed = |reason: &Arc<str>| Problem::other(reason.to_string());
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
    let linearizable = linearizable(&pipeline).await.map(Problem::other);
    let mut problems = problems(&pipeline.status());
    problems.extend(linearizable);
    let reason = problems.into_iter().find(counts).map(|a| a.reason);
    let code = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let healthy = if reason.is_none() { "true" } else { "false" };
    (code, Json(json!({"health": healthy, "reason": reason.unwrap_or_default()}))).into_response()
}

/// What the checks know.
struct Health {
    status: PipelineStatus,
    /// Why linearizable reads fail, if they do.
    linearizable: Option<String>,
}

impl Health {
    /// Reads what these checks need.
    async fn read(pipeline: &Pipeline, checks: &[&Check]) -> Health {
        let linearizable = match checks.iter().any(|(name, _)| *name == LINEARIZABLE_READ) {
            true => linearizable(pipeline).await,
            false => None,
        };
        Health { status: pipeline.status(), linearizable }
    }
}

/// A named check: returns why it fails, or `None`.
type Check = (&'static str, fn(&Health) -> Option<String>);

const LINEARIZABLE_READ: &str = "linearizable_read";

/// These checks always succeed: a process that responds is alive.
const LIVEZ: &[Check] = &[("serializable_read", |_| None)];
/// The server is ready unless the alarm CORRUPT is raised or the log has failed.
const READYZ: &[Check] = &[
    ("data_corruption", |health| {
        let corrupt = health.status.alarms.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt);
        corrupt.then(|| "alarm activated: CORRUPT".into())
    }),
    ("serializable_read", |_| None),
    (LINEARIZABLE_READ, |health| health.linearizable.clone()),
    ("non_learner", |health| {
        let is_learner = health.status.cluster.as_ref().is_some_and(|cluster| cluster.is_learner);
        is_learner.then(|| "the member does not vote yet".into())
    }),
];

/// Creates a page that runs all `checks`, and a subpage for each check.
fn check_pages(page: &'static str, checks: &'static [Check]) -> Router<Arc<Pipeline>> {
    let all = async move |State(pipeline): State<Arc<Pipeline>>, RawQuery(query): RawQuery| {
        let excluded = query_values(query.as_deref(), "exclude");
        let wanted = checks.iter().filter(|(name, _)| !excluded.contains(*name));
        let wanted: Vec<&Check> = wanted.collect();
        run_checks(&Health::read(&pipeline, &wanted).await, &wanted, query.as_deref())
    };
    let one = async move |State(pipeline): State<Arc<Pipeline>>,
                          Path(name): Path<String>,
                          RawQuery(query): RawQuery| {
        match checks.iter().find(|(check, _)| *check == name) {
            Some(check) => {
                let health = Health::read(&pipeline, &[check]).await;
                run_checks(&health, &[check], query.as_deref())
            }
            None => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
        }
    };
    Router::new().route(page, get(all)).route(&format!("{page}/{{check}}"), get(one))
}

/// Runs `checks` and reports the results in the format of etcd.
fn run_checks(health: &Health, checks: &[&Check], query: Option<&str>) -> Response {
    let (mut lines, mut failed) = (String::new(), false);
    for (name, check) in checks {
        match check(health) {
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
