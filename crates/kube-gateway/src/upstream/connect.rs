//! Connections to API servers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tls_socket::{ClientSide, TlsSocket};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The HTTP version of a connection. Both sides of the gateway use the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1; the only one that can be upgraded.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Who speaks on a connection to an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The client, by the header fields of each request. The connection has no certificate, so that
    /// tokens and anonymous requests mean the same as without the gateway.
    Client,
    /// The gateway with its front-proxy certificate, for the user that it names in header fields.
    FrontProxy,
}

/// The files and names of the TLS configuration.
#[derive(Clone, Debug)]
pub struct ConnectorFiles {
    /// The CA of the API servers.
    pub ca: PathBuf,
    /// The front-proxy certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The name in the API servers' certificates, if it is not the host.
    pub server_name: Option<String>,
}

/// Opens connections to API servers.
pub struct Connector {
    files: ConnectorFiles,
    timeout: Duration,
    tls: ArcSwap<Tls>,
}

/// One TLS configuration for each speaker and protocol, because a configuration offers its protocol
/// by ALPN.
struct Tls {
    client: [Arc<ClientConfig>; 2],
    front_proxy: [Arc<ClientConfig>; 2],
}

impl Connector {
    /// Reads the files.
    pub fn new(files: ConnectorFiles, timeout: Duration) -> Result<Connector> {
        let tls = ArcSwap::from_pointee(read_tls(&files)?);
        Ok(Connector { files, timeout, tls })
    }

    /// Reads the files again. If that fails, the previous configuration stays.
    pub fn reload(&self) -> Result<()> {
        self.tls.store(Arc::new(read_tls(&self.files)?));
        Ok(())
    }

    /// Connects to the API server at `address` (host and port).
    pub async fn connect(
        &self,
        address: &str,
        speaker: Speaker,
        protocol: Protocol,
    ) -> Result<TlsStream<TcpStream>> {
        self.within_timeout(async {
            let (tcp, name) = self.dial(address).await?;
            let connector = TlsConnector::from(self.config(speaker, protocol));
            connector.connect(name, tcp).await.context("TLS handshake")
        })
        .await
    }

    /// Connects to the API server at `address` for our own HTTP/2.
    pub async fn connect_http2(
        &self,
        address: &str,
        speaker: Speaker,
    ) -> Result<TlsSocket<ClientSide>> {
        self.within_timeout(async {
            let (tcp, name) = self.dial(address).await?;
            let config = self.config(speaker, Protocol::Http2);
            TlsSocket::connect(tcp, config, name).await.context("TLS handshake")
        })
        .await
    }

    async fn within_timeout<C>(&self, connect: impl Future<Output = Result<C>>) -> Result<C> {
        tokio::time::timeout(self.timeout, connect).await.context("timed out connecting").flatten()
    }

    async fn dial(&self, address: &str) -> Result<(TcpStream, ServerName<'static>)> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        if tcp.peer_addr()?.ip().to_canonical().is_loopback() {
            sockets::disable_pacing(&tcp);
        }
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = self.files.server_name.as_deref().unwrap_or(host).trim_matches(['[', ']']);
        let name = ServerName::try_from(name.to_owned()).context("the API server's name")?;
        Ok((tcp, name))
    }

    fn config(&self, speaker: Speaker, protocol: Protocol) -> Arc<ClientConfig> {
        let tls = self.tls.load();
        let configs = match speaker {
            Speaker::Client => &tls.client,
            Speaker::FrontProxy => &tls.front_proxy,
        };
        configs[usize::from(protocol == Protocol::Http2)].clone()
    }
}

fn read_tls(files: &ConnectorFiles) -> Result<Tls> {
    let roots = Arc::new(sockets::read_ca_certificates(&files.ca)?);
    let both = |speaker| -> Result<[Arc<ClientConfig>; 2]> {
        Ok([config(files, &roots, speaker, b"http/1.1")?, config(files, &roots, speaker, b"h2")?])
    };
    Ok(Tls { client: both(Speaker::Client)?, front_proxy: both(Speaker::FrontProxy)? })
}

fn config(
    files: &ConnectorFiles,
    roots: &Arc<RootCertStore>,
    speaker: Speaker,
    alpn: &[u8],
) -> Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder().with_root_certificates(roots.clone());
    let mut config = match speaker {
        Speaker::Client => builder.with_no_client_auth(),
        Speaker::FrontProxy => {
            let chain = sockets::read_certificates(&files.cert)?;
            let key = PrivateKeyDer::from_pem_file(&files.key)
                .with_context(|| format!("read the private key in {}", files.key.display()))?;
            builder
                .with_client_auth_cert(chain, key)
                .with_context(|| format!("use the certificate in {}", files.cert.display()))?
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(Arc::new(config))
}
