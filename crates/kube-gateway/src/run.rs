//! The process: its startup and shutdown.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use http::HeaderName;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::balance::{Freshness, balance_forever};
use crate::config::{Configuration, LeaseMode, NodePath, WatchMode};
use crate::control;
use crate::forward::Shared;
use crate::front::{Front, FrontFiles, FrontTls, Pace, Workers, listen};
use crate::http1;
use crate::identity::FieldNames;
use crate::metrics::Metrics;
use crate::node_path::leases::Leases;
use crate::node_path::watches::{self, ReadPermissions, StoredObjects, Watches};
use crate::node_path::{Detection, Dialer, Permission, Reviewer};
use crate::options::{LogFormat, Options};
use crate::pages::{self, PageState};
use crate::protect::Protection;
use crate::reload::{self, Reloader};
use crate::upstream::{Connector, ConnectorFiles, Pool, Prober, probe_forever};

/// File descriptors of a client connection: its own, and that of its connection to an API server.
const FILES_PER_CONNECTION: u64 = 2;
/// For how long the start waits for the watch caches.
const CACHE_WAIT: Duration = Duration::from_secs(10);

/// Runs the gateway until SIGTERM or SIGINT.
pub fn run(options: &Options) -> Result<()> {
    let configuration = reload::configuration(options)?;
    start_log(options);
    let gateway = Gateway::new(configuration)?;
    if options.check {
        println!("{}: ok", options.config.display());
        return Ok(());
    }
    // Accepts and probes; clients are served by threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(gateway.serve_until_signal(options));
    runtime.shutdown_background();
    result
}

fn start_log(options: &Options) {
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(options.log_level)
        .with_ansi(std::io::stderr().is_terminal());
    match options.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
}

/// What may be served without an API server.
#[derive(Clone, Default)]
struct Permissions {
    renewals: Permission,
    reads: ReadPermissions,
}

/// Everything that is read before the first client is served.
struct Gateway {
    configuration: Configuration,
    tls: Arc<FrontTls>,
    connector: Arc<Connector>,
    pool: Arc<Pool>,
    names: Arc<FieldNames>,
    /// The configuration in force. `configuration` is the one of the start.
    config: Arc<ArcSwap<Configuration>>,
    protection: Arc<Protection>,
}

impl Gateway {
    fn new(configuration: Configuration) -> Result<Gateway> {
        let Configuration { listen, upstream, request_header, .. } = &configuration;
        let tls = Arc::new(FrontTls::new(FrontFiles {
            cert: listen.cert_file.clone(),
            key: listen.key_file.clone(),
            client_ca: listen.client_ca_file.clone(),
            front_proxy: request_header.cert_file.clone(),
        })?);
        let files = ConnectorFiles {
            ca: upstream.ca_file.clone(),
            cert: request_header.cert_file.clone(),
            key: request_header.key_file.clone(),
            server_name: upstream.server_name.clone(),
        };
        let connector = Arc::new(Connector::new(files, upstream.connect_timeout.0)?);
        let pool = Arc::new(Pool::new(&upstream.servers));
        let names = Arc::new(field_names(&configuration)?);
        let config = Arc::new(ArcSwap::from_pointee(configuration.clone()));
        let protection = Arc::new(Protection::new(&configuration));
        Ok(Gateway { configuration, tls, connector, pool, names, config, protection })
    }

    async fn serve_until_signal(self, options: &Options) -> Result<()> {
        let Configuration { listen: front, control, .. } = &self.configuration;
        let listeners = listen(&front.address).await?;
        let pages = listen(&front.metrics_address).await?;
        let control = control.socket.as_deref().map(control::listen).transpose()?;
        let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
        let stop = CancellationToken::new();
        let metrics = Arc::new(Metrics::new());
        let accepts = Arc::new(AtomicBool::new(false));
        self.start_pages(pages, metrics.clone(), accepts.clone(), stop.clone());
        if let Some(listener) = control {
            tokio::spawn(control::serve(listener, self.protection.clone(), stop.clone()));
        }
        let prober = Arc::new(self.prober());
        tokio::spawn(probe_forever(prober.clone(), self.configuration.upstream.discover));
        let (pool, config) = (self.pool.clone(), self.config.clone());
        tokio::spawn(balance_forever(pool, config, metrics.clone()));
        tokio::spawn(self.reloader(options, prober, metrics.clone()).run_forever());
        let permissions = self.start_detection(metrics.clone())?;
        let front = Arc::new(self.front(metrics, permissions)?);
        if let Some(watches) = &front.shared.watches {
            watches.wait(CACHE_WAIT).await;
        }
        let mut serving = JoinSet::new();
        for listener in listeners {
            serving.spawn(front.clone().run(listener, stop.clone()));
        }
        accepts.store(true, Relaxed);
        let config = options.config.display().to_string();
        tracing::info!(config, listen = self.configuration.listen.address, "ready");
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("shutting down");
        stop.cancel();
        serving.join_all().await;
        if let Some(socket) = &self.configuration.control.socket {
            // One that stays is replaced by the next process.
            let _ = std::fs::remove_file(socket);
        }
        Ok(())
    }

