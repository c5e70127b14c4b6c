//! From a URL to connections that are secured.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use grpc::Io;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::listen::Listen;
use crate::tls::Acceptor;

/// A client that does not finish its TLS handshake by then is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After a failed accept (no file descriptors, mostly) others get to finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections still open that long after a shutdown began are cut.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const BACKLOG: u32 = 4096;
/// How connections from the same machine are paced: not at all. Where the system
/// paces by default (bbr), each segment would take a timer, which costs more than
/// all the rest of sending it.
const UNPACED: &str = "reno";
/// File descriptors that connections leave for the log and for the listeners.
const SPARE_FILES: u64 = 64;

/// How many connections may be open at once, over all listeners: as many as the
/// process may have files, of which each takes `files_each`, after raising that limit to what is allowed. Others
/// wait in the kernel's queue.
pub fn connection_permits(files_each: u64) -> Arc<Semaphore> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it cannot be raised the limit of before holds.
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let permits =
        (files.saturating_sub(SPARE_FILES) / files_each).max(1).min(Semaphore::MAX_PERMITS as u64);
    Arc::new(Semaphore::new(permits as usize))
}

/// A socket that is bound and listens.
pub struct Listener {
    name: String,
    socket: Socket,
    tls: Option<Acceptor>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Binds every address that `listen` stands for.
pub async fn bind(listen: &Listen, tls: Option<&Acceptor>) -> anyhow::Result<Vec<Listener>> {
    let tls = tls.filter(|_| listen.tls()).cloned();
    let name = listen.to_string();
    let sockets = match listen {
        Listen::Tcp { address, .. } => bind_tcp(address).await,
        Listen::Unix { path, .. } => bind_unix(path).map(|socket| vec![socket]),
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
            // "localhost" may stand for an IPv6 address on a machine without it.
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable && !sockets.is_empty() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

fn bind_unix(path: &std::path::Path) -> io::Result<Socket> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        // Nobody answers: left over from a process that was killed. Anything but
        // a socket is somebody's file.
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
    /// Has every connection served by `converse`, which heeds the token that it is
    /// given: from then on it lets what is under way finish. It has a while for that.
    pub async fn serve<F, S>(self, converse: F, permits: Arc<Semaphore>, stop: CancellationToken)
    where
        F: Fn(Box<dyn Io>, CancellationToken) -> S + Clone + Send + 'static,
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
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (converse, tls, stop) = (converse.clone(), self.tls.clone(), stop.clone());
            connections.spawn(async move {
                let _until_the_end = permit;
                let io = match secure(tls, io).await {
                    Ok(io) => io,
                    Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
                };
                if let Err(error) = converse(io, stop).await {
                    tracing::debug!(%error, "connection ended");
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
                    unpaced(&stream);
                }
                Box::new(stream)
            }
            Socket::Unix(listener) => Box::new(listener.accept().await?.0),
        };
        Ok((io, permit))
    }
}

/// Takes the pacing off a connection to the same machine.
pub fn unpaced(stream: &TcpStream) {
    // Without it the connection is only slower.
    let _ = set_tcp_congestion(stream, UNPACED);
}

async fn secure(tls: Option<Acceptor>, io: Box<dyn Io>) -> io::Result<Box<dyn Io>> {
    match tls {
        None => Ok(io),
        Some(acceptor) => {
            let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(io)).await??;
            Ok(Box::new(stream))
        }
    }
}
