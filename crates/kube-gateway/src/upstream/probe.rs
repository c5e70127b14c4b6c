//! Asks API servers whether they are ready, how much CPU they use, and which others there are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;

use super::connect::{Connector, Protocol, Speaker};
use super::load::read_cpu_seconds;
use super::pool::Pool;
use super::server::Server;
use crate::identity::FieldNames;

/// The gateway's own user. It needs no more than the group `system:monitoring` may: /readyz and
/// /metrics; and for `upstream.discover` a Role to list EndpointSlices in the namespace `default`.
pub const USER: &str = "system:kube-gateway";
/// The group of that user.
pub const GROUP: &str = "system:monitoring";
/// An API server that does not answer within this time counts as failed.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Timeouts in a row after which an API server counts as unready. A busy one is slow, and the others
/// would be slower without it.
const MAX_TIMEOUTS: u32 = 3;
/// Time between two reads of the metrics.
const METRICS_PERIOD: Duration = Duration::from_secs(15);
/// Bytes of an answer that is kept as a whole.
const MAX_ANSWER: usize = 4 << 20;
/// Bytes of answers that a connection holds until they are read. The metrics have several MB.
const WINDOW: u32 = 64 << 10;
/// Time between two reads of the EndpointSlices.
const DISCOVERY_PERIOD: Duration = Duration::from_secs(10);
/// The EndpointSlices of the Service of the API servers.
const ENDPOINT_SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices\
     ?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";

/// Probes the servers of a pool.
pub struct Prober {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Opens connections.
    pub connector: Arc<Connector>,
    /// Names of the identity's fields.
    pub names: Arc<FieldNames>,
    /// Time between two probes of a server.
    pub period: Duration,
}

/// Probes all servers until the process ends. With `discover`, keeps the pool as the EndpointSlices
/// say.
pub async fn probe_forever(prober: Arc<Prober>, discover: bool) {
    for server in prober.pool.servers().iter() {
        tokio::spawn(prober.clone().probe_server(server.clone()));
    }
    if discover {
        prober.discover_forever().await;
    }
}

impl Prober {
    /// Probes a server until it leaves the pool.
    pub async fn probe_server(self: Arc<Self>, server: Arc<Server>) {
        let mut probe = Probe::new(&self, &server);
        while self.pool.contains(&server) {
            probe.run().await;
            let period = self.period.mul_f64(rand::random_range(0.9..1.1));
            tokio::time::sleep(period).await;
        }
    }

    async fn discover_forever(self: Arc<Self>) {
        loop {
            match self.discover().await {
                Ok(addresses) => {
                    for server in self.pool.update(&addresses) {
                        tracing::info!(server = server.address, "found an API server");
                        tokio::spawn(self.clone().probe_server(server));
                    }
                }
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "failed to list API servers");
                }
            }
            tokio::time::sleep(DISCOVERY_PERIOD).await;
        }
    }

    async fn discover(&self) -> Result<Vec<String>> {
        let mut failure = anyhow::anyhow!("there is no API server");
        for server in self.pool.servers().iter() {
            let mut probe = Probe::new(self, server);
            match probe.get(ENDPOINT_SLICES).await {
                Ok((StatusCode::OK, body)) => return addresses(&body),
                Ok((code, _)) => failure = anyhow::anyhow!("{}: status {code}", server.address),
                Err(error) => failure = error.context(server.address.clone()),
            }
        }
        Err(failure)
    }
}

/// Returns the addresses in a list of EndpointSlices.
fn addresses(list: &[u8]) -> Result<Vec<String>> {
    let list: Value = serde_json::from_slice(list).context("parse the EndpointSlices")?;
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut addresses = Vec::new();
    for slice in array(&list["items"]) {
        let ports = array(&slice["ports"]);
        let named = ports.iter().find(|port| port["name"] == "https").or(ports.first());
        let Some(port) = named.and_then(|port| port["port"].as_u64()) else { continue };
        for endpoint in array(&slice["endpoints"]) {
            for address in array(&endpoint["addresses"]).iter().filter_map(Value::as_str) {
                let host =
                    if address.contains(':') { format!("[{address}]") } else { address.into() };
                addresses.push(format!("{host}:{port}"));
            }
        }
    }
    ensure!(!addresses.is_empty(), "the EndpointSlices of the Service kubernetes have no address");
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

/// The probing of one server, with a connection that stays open.
struct Probe<'a> {
    prober: &'a Prober,
    server: &'a Server,
    sender: Option<SendRequest<Empty<Bytes>>>,
    timeouts: u32,
    /// When the metrics were read, and the CPU seconds that they had.
    cpu: Option<(Instant, f64)>,
}

