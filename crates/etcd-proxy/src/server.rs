//! Puts the parts together, runs them, and takes them apart again.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use sockets::Io;
use sockets::Opened;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::endpoints::{Endpoints, Language};
use crate::metrics::Metrics;
use crate::options::Serve;
use crate::recorder::{self, Recorder};
use crate::tap::Tap;
use crate::{pages, refusal, tunnel};

/// A client's connection has a file of its own, and so has the one to the endpoint.
const FILES_EACH: u64 = 2;

/// Forwards until the process is asked to end.
pub fn run(serve: Serve) -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(forward(serve));
    runtime.shutdown_background();
    result
}

/// What every connection needs.
struct Shared {
    endpoints: Arc<Endpoints>,
    metrics: Arc<Metrics>,
    recorder: Option<Recorder>,
    connections: AtomicU64,
}

async fn forward(serve: Serve) -> Result<()> {
    let tls = sockets::acceptor(&serve.tls)?;
    let endpoints = Arc::new(Endpoints::new(&serve)?);
    let mut clients = Vec::new();
    for url in &serve.listen {
        clients.extend(sockets::bind(url, tls.as_ref()).await?);
    }
    let mut own = Vec::new();
    for url in &serve.listen_metrics_urls {
        own.extend(sockets::bind(url, None).await?);
    }
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    let metrics = Arc::new(Metrics::new());
    let (recorder, recording) = match &serve.record {
        Some(path) => Some(recorder::start(&serve, path, metrics.clone())?).unzip(),
        None => (None, None),
    };

    let told = pages::Told { endpoints: endpoints.clone(), metrics: metrics.clone() };
    let pages = pages::routes(told);
    let connections = AtomicU64::new(0);
    let shared = Arc::new(Shared { endpoints, metrics, recorder, connections });
    let stop = CancellationToken::new();
    let permits = sockets::connection_permits(FILES_EACH);
    let mut serving = JoinSet::new();
    for listener in clients {
        let shared = shared.clone();
        let forward = move |io, stop| connect(io, shared.clone(), stop);
        serving.spawn(listener.serve(forward, permits.clone(), stop.clone()));
    }
    for listener in own {
        let pages = pages.clone();
        let serve = move |io, stop| pages::serve(io, pages.clone(), stop);
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
    if let Some(recording) = recording {
        recording.finish();
    }
    Ok(())
}

/// Forwards a client's connection over one of its own.
async fn connect(io: Box<dyn Io>, shared: Arc<Shared>, stop: CancellationToken) -> Result<()> {
    let opened = sockets::open(io, &stop).await?;
    let language = match &opened {
        Opened::Http2(_) => Language::Http2,
        Opened::Other(_) => Language::Http1,
        Opened::Gone => return Ok(()),
    };
    let endpoint = match shared.endpoints.connect(language).await {
        Ok(endpoint) => endpoint,
        Err(error) => return refuse(opened, &error, &shared).await,
    };
    let _counted = Connected::new(&shared.metrics);
    match opened {
        Opened::Http2(io) => {
            let number = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
            let tap = Tap::new(number, shared.metrics.clone(), shared.recorder.clone());
            tunnel::http2(io, endpoint, tap, stop).await?;
        }
        Opened::Other(io) => tunnel::other(io, endpoint, stop).await?,
        Opened::Gone => {}
    }
    Ok(())
}

async fn refuse(opened: Opened, error: &anyhow::Error, shared: &Shared) -> Result<()> {
    shared.metrics.unreachable();
    let reason = format!("etcd-proxy: no endpoint can be reached: {error:#}");
    tracing::warn!(reason, "calls are refused");
    match opened {
        Opened::Http2(io) => refusal::grpc(io, &reason, &shared.metrics).await,
        Opened::Other(io) => refusal::http1(io, &reason).await,
        Opened::Gone => Ok(()),
    }
}

/// A connection, as long as it is there.
struct Connected<'a>(&'a Metrics);

impl<'a> Connected<'a> {
    fn new(metrics: &'a Metrics) -> Self {
        metrics.connected();
        Connected(metrics)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}