    fn start_pages(
        &self,
        listeners: Vec<TcpListener>,
        metrics: Arc<Metrics>,
        accepts: Arc<AtomicBool>,
        stop: CancellationToken,
    ) {
        let (pool, protection) = (self.pool.clone(), self.protection.clone());
        let routes = pages::routes(PageState { pool, metrics, protection, accepts, stop });
        for listener in listeners {
            tokio::spawn(serve_pages(listener, routes.clone()));
        }
    }

    fn prober(&self) -> Prober {
        Prober {
            pool: self.pool.clone(),
            connector: self.connector.clone(),
            names: self.names.clone(),
            period: self.configuration.upstream.probe_period.0,
        }
    }

    fn dialer(&self) -> Dialer {
        Dialer { connector: self.connector.clone(), names: self.names.clone() }
    }

    /// Starts the detection of what would see the requests of nodes that are served, unless none are.
    fn start_detection(&self, metrics: Arc<Metrics>) -> Result<Permissions> {
        let permissions = Permissions::default();
        let config = self.configuration.node_path.clone();
        if config.leases.mode != LeaseMode::Off || config.serves_reads() {
            let (pool, dialer) = (self.pool.clone(), self.dialer());
            let Permissions { renewals, reads } = permissions.clone();
            Detection { config, pool, dialer, metrics, renewals, reads }.start()?;
        }
        Ok(permissions)
    }

    fn front(&self, metrics: Arc<Metrics>, permissions: Permissions) -> Result<Front> {
        let workers = Workers::start()?;
        let watches = self.start_watches(&workers, metrics.clone(), permissions.reads)?;
        let stored = watches.as_ref().and_then(|watches| watches.stored_leases());
        let leases = self.start_leases(&workers, metrics.clone(), permissions.renewals, stored);
        let shared = Shared {
            pool: self.pool.clone(),
            connector: self.connector.clone(),
            names: self.names.clone(),
            freshness: Arc::new(Freshness::new(self.pool.clone())),
            metrics,
            protection: self.protection.clone(),
            leases,
            watches,
            config: self.config.clone(),
        };
        let listen = &self.configuration.listen;
        Ok(Front {
            tls: self.tls.clone(),
            max_streams: listen.max_streams,
            shared: Arc::new(shared),
            permits: sockets::connection_permits(FILES_PER_CONNECTION),
            pace: Pace::new(listen.handshakes_per_second),
            workers,
        })
    }

    /// Starts what serves renewals of Leases, unless that is off.
    fn start_leases(
        &self,
        workers: &Workers,
        metrics: Arc<Metrics>,
        permission: Permission,
        stored: Option<StoredObjects>,
    ) -> Option<Arc<Leases>> {
        let config = &self.configuration.node_path;
        if config.leases.mode == LeaseMode::Off {
            return None;
        }
        let reviewer = Reviewer { pool: self.pool.clone(), dialer: self.dialer() };
        let leases = Leases::new(config, permission, reviewer, stored, workers.count(), metrics);
        let leases = Arc::new(leases);
        workers.on_each(|worker| leases.clone().connect_forever(worker));
        tokio::spawn(leases.clone().follow_versions_forever());
        Some(leases)
    }

    /// Starts what serves watches and lists of kubelets and of Leases, unless both are off.
    fn start_watches(
        &self,
        workers: &Workers,
        metrics: Arc<Metrics>,
        permissions: ReadPermissions,
    ) -> Result<Option<Arc<Watches>>> {
        let config = &self.configuration.node_path;
        if !config.serves_reads() {
            return Ok(None);
        }
        let NodePath { store, leases, watches } = config;
        let serves_leases = leases.watch != WatchMode::Off;
        let options = watches::Options {
            nodes: watches.mode != WatchMode::Off,
            max_referenced_bytes: watches.references.then_some(watches.max_referenced_bytes.0),
            leases: serves_leases.then(|| store.clone()),
        };
        let reviewer = Reviewer { pool: self.pool.clone(), dialer: self.dialer() };
        let watches = Watches::start(permissions, reviewer, &options, workers.count(), metrics)?;
        workers.on_each(|worker| watches.clone().wake_forever(worker));
        Ok(Some(watches))
    }

    fn reloader(&self, options: &Options, prober: Arc<Prober>, metrics: Arc<Metrics>) -> Reloader {
        Reloader {
            options: options.clone(),
            tls: self.tls.clone(),
            connector: self.connector.clone(),
            prober,
            config: self.config.clone(),
            protection: self.protection.clone(),
            metrics,
        }
    }
}

fn field_names(configuration: &Configuration) -> Result<FieldNames> {
    let header = &configuration.request_header;
    let name = |name: &str| {
        HeaderName::from_bytes(name.as_bytes())
            .with_context(|| format!("the header field {name:?}"))
    };
    Ok(FieldNames {
        user: name(&header.username_header)?,
        uid: name(&header.uid_header)?,
        group: name(&header.group_header)?,
        extra_prefix: header.extra_header_prefix.to_ascii_lowercase(),
    })
}

async fn serve_pages(listener: TcpListener, routes: axum::Router) {
    loop {
        let Ok((io, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        tokio::spawn(http1::serve(io, routes.clone()));
    }
}