impl<'a> Probe<'a> {
    fn new(prober: &'a Prober, server: &'a Server) -> Probe<'a> {
        Probe { prober, server, sender: None, timeouts: 0, cpu: None }
    }

    async fn run(&mut self) {
        let ready = match tokio::time::timeout(TIMEOUT, self.get("/readyz")).await {
            Ok(result) => {
                self.timeouts = 0;
                result.is_ok_and(|(code, _)| code == StatusCode::OK)
            }
            Err(_) => {
                self.sender = None;
                self.timeouts += 1;
                self.server.is_ready() && self.timeouts < MAX_TIMEOUTS
            }
        };
        if ready && self.server.version().is_none() {
            self.read_version().await;
        }
        if self.server.set_ready(ready) {
            tracing::info!(server = self.server.address, ready, "an API server's state changed");
        }
        if ready && self.cpu.is_none_or(|(read, _)| read.elapsed() >= METRICS_PERIOD) {
            self.read_cpu().await;
        }
    }

    /// Asks for the version. Another process at the same address may have another one, so it is
    /// forgotten with the connection.
    async fn read_version(&mut self) {
        let Ok(Ok((StatusCode::OK, body))) =
            tokio::time::timeout(TIMEOUT, self.get("/version")).await
        else {
            return;
        };
        let version = serde_json::from_slice::<Value>(&body).unwrap_or_default();
        self.server.set_version(version["gitVersion"].as_str());
    }

    async fn read_cpu(&mut self) {
        let now = Instant::now();
        let read = async { read_cpu_seconds(self.ask("/metrics").await?.into_body()).await };
        let seconds = tokio::time::timeout(TIMEOUT, read).await.ok().and_then(Result::ok);
        if let (Some(seconds), Some((before, used))) = (seconds, self.cpu) {
            // A restarted server counts from zero again.
            let cores = (seconds - used).max(0.0) / (now - before).as_secs_f64();
            self.server.set_cores(cores);
        }
        // Without a value, the next attempt is also a period away.
        self.cpu = Some((now, seconds.unwrap_or_default()));
    }

    /// Returns the status and the whole body of an answer.
    async fn get(&mut self, path: &str) -> Result<(StatusCode, Bytes)> {
        let answer = self.ask(path).await?;
        let code = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| {
            self.sender = None;
            anyhow::anyhow!("{error}")
        })?;
        Ok((code, body.to_bytes()))
    }

    async fn ask(&mut self, path: &str) -> Result<Response<Incoming>> {
        let result = self.try_ask(path).await;
        if result.is_err() {
            self.sender = None;
        }
        result
    }

    async fn try_ask(&mut self, path: &str) -> Result<Response<Incoming>> {
        if self.sender.as_ref().is_none_or(|sender| sender.is_closed()) {
            self.sender = Some(self.connect().await?);
        }
        let sender = self.sender.as_mut().context("connected")?;
        let names = &self.prober.names;
        let request = Request::get(format!("https://kubernetes{path}"))
            .header(&names.user, HeaderValue::from_static(USER))
            .header(&names.group, HeaderValue::from_static(GROUP))
            .header("accept", "application/json, text/plain")
            .header("user-agent", concat!("kube-gateway/", env!("CARGO_PKG_VERSION")))
            .body(Empty::new())?;
        Ok(sender.send_request(request).await?)
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>> {
        self.server.set_version(None);
        let connector = &self.prober.connector;
        let address = &self.server.address;
        let io = connector.connect(address, Speaker::FrontProxy, Protocol::Http2).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(io))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection of a probe");
            }
        });
        Ok(sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_endpoint_slices() {
        let list = br#"{"items":[{"ports":[{"name":"https","port":6443}],
            "endpoints":[{"addresses":["10.0.0.2"]},{"addresses":["fd00::1"]}]}]}"#;
        assert_eq!(addresses(list).unwrap(), ["10.0.0.2:6443", "[fd00::1]:6443"]);
        assert!(addresses(br#"{"items":[]}"#).is_err());
    }
}
