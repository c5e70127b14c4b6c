//! Requests of the gateway itself to one API server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;

use crate::identity::FieldNames;
use crate::upstream::{Connector, GROUP, Protocol, Speaker, USER};

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Time for an answer. A busy API server takes seconds. How old an answer may be is up to who asks.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a list. A configuration of webhooks has some kilobytes for each.
const MAX_LIST: usize = 32 << 20;
/// Bytes of answers that a connection holds until they are read.
const WINDOW: u32 = 1 << 20;
/// Time after which an idle connection is tested, and for which it may not answer. Together they are how long the end
/// of a process can stay unnoticed that took its machine with it.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// Connects to API servers as the gateway itself. Its group may read `/flagz`; the ClusterRoles in
/// `deploy/kube-gateway/node-path.yaml` and `watches.yaml` allow its user the rest.
#[derive(Clone)]
pub struct Dialer {
    /// Opens connections.
    pub connector: Arc<Connector>,
    /// Names of the identity's fields.
    pub names: Arc<FieldNames>,
}

/// A connection to an API server. Clones share it.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    names: Arc<FieldNames>,
    ended: CancellationToken,
}

/// A request without its identity.
pub struct Ask<'a> {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    /// The media type of the answer.
    pub accept: &'static str,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
    /// Bytes of the answer, at most.
    pub max_answer: usize,
}

impl<'a> Ask<'a> {
    /// A GET of JSON.
    pub fn get(path: &'a str) -> Ask<'a> {
        let (accept, content_type) = ("application/json", "");
        let (method, body, max_answer) = (Method::GET, Vec::new(), MAX_LIST);
        Ask { method, path, accept, content_type, body, max_answer }
    }
}

impl Dialer {
    /// Connects to the API server at `address`.
    pub async fn connect(&self, address: &str) -> Result<Client> {
        let connect = self.connector.connect(address, Speaker::FrontProxy, Protocol::Http2);
        let io = within(CONNECT_TIMEOUT, connect).await?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io));
        let (sender, connection) = tokio::time::timeout(CONNECT_TIMEOUT, handshake).await??;
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        tokio::spawn(async move {
            let _cancelled_at_the_end = guard;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection of the detection");
            }
        });
        Ok(Client { sender, names: self.names.clone(), ended })
    }
}

impl Client {
    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Waits until the connection has ended, for example because the API server has.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Sends a request, and returns the status and the whole body of its answer.
    pub async fn send(&self, ask: Ask<'_>) -> Result<(StatusCode, Bytes)> {
        within(ANSWER_TIMEOUT, async {
            let max_answer = ask.max_answer;
            let answer = self.open(ask).await?;
            let code = answer.status();
            let body = Limited::new(answer.into_body(), max_answer).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}"))?;
            Ok((code, body.to_bytes()))
        })
        .await
    }

    /// Returns the body of the answer to a GET, which must succeed.
    pub async fn get(&self, path: &str) -> Result<Bytes> {
        let (code, body) = self.send(Ask::get(path)).await?;
        expect_status(path, StatusCode::OK, code)?;
        Ok(body)
    }

    /// Starts a watch.
    pub async fn watch(&self, ask: Ask<'_>) -> Result<Incoming> {
        let path = ask.path;
        let answer = within(ANSWER_TIMEOUT, self.open(ask)).await?;
        expect_status(path, StatusCode::OK, answer.status())?;
        Ok(answer.into_body())
    }

    async fn open(&self, ask: Ask<'_>) -> Result<Response<Incoming>> {
        let Ask { method, path, accept, content_type, body, .. } = ask;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://kubernetes{path}"))
            .header(&self.names.user, HeaderValue::from_static(USER))
            .header(&self.names.group, HeaderValue::from_static(GROUP))
            .header("accept", accept)
            .header("user-agent", concat!("kube-gateway/", env!("CARGO_PKG_VERSION")));
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        let request = request.body(Full::new(body.into()))?;
        Ok(self.sender.clone().send_request(request).await?)
    }
}

/// Describes an answer that is not a success, and for a lack of permission the remedy.
fn status_text(path: &str, code: StatusCode) -> String {
    let path = path.split('?').next().unwrap_or(path);
    if code != StatusCode::FORBIDDEN {
        return format!("{path}: status {}", code.as_u16());
    }
    let resource = path.rsplit('/').next().unwrap_or(path);
    let manifest = match resource {
        "configmaps" | "secrets" => "references.yaml",
        "pods"
        | "nodes"
        | "services"
        | "endpointslices"
        | "csidrivers"
        | "runtimeclasses"
        | "podcertificaterequests" => "watches.yaml",
        _ => "node-path.yaml",
    };
    format!("{path}: status 403; apply deploy/kube-gateway/{manifest}")
}

/// Whoever was asked is too busy to answer, or another client was faster. That says nothing else about it.
#[derive(Debug)]
pub struct Busy(String);

impl fmt::Display for Busy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Busy {}

/// Fails as [`status_error`] unless an answer has the expected status.
pub fn expect_status(path: &str, expected: StatusCode, code: StatusCode) -> Result<()> {
    if code == expected { Ok(()) } else { Err(status_error(path, code)) }
}

/// Returns the error of an answer that is not a success: [`Busy`], or another one.
pub fn status_error(path: &str, code: StatusCode) -> anyhow::Error {
    let text = status_text(path, code);
    match code {
        StatusCode::CONFLICT
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Busy(text).into(),
        _ => anyhow::anyhow!(text),
    }
}

/// Waits for something from outside. After the time the error is [`Busy`].
pub async fn within<T>(time: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Busy(format!("no answer within {} s", time.as_secs())).into();
    tokio::time::timeout(time, work).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_is_busy_has_not_answered() {
        let late = within(ANSWER_TIMEOUT, std::future::pending::<Result<()>>()).await;
        let late = late.map_err(|error| error.context("connect")).unwrap_err();
        assert_eq!(format!("{late:#}"), "connect: no answer within 10 s");
        assert!(late.is::<Busy>());
        for (code, busy) in
            [(409, true), (429, true), (503, true), (504, true), (403, false), (500, false)]
        {
            let error = status_error("/version", StatusCode::from_u16(code).unwrap());
            assert_eq!(error.is::<Busy>(), busy, "{code}");
        }
    }

    #[test]
    fn a_lack_of_permission_names_the_manifest() {
        for (path, code, remedy) in [
            ("/api/v1/pods?watch=1", StatusCode::FORBIDDEN, "/watches.yaml"),
            ("/api/v1/namespaces?limit=1", StatusCode::FORBIDDEN, "/node-path.yaml"),
            ("/api/v1/secrets?watch=1", StatusCode::FORBIDDEN, "/references.yaml"),
            ("/api/v1/secrets", StatusCode::NOT_FOUND, "status 404"),
        ] {
            let text = status_text(path, code);
            assert!(text.ends_with(remedy), "{text}");
        }
    }
}
