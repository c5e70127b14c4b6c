//! One request and its answer, from the first byte to the last: counted as load of an API server,
//! in the metrics, and in the access log.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use http::{Method, Request, StatusCode};

use crate::metrics::Metrics;
use crate::request_info::RequestInfo;
use crate::turns;
use crate::upstream::{Member, Place, Server};

/// A request in progress. It ends when this value is dropped, with the body of the answer.
pub struct Exchange {
    started: Instant,
    method: Method,
    info: RequestInfo,
    user_agent: String,
    path: String,
    place: Option<(Arc<Server>, Arc<Member>)>,
    metrics: Arc<Metrics>,
    code: StatusCode,
    bytes: u64,
    failed: bool,
    logged: Sampled,
}

/// Whether the access log has this exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// Yes.
    Yes,
    /// Only if it fails.
    IfFailed,
    /// No: the access log is off.
    No,
}

impl Exchange {
    /// Starts an exchange.
    pub fn new<B>(
        request: &Request<B>,
        info: RequestInfo,
        logged: Sampled,
        metrics: Arc<Metrics>,
    ) -> Exchange {
        let logs = logged != Sampled::No;
        let text = |text: &str| if logs { text.to_owned() } else { String::new() };
        let agent = request.headers().get(http::header::USER_AGENT);
        Exchange {
            started: Instant::now(),
            method: request.method().clone(),
            user_agent: text(agent.and_then(|value| value.to_str().ok()).unwrap_or_default()),
            path: text(request.uri().path_and_query().map_or("", |path| path.as_str())),
            info,
            place: None,
            metrics,
            code: StatusCode::OK,
            bytes: 0,
            failed: false,
            logged,
        }
    }

    /// Counts the exchange as load of this connection and its server, and of no other one.
    pub fn assign(&mut self, place: &Place) {
        self.unassign();
        let (server, member) = (place.server().clone(), place.member().clone());
        self.counter(&server).fetch_add(1, Relaxed);
        member.streams.fetch_add(1, Relaxed);
        if !self.info.long_running {
            turns::request_began();
        }
        self.place = Some((server, member));
    }

    /// The request's method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The request.
    pub fn info(&self) -> &RequestInfo {
        &self.info
    }

    /// The API server to which the request was sent.
    pub fn server(&self) -> Option<&Arc<Server>> {
        self.place.as_ref().map(|(server, _)| server)
    }

    /// Notes the status of an answer of the gateway itself. It says nothing about an API server.
    pub fn answered_by_gateway(&mut self, code: StatusCode) {
        self.code = code;
    }

    /// Notes the status of an API server's answer.
    pub fn answered(&mut self, code: StatusCode) {
        self.code = code;
        if let Some((server, _)) = &self.place {
            server.answered(code == StatusCode::TOO_MANY_REQUESTS);
        }
    }

    /// Counts bytes of the answer's body.
    pub fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Notes that the answer broke off.
    pub fn failed(&mut self) {
        self.failed = true;
    }

    /// Counts the exchange as load of no server.
    pub fn unassign(&mut self) {
        if let Some((server, member)) = self.place.take() {
            self.counter(&server).fetch_sub(1, Relaxed);
            member.streams.fetch_sub(1, Relaxed);
            if !self.info.long_running {
                turns::request_ended();
            }
        }
    }

    fn counter<'a>(&self, server: &'a Server) -> &'a AtomicUsize {
        if self.info.long_running { &server.watches } else { &server.requests }
    }

    fn log(&self) {
        let log = match self.logged {
            Sampled::Yes => true,
            Sampled::IfFailed => self.failed || self.code.is_server_error(),
            Sampled::No => false,
        };
        if log {
            tracing::info!(
                target: "access",
                method = %self.method,
                path = self.path,
                user_agent = self.user_agent,
                server = self.place.as_ref().map(|(server, _)| server.address.as_str()),
                code = self.code.as_u16(),
                bytes = self.bytes,
                seconds = self.started.elapsed().as_secs_f64(),
                broken_off = self.failed,
                "request"
            );
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.log();
        let seconds = self.started.elapsed().as_secs_f64();
        self.metrics.exchange_ended(&self.info, self.code, seconds, self.bytes, self.failed);
        self.unassign();
    }
}
