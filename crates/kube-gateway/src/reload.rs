//! Applies changed files to the running process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use arc_swap::ArcSwap;
use sockets::FileStamp;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{self, Configuration, Control, Listen, Upstream};
use crate::front::FrontTls;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::protect::Protection;
use crate::upstream::{Connector, Prober};

/// Time between two looks at the files.
const PERIOD: Duration = Duration::from_secs(2);

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
    if let Some(size) = options.list_max_bytes {
        configuration.lists.max_bytes = size;
    }
    if let Some(size) = options.buffer_max_bytes {
        configuration.buffers.max_bytes = size;
    }
    if let Some(socket) = &options.control_socket {
        configuration.control.socket = Some(socket.clone());
    }
    if let Some(mode) = options.node_path_leases {
        configuration.node_path.leases.mode = mode;
    }
    if let Some(mode) = options.node_path_watches {
        configuration.node_path.watches.mode = mode;
    }
    if let Some(mode) = options.node_path_lease_watch {
        configuration.node_path.leases.watch = mode;
    }
    config::check(&configuration)?;
    Ok(configuration)
}

/// Looks for changed files, and reads them again.
pub struct Reloader {
    /// The flags, which override fields of the configuration.
    pub options: Options,
    /// The certificates of the front.
    pub tls: Arc<FrontTls>,
    /// The certificates towards API servers.
    pub connector: Arc<Connector>,
    /// Probes API servers that are added.
    pub prober: Arc<Prober>,
    /// The configuration in force.
    pub config: Arc<ArcSwap<Configuration>>,
    /// The limits.
    pub protection: Arc<Protection>,
    /// Counts reloads.
    pub metrics: Arc<Metrics>,
}

impl Reloader {
    /// Reads files again when they change, and after SIGHUP.
    pub async fn run_forever(self) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
        let certificates = certificate_files(&self.config.load());
        let file = [self.options.config.clone()];
        let mut last = (stamps_of(&file), stamps_of(&certificates));
        loop {
            let forced = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(PERIOD) => false,
            };
            let now = (stamps_of(&file), stamps_of(&certificates));
            if forced || now.0 != last.0 {
                self.read_configuration();
            }
            if forced || now.1 != last.1 {
                self.read_certificates();
            }
            last = now;
        }
    }

    fn read_configuration(&self) {
        match configuration(&self.options) {
            Ok(new) => self.apply(new),
            Err(error) => {
                self.metrics.config_rejected();
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the configuration is not valid, keeping the previous one"
                );
            }
        }
    }

    fn apply(&self, new: Configuration) {
        let (merged, restart) = merge(&self.config.load(), &new);
        self.protection.configure(&merged);
        let pool = &self.prober.pool;
        // With `discover`, the EndpointSlices say which API servers there are.
        if !merged.upstream.discover {
            for server in pool.update(&merged.upstream.servers) {
                tracing::info!(server = server.address, "added an API server");
                tokio::spawn(self.prober.clone().probe_server(server));
            }
        }
        for server in pool.servers().iter() {
            server.lists.dispatch(&self.protection.lists);
        }
        self.config.store(Arc::new(merged));
        self.metrics.config_applied(restart.len());
        tracing::info!("applied the configuration");
        if !restart.is_empty() {
            let fields = restart.join(", ");
            tracing::warn!(
                fields,
                "changed fields keep their values until kube-gateway is restarted"
            );
        }
    }

    fn read_certificates(&self) {
        match self.tls.reload().and_then(|()| self.connector.reload()) {
            Ok(()) => tracing::info!("read the certificates again"),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "failed to read the certificates again, keeping the previous ones"
            ),
        }
    }
}

