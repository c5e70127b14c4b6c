//! Connections to the etcd endpoints.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls_pki_types::ServerName;
use sockets::Io;
use sockets::Reloaded;
use sockets::SocketUrl;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use crate::options::Serve;

/// Timeout for connecting to an endpoint, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2, for gRPC.
    Http2,
    /// HTTP/1.1.
    Http1,
}

/// The endpoints, and the TLS configuration for connections to them.
pub struct Endpoints {
    list: Vec<SocketUrl>,
    /// The index of the endpoint to which the last connection was opened.
    last: AtomicUsize,
    /// New connections use the current content of the certificate files.
    tls: Option<Reloaded<Tls>>,
}

/// The TLS connectors: one per protocol, because a connector offers its protocol by ALPN.
#[derive(Clone)]
struct Tls {
    http2: TlsConnector,
    http1: TlsConnector,
}

impl Endpoints {
    /// Creates the endpoints. Reads the certificates if `--cacert` is set.
    pub fn new(serve: &Serve) -> Result<Endpoints> {
        let files: Vec<PathBuf> =
            [&serve.cacert, &serve.cert, &serve.key].into_iter().flatten().cloned().collect();
        let read = serve.clone();
        let load = move || {
            Ok(Tls { http2: connector(&read, b"h2")?, http1: connector(&read, b"http/1.1")? })
        };
        let reloaded = || Reloaded::new("the certificates for the endpoints", files, load);
        let tls = serve.cacert.is_some().then(reloaded).transpose()?;
        Ok(Endpoints { list: serve.endpoints.clone(), last: AtomicUsize::new(0), tls })
    }

    /// Connects to the endpoint to which the last connection was opened. If that fails, tries
    /// the endpoints that follow in the list, and after the end of the list those at its start.
    ///
    /// # Errors
    /// If no endpoint is reachable, returns the error of the endpoint that was tried last.
    pub async fn connect(&self, protocol: Protocol) -> Result<Box<dyn Io>> {
        let first = self.last.load(Ordering::Relaxed);
        let mut failure = None;
        for index in (0..self.list.len()).map(|n| (first + n) % self.list.len()) {
            let endpoint = &self.list[index];
            let connected =
                tokio::time::timeout(CONNECT_TIMEOUT, self.connect_to(endpoint, protocol));
            match connected.await.context("timed out connecting").flatten() {
                Ok(io) => {
                    self.last.store(index, Ordering::Relaxed);
                    return Ok(io);
                }
                Err(error) => failure = Some(error.context(endpoint.to_string())),
            }
        }
        Err(failure.expect("there is at least one endpoint"))
    }

    async fn connect_to(&self, endpoint: &SocketUrl, protocol: Protocol) -> Result<Box<dyn Io>> {
        let (io, host): (Box<dyn Io>, _) = match endpoint {
            SocketUrl::Tcp { address, .. } => {
                let tcp = TcpStream::connect(address).await?;
                tcp.set_nodelay(true)?;
                if tcp.peer_addr()?.ip().to_canonical().is_loopback() {
                    sockets::disable_pacing(&tcp);
                }
                (Box::new(tcp), address.rsplit_once(':').map_or(&**address, |(host, _)| host))
            }
            SocketUrl::Unix { path, .. } => {
                (Box::new(UnixStream::connect(path).await?), "localhost")
            }
        };
        if !endpoint.uses_tls() {
            return Ok(io);
        }
        let Some(tls) = &self.tls else { bail!("the endpoint requires --cacert") };
        let tls = tls.current();
        let connector = match protocol {
            Protocol::Http2 => tls.http2,
            Protocol::Http1 => tls.http1,
        };
        let name = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name)?;
        Ok(Box::new(connector.connect(name, io).await.context("TLS handshake")?))
    }
}

/// Creates a TLS connector that offers the protocol `alpn`.
fn connector(serve: &Serve, alpn: &[u8]) -> Result<TlsConnector> {
    let ca = serve.cacert.as_deref().context("https requires --cacert")?;
    let builder =
        ClientConfig::builder().with_root_certificates(sockets::read_ca_certificates(ca)?);
    let mut config = match serve.cert.as_deref().zip(serve.key.as_deref()) {
        Some((cert, key)) => {
            let (chain, key) = sockets::read_key_pair(cert, key)?;
            builder
                .with_client_auth_cert(chain, key)
                .with_context(|| format!("use the certificate in {}", cert.display()))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
