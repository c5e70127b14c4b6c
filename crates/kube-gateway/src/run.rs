//! The process: its startup, reloads and shutdown.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::HeaderName;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sockets::FileStamp;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::balance::{Freshness, balance_forever};
use crate::config::{self, Configuration};
use crate::forward::Shared;
use crate::front::{Front, FrontFiles, FrontTls, Pace, listen};
use crate::identity::FieldNames;
use crate::metrics::Metrics;
use crate::options::{LogFormat, Options};
use crate::pages::{self, PageState};
use crate::upstream::{Connector, ConnectorFiles, Pool, Prober, probe_forever};

/// File descriptors of a client connection: its own, and that of its connection to an API server.
const FILES_PER_CONNECTION: u64 = 2;
/// Time between two looks at the files.
const RELOAD_PERIOD: Duration = Duration::from_secs(10);

/// Reads and checks the configuration, with the flags that override it.
pub fn configuration(options: &Options) -> Result<Configuration> {
    let mut configuration = config::load(&options.config)?;
    if let Some(listen) = &options.listen {
        configuration.listen.address.clone_from(listen);
    }
    if let Some(listen) = &options.metrics_listen {
        configuration.listen.metrics_address.clone_from(listen);
    }
    if !options.servers.is_empty() {
        configuration.upstream.servers.clone_from(&options.servers);
    }
    config::check(&configuration)?;
    Ok(configuration)
}

/// Runs the gateway until SIGTERM or SIGINT.
pub fn run(options: &Options) -> Result<()> {
    let configuration = configuration(options)?;
    start_log(options);
    let gateway = Gateway::new(configuration)?;
    if options.check {
        println!("{}: ok", options.config.display());
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
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

/// Everything that is read before the first client is served.
struct Gateway {
    configuration: Configuration,
    tls: Arc<FrontTls>,
    connector: Arc<Connector>,
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
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
        let metrics = Arc::new(Metrics::new());
        Ok(Gateway { configuration, tls, connector, pool, metrics })
    }

    async fn serve_until_signal(self, options: &Options) -> Result<()> {
        let Configuration { listen: front, balance, drain_timeout, .. } = &self.configuration;
        let listeners = listen(&front.address).await?;
        let pages = listen(&front.metrics_address).await?;
        let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
        let stop = CancellationToken::new();
        let names = Arc::new(field_names(&self.configuration)?);
        let shared = Arc::new(self.shared(names.clone()));
        let state = PageState {
            pool: self.pool.clone(),
            metrics: self.metrics.clone(),
            stop: stop.clone(),
        };
        let routes = pages::routes(state);
        for listener in pages {
            tokio::spawn(serve_pages(listener, routes.clone()));
        }
        let prober = Arc::new(self.prober(names));
        tokio::spawn(probe_forever(prober, self.configuration.upstream.discover));
        let (pool, metrics) = (self.pool.clone(), self.metrics.clone());
        tokio::spawn(balance_forever(pool, balance.clone(), metrics));
        tokio::spawn(reload_forever(self.tls.clone(), self.connector.clone(), self.files()));
        let front = Arc::new(self.front(shared));
        let mut serving = JoinSet::new();
        for listener in listeners {
            serving.spawn(front.clone().run(listener, stop.clone(), drain_timeout.0));
        }
        let config = options.config.display().to_string();
        tracing::info!(config, listen = self.configuration.listen.address, "ready");
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("shutting down");
        stop.cancel();
        serving.join_all().await;
        Ok(())
    }

    fn shared(&self, names: Arc<FieldNames>) -> Shared {
        Shared {
            pool: self.pool.clone(),
            connector: self.connector.clone(),
            names,
            freshness: Arc::new(Freshness::new(self.pool.clone())),
            metrics: self.metrics.clone(),
            sample: self.configuration.access_log.sample,
        }
    }

    fn prober(&self, names: Arc<FieldNames>) -> Prober {
        let period = self.configuration.upstream.probe_period.0;
        Prober { pool: self.pool.clone(), connector: self.connector.clone(), names, period }
    }

    fn front(&self, shared: Arc<Shared>) -> Front {
        let listen = &self.configuration.listen;
        Front {
            tls: self.tls.clone(),
            max_streams: listen.max_streams,
            shared,
            permits: sockets::connection_permits(FILES_PER_CONNECTION),
            pace: Pace::new(listen.handshakes_per_second),
        }
    }

    /// The files that are read again when they change.
    fn files(&self) -> Vec<PathBuf> {
        let Configuration { listen, upstream, request_header, .. } = &self.configuration;
        [
            &listen.cert_file,
            &listen.key_file,
            &listen.client_ca_file,
            &upstream.ca_file,
            &request_header.cert_file,
            &request_header.key_file,
        ]
        .map(PathBuf::clone)
        .to_vec()
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

/// Reads certificates again when their files change, or after SIGHUP.
async fn reload_forever(tls: Arc<FrontTls>, connector: Arc<Connector>, files: Vec<PathBuf>) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    let mut stamps = stamps_of(&files);
    loop {
        let forced = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(RELOAD_PERIOD) => false,
        };
        let now = stamps_of(&files);
        if !forced && now == stamps {
            continue;
        }
        stamps = now;
        match tls.reload().and_then(|()| connector.reload()) {
            Ok(()) => tracing::info!("read the certificates again"),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "failed to read the certificates again, keeping the previous ones"
            ),
        }
    }
}

fn stamps_of(files: &[PathBuf]) -> Vec<Option<FileStamp>> {
    files.iter().map(|path| FileStamp::of(path)).collect()
}

async fn serve_pages(listener: TcpListener, routes: axum::Router) {
    loop {
        let Ok((io, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let service = TowerToHyperService::new(routes.clone());
        tokio::spawn(async move {
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new());
            if let Err(error) = server.serve_connection(TokioIo::new(io), service).await {
                tracing::debug!(%error, "connection to the pages");
            }
        });
    }
}