/// Returns the current configuration with those fields of the new one that can change while running,
/// and the names of all others that differ.
fn merge(current: &Configuration, new: &Configuration) -> (Configuration, Vec<&'static str>) {
    let mut merged = Configuration {
        listen: current.listen.clone(),
        upstream: current.upstream.clone(),
        request_header: current.request_header.clone(),
        control: current.control.clone(),
        node_path: current.node_path.clone(),
        ..new.clone()
    };
    if !current.upstream.discover {
        merged.upstream.servers.clone_from(&new.upstream.servers);
    }
    let fields = fixed_fields(&merged).into_iter().zip(fixed_fields(new));
    let differ = fields.filter(|(merged, new)| merged.1 != new.1).map(|(merged, _)| merged.0);
    (merged, differ.collect())
}

/// The fields that need a restart, as text. The patterns name all fields, so that a new one is not
/// forgotten.
fn fixed_fields(configuration: &Configuration) -> Vec<(&'static str, String)> {
    let Configuration { listen, upstream, request_header, control, node_path, .. } = configuration;
    let Listen {
        address,
        metrics_address,
        cert_file,
        key_file,
        client_ca_file,
        handshakes_per_second,
        max_streams,
    } = listen;
    let Upstream { servers, discover, ca_file, server_name, connect_timeout, probe_period } =
        upstream;
    let Control { socket } = control;
    vec![
        ("listen.address", address.clone()),
        ("listen.metricsAddress", metrics_address.clone()),
        ("listen.certFile", cert_file.display().to_string()),
        ("listen.keyFile", key_file.display().to_string()),
        ("listen.clientCaFile", client_ca_file.display().to_string()),
        ("listen.handshakesPerSecond", handshakes_per_second.to_string()),
        ("listen.maxStreams", max_streams.to_string()),
        ("upstream.servers", servers.join(",")),
        ("upstream.discover", discover.to_string()),
        ("upstream.caFile", ca_file.display().to_string()),
        ("upstream.serverName", format!("{server_name:?}")),
        ("upstream.connectTimeout", format!("{connect_timeout:?}")),
        ("upstream.probePeriod", format!("{probe_period:?}")),
        ("requestHeader", format!("{request_header:?}")),
        ("control.socket", format!("{socket:?}")),
        ("nodePath", format!("{node_path:?}")),
    ]
}

/// The files that are read again when they change, besides the configuration.
fn certificate_files(configuration: &Configuration) -> Vec<PathBuf> {
    let Configuration { listen, upstream, request_header, .. } = configuration;
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

fn stamps_of(files: &[PathBuf]) -> Vec<Option<FileStamp>> {
    files.iter().map(|path| FileStamp::of(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Size, Span};

    fn example() -> Configuration {
        config::example()
    }

    #[test]
    fn fields_that_can_change_are_applied() {
        let current = example();
        let mut new = current.clone();
        new.upstream.servers.push("10.0.0.9:6443".into());
        new.balance.imbalance = 0.5;
        new.lists.max_bytes = Size(1);
        new.buffers.max_bytes = Size(2);
        new.access_log.sample = 0.1;
        new.drain_timeout = Span::from_secs(1);
        assert_eq!(merge(&current, &new), (new, vec![]));
    }

    #[test]
    fn fields_that_need_a_restart_keep_their_values() {
        let current = example();
        let mut new = current.clone();
        new.listen.address = "0.0.0.0:1".into();
        new.upstream.probe_period = Span::from_secs(9);
        new.control.socket = Some("a".into());
        new.node_path.leases.comparisons = 7;
        new.request_header.uid_header = "X-Uid".into();
        new.balance.imbalance = 0.5;
        let (merged, restart) = merge(&current, &new);
        let expected = [
            "listen.address",
            "upstream.probePeriod",
            "requestHeader",
            "control.socket",
            "nodePath",
        ];
        assert_eq!(restart, expected);
        let balance = new.balance;
        assert_eq!(merged, Configuration { balance, ..current });
    }

    #[test]
    fn discovered_servers_are_not_replaced() {
        let mut current = example();
        current.upstream.discover = true;
        let mut new = current.clone();
        new.upstream.servers = vec!["10.0.0.9:6443".into()];
        assert_eq!(merge(&current, &new), (current, vec!["upstream.servers"]));
    }
}
