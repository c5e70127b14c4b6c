//! Startup, serving and shutdown of the server.

use std::sync::Arc;

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

/// Runs the server until it gets SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()?;
    let result = runtime.block_on(serve(config));
    // Reads may still run on blocking threads. Their clients are disconnected, so do not
    // wait.
    runtime.shutdown_background();
    result
}

async fn serve(config: Config) -> Result<()> {
    // Bind the sockets before the recovery, which takes long: the most likely failure is
    // that a port is in use.
    let tls = sockets::tls_acceptor(&config.tls)?;
    let mut clients = Vec::new();
    for url in &config.listen_client_urls {
        clients.extend(sockets::bind(url, tls.as_ref()).await?);
    }
    let mut metrics_only = Vec::new();
    for url in &config.listen_metrics_urls {
        metrics_only.extend(sockets::bind(url, None).await?);
    }
    let credentials = Credentials::new(&config).map_err(|error| anyhow!(error))?;
    let shutdown_signal = shutdown::install_signal_handlers().context("listen for signals")?;

    let pipeline = Arc::new(open_pipeline(&config).await?);
    let metrics = Arc::new(Metrics::new(pipeline.clone()));
    let pages = http::routes(pipeline.clone(), metrics.clone());
    let api = Api::new(pipeline.clone(), metrics, credentials, &config, pages.clone());
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
    tracing::info!(wal_mode = config.wal_mode.name(), revision = pipeline.revision(), "ready");

    let compaction = config.auto_compaction().map(|retention| {
        let task = auto_compaction::run(retention, pipeline.clone());
        tokio::spawn(task)
    });

    let signal = shutdown_signal.await;
    tracing::info!(signal, "shutting down");
    if let Some(task) = compaction {
        task.abort();
    }
    stop.cancel();
    serving.join_all().await;
    // Use a new thread, because slow reads may occupy all blocking threads of the
    // runtime.
    let stopped = std::thread::spawn(move || pipeline.shutdown());
    stopped.join().map_err(|_| anyhow!("the shutdown of the store panicked"))
}

/// Opens the store, on a blocking thread because recovery takes long.
async fn open_pipeline(config: &Config) -> Result<Pipeline> {
    let options = config.pipeline_options();
    let fresh = Identity { cluster_id: random_id(), member_id: random_id() };
    Ok(tokio::task::spawn_blocking(move || Pipeline::open(&options, fresh)).await??)
}

fn random_id() -> u64 {
    rand::random_range(1..=u64::MAX)
}
