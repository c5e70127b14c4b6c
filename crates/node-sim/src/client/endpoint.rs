//! The server of a link, and the identity of the client.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http2::{Config, ConnectMethod, Connection, Keepalive, Limits, Refill};
use http2_socket::Channel;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tls_socket::{ClientSide, TlsSocket};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::answer::AnswerHead;
use super::request::CommonFields;

/// The name of this program in requests. kube-apiserver takes the part before the slash as the manager
/// of fields.
const USER_AGENT: &str = concat!("node-sim/", env!("CARGO_PKG_VERSION"));
/// The time for a TCP connection and a TLS handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection without any frame for this time is checked by a PING, as client-go does.
const PING_AFTER: Duration = Duration::from_secs(30);
/// A connection whose PING is not answered within this time is closed, as client-go does.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Limits of a connection. Watches of all pods need a large window; memory is used only for what has
/// arrived.
const LIMITS: Limits = Limits {
    stream_window: 1 << 20,
    connection_window: 16 << 20,
    refill: Refill::OnArrival,
    fields_bytes: 64 << 10,
    output_bytes: 64 << 10,
};

/// The server of a link, and the identity of the client.
pub struct Endpoint {
    /// Host and port.
    pub address: String,
    /// The name in the server's certificate.
    pub server_name: ServerName<'static>,
    /// The address from which the client connects, if it is not the one that the system chooses.
    pub source: Option<Ipv4Addr>,
    /// The CA of the server, and the certificate of the client.
    pub tls: Arc<ClientConfig>,
    /// What all requests have in common.
    pub fields: CommonFields,
}

/// A certificate of a client with its key.
pub type ClientCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Returns the TLS configuration of a client: TLS 1.3 and HTTP/2, as kube-apiserver and kubelet
/// negotiate.
///
/// # Errors
/// If the certificate cannot be used.
pub fn client_config(
    roots: Arc<RootCertStore>,
    certificate: Option<ClientCertificate>,
) -> Result<Arc<ClientConfig>> {
    let builder =
        ClientConfig::builder_with_protocol_versions(&[&TLS13]).with_root_certificates(roots);
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            builder.with_client_auth_cert(chain, key).context("use the client certificate")?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    // Each connection does a full handshake, so no tickets are kept.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

impl Endpoint {
    /// The endpoint of a client without a token.
    pub fn new(
        address: String,
        server_name: ServerName<'static>,
        tls: Arc<ClientConfig>,
    ) -> Endpoint {
        let fields = CommonFields {
            authority: address.clone(),
            user_agent: USER_AGENT.to_owned(),
            authorization: None,
        };
        Endpoint { address, server_name, source: None, tls, fields }
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// If the server cannot be reached, or the handshake fails.
    pub(super) async fn connect(&self) -> Result<Channel<ClientSide, AnswerHead>> {
        tokio::time::timeout(DIAL_TIMEOUT, self.dial()).await.context("timed out connecting")?
    }

    async fn connect_tcp(&self) -> Result<TcpStream> {
        let Some(source) = self.source else { return Ok(TcpStream::connect(&self.address).await?) };
        let target = self.address.parse().context("the address of the server")?;
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        Ok(socket.connect(target).await?)
    }

    async fn dial(&self) -> Result<Channel<ClientSide, AnswerHead>> {
        let tcp = self.connect_tcp().await.context("connect")?;
        tcp.set_nodelay(true)?;
        if tcp.peer_addr()?.ip().to_canonical().is_loopback() {
            sockets::disable_pacing(&tcp);
        }
        let socket = TlsSocket::connect(tcp, self.tls.clone(), self.server_name.clone())
            .await
            .context("TLS handshake")?;
        Ok(Channel::new(socket, Connection::client(&config(), Instant::now())))
    }
}

fn config() -> Config {
    let keepalive = Keepalive {
        interval: PING_AFTER,
        timeout: PING_TIMEOUT,
        // The server's pings are never too many.
        min_interval: Duration::ZERO,
    };
    Config { max_streams: 0, keepalive, connect_method: ConnectMethod::Reject, limits: LIMITS }
}
