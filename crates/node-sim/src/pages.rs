//! The pages: faults, health and metrics.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::driver::Command;
use crate::metrics::Metrics;
use crate::sim::{Fault, Selection};

/// For how long a node that flaps is down, and up, unless the request says something else.
const FLAP_TIME: Duration = Duration::from_secs(60);

/// What the pages need.
pub struct PageState {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Whether all nodes have been started.
    pub is_ready: Arc<AtomicBool>,
    /// Faults.
    pub commands: mpsc::UnboundedSender<Command>,
}

/// The body of a request for a fault.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FaultRequest {
    all: bool,
    count: Option<usize>,
    zone: Option<String>,
    selector: Option<String>,
    names: Option<Vec<String>>,
    down: Option<String>,
    up: Option<String>,
    delay: Option<String>,
}

/// The routes of all pages.
pub fn routes(state: PageState) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/nodes/{fault}", post(inject))
        .with_state(Arc::new(state))
}

async fn readyz(State(state): State<Arc<PageState>>) -> Response {
    match state.is_ready.load(Relaxed) {
        true => "ok".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "nodes are starting").into_response(),
    }
}

async fn metrics(State(state): State<Arc<PageState>>) -> Response {
    match state.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

async fn inject(
    State(state): State<Arc<PageState>>,
    Path(fault): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !is_local(&headers) {
        let message = "faults are not taken from web pages, and only for a loopback address\n";
        return (StatusCode::FORBIDDEN, message).into_response();
    }
    let (selection, fault) = match parse(&fault, &body) {
        Ok(parsed) => parsed,
        Err(message) => return (StatusCode::BAD_REQUEST, message + "\n").into_response(),
    };
    let (reply, answer) = oneshot::channel();
    let sent = state.commands.send(Command { selection, fault, reply });
    match (sent, answer.await) {
        (Ok(()), Ok(nodes)) => axum::Json(json!({ "nodes": nodes })).into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the simulation has ended\n").into_response(),
    }
}

/// Whether a request is from a program on this machine. A browser would send one for any web page that
/// its user visits, also to a name that the page's owner lets resolve to a loopback address.
fn is_local(headers: &HeaderMap) -> bool {
    let is_from_page = headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| site != "none");
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    !is_from_page && host.is_some_and(is_loopback)
}

/// Whether a host, which may have a port, is this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn parse(fault: &str, body: &[u8]) -> Result<(Selection, Fault), String> {
    let request: FaultRequest =
        serde_json::from_slice(body).map_err(|error| format!("invalid request: {error}"))?;
    let duration = |name: &str, text: &Option<String>| {
        let parse = |text: &String| {
            humantime::parse_duration(text).map_err(|error| format!("{name} {text:?}: {error}"))
        };
        text.as_ref().map(parse).transpose()
    };
    let (down, up) = (duration("down", &request.down)?, duration("up", &request.up)?);
    let delay = duration("delay", &request.delay)?;
    if fault != "flap" && (down.is_some() || up.is_some()) {
        return Err("down and up are only for flap".to_owned());
    }
    if fault != "slow" && delay.is_some() {
        return Err("delay is only for slow".to_owned());
    }
    let fault = match fault {
        "stop" => Fault::Stop,
        "start" => Fault::Start,
        "flap" => Fault::Flap { down: down.unwrap_or(FLAP_TIME), up: up.unwrap_or(FLAP_TIME) },
        "slow" => Fault::Slow { delay: delay.ok_or("slow needs a delay, such as \"15s\"")? },
        other => return Err(format!("{other:?} is not stop, start, flap or slow")),
    };
    Ok((selection(request)?, fault))
}

fn selection(request: FaultRequest) -> Result<Selection, String> {
    let FaultRequest { all, count, zone, selector, names, .. } = request;
    let is_limited = count.is_some() || zone.is_some() || selector.is_some() || names.is_some();
    if all == is_limited {
        return Err("select nodes by count, zone, selector and names, or by \"all\": true".into());
    }
    let selector = selector.unwrap_or_default().parse()?;
    Ok(Selection { names, zone, selector, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_from_json() {
        let (selection, fault) =
            parse("flap", br#"{"zone": "a", "count": 3, "selector": "x=y", "down": "5s"}"#)
                .unwrap();
        assert_eq!((selection.zone.as_deref(), selection.count), (Some("a"), Some(3)));
        let Fault::Flap { down, up } = fault else { panic!("{fault:?}") };
        assert_eq!((down, up), (Duration::from_secs(5), FLAP_TIME));
        assert!(matches!(parse("stop", br#"{"all": true}"#).unwrap().1, Fault::Stop));
    }

    #[test]
    fn requests_of_web_pages_are_rejected() {
        let headers = |fields: &[(&'static str, &'static str)]| -> HeaderMap {
            let value = |(name, value): &(&'static str, &'static str)| {
                (header::HeaderName::from_static(name), header::HeaderValue::from_static(value))
            };
            fields.iter().map(value).collect()
        };
        for host in ["127.0.0.1:9480", "127.9.9.9", "localhost", "LOCALHOST:80", "[::1]:9480"] {
            assert!(is_local(&headers(&[("host", host)])), "{host}");
        }
        let typed = [("host", "localhost:1"), ("sec-fetch-site", "none")];
        assert!(is_local(&headers(&typed)));
        for (name, value) in [
            ("host", "example.com:9480"),
            ("host", "localhost.example.com"),
            ("host", "10.0.0.1:9480"),
            ("host", "127.0.0.1.example.com:9480"),
            ("host", "[::2]:9480"),
            ("origin", "http://127.0.0.1:9480"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-origin"),
        ] {
            let mut headers = headers(&[("host", "127.0.0.1:9480")]);
            headers.insert(name, header::HeaderValue::from_static(value));
            assert!(!is_local(&headers), "{name}: {value}");
        }
        assert!(!is_local(&HeaderMap::new()));
    }

    #[test]
    fn requests_that_are_not_clear_are_rejected() {
        for (fault, body) in [
            ("stop", "{}"),
            ("stop", ""),
            ("stop", r#"{"all": true, "count": 1}"#),
            ("stop", r#"{"count": -1}"#),
            ("stop", r#"{"zoen": "a"}"#),
            ("stop", r#"{"count": 1, "delay": "1s"}"#),
            ("start", r#"{"count": 1, "up": "1s"}"#),
            ("slow", r#"{"count": 1}"#),
            ("slow", r#"{"count": 1, "delay": "soon"}"#),
            ("flop", r#"{"count": 1}"#),
            ("stop", r#"{"selector": "=x"}"#),
        ] {
            assert!(parse(fault, body.as_bytes()).is_err(), "{fault} {body}");
        }
    }
}
