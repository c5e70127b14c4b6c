//! The proxy process: its startup, the handling of client connections, and its shutdown.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use sockets::Client;
use sockets::Detected;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::endpoints::{Endpoints, Protocol};
use crate::metrics::Metrics;
use crate::options::Serve;
use crate::recorder::{self, Recorder};
use crate::tap::Tap;
use crate::{pages, refusal, tunnel};

/// File descriptors per client connection: one for itself, one for the connection to the
/// endpoint.
const FILE_DESCRIPTORS_PER_CONNECTION: u64 = 2;

/// Runs the proxy until SIGTERM or SIGINT.
pub fn run(serve: Serve) -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve_until_signal(serve));
    runtime.shutdown_background();
    result
}

/// The state that all connections share.
struct Proxy {
    endpoints: Arc<Endpoints>,
    metrics: Arc<Metrics>,
    recorder: Option<Recorder>,
    /// Common names of the clients that are served; all if empty.
    allowed_names: Vec<String>,
    /// Number of HTTP/2 connections so far. The trace identifies a connection by this number.
    connections: AtomicU64,
}

/// Starts the listeners and the recorder, and stops them after a signal.
async fn serve_until_signal(serve: Serve) -> Result<()> {
    let tls = sockets::tls_acceptor(&serve.tls)?;
    let endpoints = Arc::new(Endpoints::new(&serve)?);
    let mut client_listeners = Vec::new();
    for url in &serve.listen {
        client_listeners.extend(sockets::bind(url, tls.as_ref()).await?);
    }
    let mut page_listeners = Vec::new();
    for url in &serve.listen_metrics_urls {
        page_listeners.extend(sockets::bind(url, None).await?);
    }
    let mut terminate =
        signal(SignalKind::terminate()).context("register a handler for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("register a handler for SIGINT")?;
    let metrics = Arc::new(Metrics::new());
    let (recorder, recorder_thread) = match &serve.record {
        Some(path) => Some(recorder::start(&serve, path, metrics.clone())?).unzip(),
        None => (None, None),
    };

    let state = pages::PageState { endpoints: endpoints.clone(), metrics: metrics.clone() };
    let pages = pages::routes(state);
    let connections = AtomicU64::new(0);
    let allowed_names = serve.client_cert_allowed_cn;
    let proxy = Arc::new(Proxy { endpoints, metrics, recorder, allowed_names, connections });
    let stop = CancellationToken::new();
    let permits = sockets::connection_permits(FILE_DESCRIPTORS_PER_CONNECTION);
    let mut serving = JoinSet::new();
    for listener in client_listeners {
        let proxy = proxy.clone();
        let forward = move |client: Client, stop| forward(client, proxy.clone(), stop);
        serving.spawn(listener.serve(forward, permits.clone(), stop.clone()));
    }
    for listener in page_listeners {
        let pages = pages.clone();
        let serve = move |client: Client, stop| pages::serve(client.io, pages.clone(), stop);
        serving.spawn(listener.serve(serve, permits.clone(), stop.clone()));
    }
    tracing::info!("ready");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("shutting down");
    stop.cancel();
    serving.join_all().await;
    if let Some(thread) = recorder_thread {
        thread.finish();
    }
    Ok(())
}

/// Opens a connection to an endpoint and forwards a client connection over it.
async fn forward(client: Client, proxy: Arc<Proxy>, stop: CancellationToken) -> Result<()> {
    let Client { io, certificate } = client;
    if let Err(error) = check_name(certificate.as_deref(), &proxy.allowed_names) {
        tracing::warn!(error = format!("{error:#}"), "rejected a client");
        return Ok(());
    }
    let detected = sockets::detect_http_version(io, &stop).await?;
    let protocol = match &detected {
        Detected::Http2(_) => Protocol::Http2,
        Detected::Other(_) => Protocol::Http1,
        Detected::Closed => return Ok(()),
    };
    let endpoint = match proxy.endpoints.connect(protocol).await {
        Ok(endpoint) => endpoint,
        Err(error) => return refuse(detected, &error, &proxy).await,
    };
    let _open = OpenConnection::new(&proxy.metrics);
    match detected {
        Detected::Http2(io) => {
            let number = proxy.connections.fetch_add(1, Ordering::Relaxed) + 1;
            let tap = Tap::new(number, proxy.metrics.clone(), proxy.recorder.clone());
            tunnel::forward_http2(io, endpoint, tap, stop).await?;
        }
        Detected::Other(io) => tunnel::forward_other(io, endpoint, stop).await?,
        Detected::Closed => {}
    }
    Ok(())
}

/// Checks that a client with this certificate (DER) is one of those that are served. A certificate
/// with several common names is none of them: the store might take another one.
fn check_name(certificate: Option<&[u8]>, allowed: &[String]) -> Result<()> {
    if allowed.is_empty() {
        return Ok(());
    }
    let certificate = certificate.context("the client has no certificate")?;
    let (_, certificate) =
        X509Certificate::from_der(certificate).context("parse the client's certificate")?;
    let names = certificate.subject().iter_common_name().map(|name| name.as_str());
    let names: Vec<&str> = names.collect::<Result<_, _>>().context("read the common name")?;
    ensure!(
        matches!(names[..], [name] if allowed.iter().any(|allowed| allowed == name)),
        "the common name {} is not in --client-cert-allowed-cn",
        names.join(", ")
    );
    Ok(())
}

/// Answers a client connection with an error, because no endpoint is reachable.
async fn refuse(detected: Detected, error: &anyhow::Error, proxy: &Proxy) -> Result<()> {
    proxy.metrics.connection_refused();
    let reason = format!("etcd-proxy: no endpoint can be reached: {error:#}");
    tracing::warn!(reason, "refusing the calls of a client connection");
    match detected {
        Detected::Http2(io) => refusal::refuse_grpc(io, &reason, &proxy.metrics).await,
        Detected::Other(io) => refusal::refuse_http1(io, &reason).await,
        Detected::Closed => Ok(()),
    }
}

/// A client connection that the metrics count as open until this value is dropped.
struct OpenConnection<'a>(&'a Metrics);

impl<'a> OpenConnection<'a> {
    fn new(metrics: &'a Metrics) -> Self {
        metrics.connection_opened();
        OpenConnection(metrics)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connection_closed();
    }
}
