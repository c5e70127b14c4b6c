//! Binds sockets, accepts connections, and does TLS handshakes.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::io::Io;
use crate::socket_url::SocketUrl;
use crate::tls::Acceptor;

/// A client that has not completed its TLS handshake within this time is disconnected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// How long [`Listener::serve`] waits for open connections after the start of a shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of connections that wait in the kernel's queue of a socket.
const BACKLOG: u32 = 4096;
/// A congestion control without pacing, for connections from the same machine. If the
/// default of the system is BBR, which paces, the kernel runs a timer for each segment.
/// The timer costs more than sending the segment.
const UNPACED_CONGESTION_CONTROL: &str = "reno";
/// Number of file descriptors that are reserved for the log and the listeners.
const RESERVED_FILES: u64 = 64;

/// Raises the limit on open files to the hard limit. Returns a permit for each connection
/// that this limit allows on all listeners together. A connection uses
/// `files_per_connection` file descriptors. Further clients wait in the kernel's queue.
pub fn connection_permits(files_per_connection: u64) -> Arc<Semaphore> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, the current limit stays in force.
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let permits = (files.saturating_sub(RESERVED_FILES) / files_per_connection)
        .max(1)
        .min(Semaphore::MAX_PERMITS as u64);
    Arc::new(Semaphore::new(permits as usize))
}

/// An accepted connection, after its TLS handshake.
pub struct Client {
    /// The connection.
    pub io: Box<dyn Io>,
    /// The verified certificate of the client, if it presented one.
    pub certificate: Option<CertificateDer<'static>>,
}

/// A bound, listening socket.
pub struct Listener {
    name: String,
    socket: Socket,
    tls: Option<Acceptor>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Listens on every address that `listen` resolves to, with `tls` if its URL requires
/// TLS.
pub async fn bind(listen: &SocketUrl, tls: Option<&Acceptor>) -> anyhow::Result<Vec<Listener>> {
    let tls = tls.filter(|_| listen.uses_tls()).cloned();
    let name = listen.to_string();
    let sockets = match listen {
        SocketUrl::Tcp { address, .. } => bind_tcp(address).await,
        SocketUrl::Unix { path, .. } => bind_unix(path).map(|socket| vec![socket]),
    };
    let sockets = sockets.with_context(|| format!("listen on {listen}"))?;
    let listener = |socket| Listener { name: name.clone(), socket, tls: tls.clone() };
    Ok(sockets.into_iter().map(listener).collect())
}

async fn bind_tcp(address: &str) -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for address in tokio::net::lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        let bound = socket.bind(address).and_then(|()| socket.listen(BACKLOG));
        match bound {
            Ok(listener) => sockets.push(Socket::Tcp(listener)),
            // "localhost" may resolve to an IPv6 address on a machine without IPv6.
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable && !sockets.is_empty() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

fn bind_unix(path: &std::path::Path) -> io::Result<Socket> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        // A socket that refuses connections was left behind by a killed process. A file
        // of any other type is not removed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            std::fs::remove_file(path)?;
        }
        Err(_) => {}
    }
    UnixListener::bind(path).map(Socket::Unix)
}

impl Listener {
    /// Accepts connections until `stop` is cancelled, and calls `serve_connection` for
    /// each. That function gets the client's certificate, if there is one, and the same token. After its cancellation, this function
    /// waits at most 2 s for the connections to finish.
    pub async fn serve<F, S>(
        self,
        serve_connection: F,
        permits: Arc<Semaphore>,
        stop: CancellationToken,
    ) where
        F: Fn(Client, CancellationToken) -> S + Clone + Send + 'static,
        S: Future<Output = anyhow::Result<()>> + Send,
    {
        tracing::info!(listen = self.name, "serving");
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&permits) => accepted,
                () = stop.cancelled() => break,
            };
            let (io, permit) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(listen = self.name, %error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let (serve_connection, tls, stop) =
                (serve_connection.clone(), self.tls.clone(), stop.clone());
            connections.spawn(async move {
                let _held_until_end = permit;
                let client = match tls_handshake(tls, io).await {
                    Ok(client) => client,
                    Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
                };
                if let Err(error) = serve_connection(client, stop).await {
                    tracing::debug!(%error, "connection failed");
                }
            });
        }
        connections.close();
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await;
        tracing::debug!(listen = self.name, drained = drained.is_ok(), "stopped serving");
    }

    async fn accept(
        &self,
        permits: &Arc<Semaphore>,
    ) -> io::Result<(Box<dyn Io>, OwnedSemaphorePermit)> {
        let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
        let io: Box<dyn Io> = match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                if peer.ip().to_canonical().is_loopback() {
                    disable_pacing(&stream);
                }
                Box::new(stream)
            }
            Socket::Unix(listener) => Box::new(listener.accept().await?.0),
        };
        Ok((io, permit))
    }
}

/// Disables TCP pacing for a connection to the same machine.
pub fn disable_pacing(stream: &TcpStream) {
    // If this fails, the connection is only slower.
    let _ = set_tcp_congestion(stream, UNPACED_CONGESTION_CONTROL);
}

async fn tls_handshake(tls: Option<Acceptor>, io: Box<dyn Io>) -> io::Result<Client> {
    match tls {
        None => Ok(Client { io, certificate: None }),
        Some(acceptor) => {
            let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(io)).await??;
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let certificate = chain.first().cloned().map(CertificateDer::into_owned);
            Ok(Client { io: Box::new(stream), certificate })
        }
    }
}
