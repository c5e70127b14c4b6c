//! Startup, serving and shutdown of the server.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use data_dir::Identity;
use pipeline::Pipeline;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::client_routes::ClientRoutes;
use crate::config::Config;
use crate::credentials::Credentials;
use crate::listen::Served;
use crate::metrics::Metrics;
use crate::{auto_compaction, http, listen, shutdown};

/// Maximum number of threads for slow reads: those that run, and at most 532 that wait for another
/// turn.
const MAX_BLOCKING_THREADS: usize = 1024;
/// Interval at which the server checks whether its member of the cluster has ended.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the server until it gets SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()?;
    let result = runtime.block_on(serve_until_stopped(config));
    // Reads may still run on blocking threads. Their clients are disconnected, so do not
    // wait.
    runtime.shutdown_background();
    result
}

/// Why the server ends.
enum End {
    Stopped,
    /// The cluster has another member at the peer URLs of this one, which had no state.
    Replaced,
}

async fn serve_until_stopped(mut config: Config) -> Result<()> {
    let shutdown_signal = shutdown::install_signal_handlers().context("listen for signals")?;
    let mut shutdown_signal = std::pin::pin!(shutdown_signal);
    loop {
        match serve(&config, shutdown_signal.as_mut()).await? {
            End::Stopped => return Ok(()),
            End::Replaced => config.cluster.is_replaced = true,
        }
    }
}

/// The sockets of the server.
struct Bound {
    clients: Vec<sockets::Listener>,
    metrics_only: Vec<sockets::Listener>,
}

async fn bind(config: &Config) -> Result<Bound> {
    let tls = sockets::tls_acceptor(&config.tls)?;
    let mut bound = Bound { clients: Vec::new(), metrics_only: Vec::new() };
    for url in &config.listen_client_urls {
        bound.clients.extend(sockets::bind(url, tls.as_ref()).await?);
    }
    for url in &config.listen_metrics_urls {
        bound.metrics_only.extend(sockets::bind(url, None).await?);
    }
    Ok(bound)
}

async fn serve(
    config: &Config,
    mut shutdown_signal: Pin<&mut impl Future<Output = &'static str>>,
) -> Result<End> {
    // Bind the sockets before the recovery, which takes long: the most likely failure is
    // that a port is in use.
    let Bound { clients, metrics_only } = bind(config).await?;
    let credentials = Credentials::new(config).map_err(|error| anyhow!(error))?;

    let Some(pipeline) = open_pipeline(config, shutdown_signal.as_mut()).await? else {
        return Ok(End::Stopped);
    };
    let pipeline = Arc::new(pipeline);
    if config.cluster.checks_at_start() {
        tokio::select! {
            _ = shutdown_signal.as_mut() => return Ok(End::Stopped),
            compared = compare_members(&pipeline) => compared?,
        }
    }
    let metrics = Arc::new(Metrics::new(pipeline.clone()));
    let pages = http::routes(pipeline.clone(), metrics.clone());
    let api = Api::new(pipeline.clone(), metrics, credentials, config, pages.clone());
    let reads = api.paged_reads();
    let names_clients = config.tls.client_cert_auth;
    let permissions = &config.client_cert_permission;
    let calls = Arc::new(ClientRoutes::new(Arc::new(api), permissions, names_clients));

    let stop = CancellationToken::new();
    let permits = sockets::connection_permits(1);
    let options = config.grpc_options();
    let mut serving = JoinSet::new();
    for (listener, routes) in clients
        .into_iter()
        .map(|listener| (listener, Some(calls.clone())))
        .chain(metrics_only.into_iter().map(|listener| (listener, None)))
    {
        let served = Served { routes, pages: pages.clone(), options: options.clone() };
        serving.spawn(listen::serve(listener, served, permits.clone(), stop.clone()));
    }
    let log = match config.cluster.is_member() {
        true => config.cluster.log().name(),
        false => config.wal_mode().name(),
    };
    // etcd logs the same message, for which programs that start a server wait.
    tracing::info!(
        wal_mode = log,
        revision = pipeline.revision(),
        "ready to serve client requests"
    );

    let compaction = config.auto_compaction().map(|retention| {
        let task = auto_compaction::run(retention, pipeline.clone(), reads);
        tokio::spawn(task)
    });

    let end = tokio::select! {
        signal = shutdown_signal => {
            tracing::info!(signal, "shutting down");
            resign(config, &pipeline).await;
            Ok(End::Stopped)
        }
        end = member_end(config, &pipeline) => end,
    };
    if let Some(task) = compaction {
        task.abort();
    }
    stop.cancel();
    serving.join_all().await;
    // Use a new thread, because slow reads may occupy all blocking threads of the
    // runtime.
    let stopped = std::thread::spawn(move || pipeline.shutdown());
    stopped.join().map_err(|_| anyhow!("the shutdown of the store panicked"))?;
    end
}

/// Fails if other members have another content than this one at the same revision.
async fn compare_members(pipeline: &Pipeline) -> Result<()> {
    let different = pipeline.compare_members().await?;
    if different.is_empty() {
        return Ok(());
    }
    let different: Vec<_> = different.iter().map(|id| format!("{id:x}")).collect();
    Err(anyhow!(
        "the content of this member differs from that of the members {}: remove its data, and it joins again",
        different.join(", ")
    ))
}

/// Lets another member of the cluster lead before this one stops.
async fn resign(config: &Config, pipeline: &Arc<Pipeline>) {
    let Some(cluster) = config.cluster_options() else { return };
    let pipeline = pipeline.clone();
    // A new thread, because slow reads may occupy all blocking threads of the runtime.
    let (sender, done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        pipeline.resign(cluster.election_timeout);
        // The receiver waits.
        let _ = sender.send(());
    });
    let _ = done.await;
}

/// Waits until a member of a cluster ends. A failed one returns why: its process then ends, so that it is
/// started again. One that was removed ends without an error, as in etcd. A server without peers goes on to
/// serve reads.
async fn member_end(config: &Config, pipeline: &Pipeline) -> Result<End> {
    if !config.cluster.is_member() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(END_CHECK_INTERVAL).await;
        if let Some(reason) = pipeline.failure() {
            return Err(anyhow!("the member has failed: {reason}"));
        }
        if pipeline.is_removed() {
            return Ok(End::Stopped);
        }
        if pipeline.is_replaced() {
            return Ok(End::Replaced);
        }
    }
}

/// Opens the store, on a blocking thread because recovery takes long, and a member of a cluster waits
/// for the others. Returns `None` if a signal ends the wait.
async fn open_pipeline(
    config: &Config,
    shutdown_signal: impl Future<Output = &'static str>,
) -> Result<Option<Pipeline>> {
    let options = config.pipeline_options();
    let fresh = Identity { cluster_id: random_id(), member_id: random_id() };
    let Some(cluster) = config.cluster_options() else {
        let open = move || Pipeline::open(&options, fresh);
        return Ok(Some(tokio::task::spawn_blocking(open).await??));
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stops = stop.clone();
    let open = move || Pipeline::open_member(&options, &cluster, &stops);
    let mut opening = tokio::task::spawn_blocking(open);
    tokio::select! {
        opened = &mut opening => Ok(Some(opened??)),
        signal = shutdown_signal => {
            tracing::info!(signal, "shutting down before the cluster was formed");
            stop.store(true, Ordering::Relaxed);
            // It ends with an error, or the member is closed at once.
            let _ = opening.await;
            Ok(None)
        }
    }
}

fn random_id() -> u64 {
    rand::random_range(1..=u64::MAX)
}
