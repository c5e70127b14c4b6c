//! Reads and checks the configuration file.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use http::header::HeaderName;

use super::{API_VERSION, Configuration, KIND};

/// The queue of LISTs is searched from its start when a client leaves it.
const MAX_WAITING: usize = 100_000;
/// A smaller bound would stop every client.
const MIN_BUFFERS: u64 = 16 << 20;

/// Reads the configuration file.
///
/// # Errors
/// Returns a one-line message that names the file and the first invalid field.
pub fn load(path: &Path) -> Result<Configuration> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut configuration = parse(&text).with_context(|| path.display().to_string())?;
    let folder = path.parent().unwrap_or(Path::new("."));
    resolve_paths(&mut configuration, folder);
    Ok(configuration)
}

fn parse(text: &str) -> Result<Configuration> {
    let configuration: Configuration = serde_saphyr::from_str(text).map_err(|error| {
        // The first line has the position and the reason; the others print the source.
        let message = error.to_string();
        let line = message.lines().next().unwrap_or_default();
        anyhow::anyhow!("{}", line.strip_prefix("error: ").unwrap_or(line))
    })?;
    Ok(configuration)
}

/// Paths are relative to the folder of the configuration file.
fn resolve_paths(configuration: &mut Configuration, folder: &Path) {
    let Configuration { listen, upstream, request_header, .. } = configuration;
    for path in [
        &mut listen.cert_file,
        &mut listen.key_file,
        &mut listen.client_ca_file,
        &mut upstream.ca_file,
        &mut request_header.cert_file,
        &mut request_header.key_file,
    ] {
        *path = folder.join(&*path);
    }
    if let Some(socket) = &mut configuration.control.socket {
        *socket = folder.join(&*socket);
    }
    configuration.node_path.resolve_paths(folder);
}

/// Checks what the types do not.
///
/// # Errors
/// Returns a one-line message for the first invalid field.
pub fn check(configuration: &Configuration) -> Result<()> {
    let Configuration { listen, upstream, request_header, balance, access_log, .. } = configuration;
    ensure!(
        configuration.api_version == API_VERSION && configuration.kind == KIND,
        "expected apiVersion {API_VERSION} and kind {KIND}, not {} and {}",
        configuration.api_version,
        configuration.kind
    );
    ensure!(!upstream.servers.is_empty(), "upstream.servers is empty; name an API server");
    for address in upstream.servers.iter().chain([&listen.address, &listen.metrics_address]) {
        check_address(address).map_err(anyhow::Error::msg)?;
    }
    ensure!(
        !upstream.servers.contains(&listen.address),
        "listen.address {} is also one of upstream.servers",
        listen.address
    );
    ensure!(listen.handshakes_per_second > 0, "listen.handshakesPerSecond must be at least 1");
    ensure!(listen.max_streams > 0, "listen.maxStreams must be at least 1");
    ensure!(balance.imbalance > 0.0, "balance.imbalance must be above 0");
    ensure!(balance.moves_per_second > 0.0, "balance.movesPerSecond must be above 0");
    ensure!(balance.too_many_requests > 0, "balance.tooManyRequests must be at least 1");
    ensure!((0.0..=1.0).contains(&access_log.sample), "accessLog.sample must be from 0 to 1");
    check_limits(configuration)?;
    configuration.node_path.check()?;
    for name in [
        &request_header.username_header,
        &request_header.uid_header,
        &request_header.group_header,
        &request_header.extra_header_prefix,
    ] {
        HeaderName::from_bytes(name.as_bytes()).ok().with_context(|| {
            format!("requestHeader: {name:?} is not the name of a header field")
        })?;
    }
    Ok(())
}

/// Checks that a text is a host and a port.
///
/// # Errors
/// Returns a one-line message.
pub fn check_address(text: &str) -> Result<(), String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(format!("{text:?} is not a host and a port, such as 10.0.0.1:6443")),
    }
}

fn check_limits(configuration: &Configuration) -> Result<()> {
    let Configuration { lists, throttle, buffers, .. } = configuration;
    ensure!(
        (1..=MAX_WAITING).contains(&lists.max_waiting),
        "lists.maxWaiting must be from 1 to {MAX_WAITING}"
    );
    ensure!(
        buffers.max_bytes.0 >= MIN_BUFFERS,
        "buffers.maxBytes must be at least {}Mi",
        MIN_BUFFERS >> 20
    );
    for rule in throttle {
        rule.check().map_err(|error| anyhow::anyhow!("throttle: {error}"))?;
    }
    Ok(())
}

/// A small valid configuration.
#[cfg(test)]
pub fn example() -> Configuration {
    parse(tests::MINIMAL).expect("the example is valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    pub const MINIMAL: &str = "apiVersion: gateway.k8s-1m.dev/v1alpha1
kind: GatewayConfiguration
listen: {address: '0.0.0.0:6443', metricsAddress: '127.0.0.1:9090', certFile: a, keyFile: b, clientCaFile: c}
upstream: {servers: ['10.0.0.1:6443'], caFile: d}
requestHeader: {certFile: e, keyFile: f}
";

    fn checked(text: &str) -> Result<()> {
        check(&parse(text)?)
    }

    #[test]
    fn defaults_fill_what_is_absent() {
        let configuration = parse(MINIMAL).unwrap();
        assert_eq!(configuration.request_header.username_header, "X-Remote-User");
        assert_eq!(configuration.listen.max_streams, 100);
    }

    #[test]
    fn an_invalid_file_is_refused_with_its_first_error() {
        for (from, to, expected) in [
            ("v1alpha1", "v1", "expected apiVersion"),
            ("['10.0.0.1:6443']", "[]", "upstream.servers is empty"),
            ("10.0.0.1:6443", "10.0.0.1", "not a host and a port"),
            ("'10.0.0.1:6443'", "'0.0.0.0:6443'", "also one of upstream.servers"),
            ("caFile: d", "cafile: d", "cafile"),
            ("certFile: e", "certFile: e, uidHeader: 'a b'", "not the name of a header field"),
            ("kind: G", "drainTimeout: 5\nkind: G", "is not a duration"),
            ("kind: G", "accessLog: {sample: 2}\nkind: G", "accessLog.sample"),
            ("kind: G", "lists: {maxBytes: 5M}\nkind: G", "is not a size"),
            ("kind: G", "lists: {maxWaiting: 0}\nkind: G", "lists.maxWaiting"),
            ("kind: G", "buffers: {maxBytes: 1Mi}\nkind: G", "buffers.maxBytes"),
            ("kind: G", "throttle: [{userAgent: a*b, qps: 1}]\nkind: G", "only at its end"),
            ("kind: G", "throttle: [{userAgent: a, qps: 0}]\nkind: G", "qps"),
        ] {
            let error = format!("{:#}", checked(&MINIMAL.replacen(from, to, 1)).unwrap_err());
            assert!(error.contains(expected), "{to}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(!error.starts_with("error"), "{error}");
        }
    }
}
