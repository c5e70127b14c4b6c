//! Connections to the etcd that stands behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, ServerName};
use sockets::Io;
use sockets::Listen;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use crate::options::Serve;

/// An endpoint that does not answer by then is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// What is to be spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Http2,
    Http1,
}

/// All endpoints, and which of them answered last.
pub struct Endpoints {
    list: Vec<Listen>,
    last: AtomicUsize,
    tls: Option<Tls>,
}

/// One for each language: TLS agrees on it.
struct Tls {
    http2: TlsConnector,
    http1: TlsConnector,
}

impl Endpoints {
    /// Reads the certificates, if there is a need for any.
    pub fn new(serve: &Serve) -> Result<Endpoints> {
        let tls = match &serve.cacert {
            None => None,
            Some(_) => {
                Some(Tls { http2: connector(serve, b"h2")?, http1: connector(serve, b"http/1.1")? })
            }
        };
        Ok(Endpoints { list: serve.endpoints.clone(), last: AtomicUsize::new(0), tls })
    }

    /// Connects to the endpoint that answered last, or to the next that does. The error
    /// says in one line what is wrong with the last that was tried.
    pub async fn connect(&self, language: Language) -> Result<Box<dyn Io>> {
        let first = self.last.load(Ordering::Relaxed);
        let mut failure = None;
        for number in (0..self.list.len()).map(|n| (first + n) % self.list.len()) {
            let endpoint = &self.list[number];
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.reach(endpoint, language));
            match connected.await.context("no answer in time").flatten() {
                Ok(io) => {
                    self.last.store(number, Ordering::Relaxed);
                    return Ok(io);
                }
                Err(error) => failure = Some(error.context(endpoint.to_string())),
            }
        }
        Err(failure.expect("there is an endpoint at least"))
    }

    async fn reach(&self, endpoint: &Listen, language: Language) -> Result<Box<dyn Io>> {
        let (io, host): (Box<dyn Io>, _) = match endpoint {
            Listen::Tcp { address, .. } => {
                let tcp = TcpStream::connect(address).await?;
                tcp.set_nodelay(true)?;
                if tcp.peer_addr()?.ip().to_canonical().is_loopback() {
                    sockets::unpaced(&tcp);
                }
                (Box::new(tcp), address.rsplit_once(':').map_or(&**address, |(host, _)| host))
            }
            Listen::Unix { path, .. } => (Box::new(UnixStream::connect(path).await?), "localhost"),
        };
        if !endpoint.tls() {
            return Ok(io);
        }
        let Some(tls) = &self.tls else { bail!("needs --cacert") };
        let connector = match language {
            Language::Http2 => &tls.http2,
            Language::Http1 => &tls.http1,
        };
        let name = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name)?;
        Ok(Box::new(connector.connect(name, io).await.context("TLS")?))
    }
}

fn connector(serve: &Serve, protocol: &[u8]) -> Result<TlsConnector> {
    let ca = serve.cacert.as_deref().context("https needs --cacert")?;
    let builder = ClientConfig::builder().with_root_certificates(sockets::roots(ca)?);
    let mut config = match serve.cert.as_deref().zip(serve.key.as_deref()) {
        Some((cert, key)) => {
            let chain = sockets::certificates(cert)?;
            let key = PrivateKeyDer::from_pem_file(key)
                .with_context(|| format!("read the private key in {}", key.display()))?;
            builder
                .with_client_auth_cert(chain, key)
                .with_context(|| format!("use the certificate in {}", cert.display()))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
