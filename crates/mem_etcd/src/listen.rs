//! From a listening socket to a served connection.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::config::{Listen, resolve};

/// A client that does not finish its TLS handshake by then is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections are asked for a sign of life this often, and given this long to
/// answer: etcd's defaults for `--grpc-keepalive-interval` and `-timeout`.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// After a failed accept (no file descriptors, mostly) others get to finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections still open that long after a shutdown began are cut.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that a client may send before they are read, on a stream and in all.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// The HTTP/2 library also derives from it how many small messages may wait.
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const BACKLOG: u32 = 4096;
/// File descriptors that connections leave for the log and for the listeners.
const SPARE_FILES: u64 = 64;

/// How many connections may be open at once, over all listeners: as many as the
/// process may have files, after raising that limit to what is allowed. Others
/// wait in the kernel's queue.
pub fn connection_permits() -> Arc<Semaphore> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it cannot be raised the limit of before holds.
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let permits = files.saturating_sub(SPARE_FILES).max(1).min(Semaphore::MAX_PERMITS as u64);
    Arc::new(Semaphore::new(permits as usize))
}

/// A socket that is bound and listens.
pub struct Listener {
    name: String,
    socket: Socket,
    tls: Option<TlsAcceptor>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Binds every address that `listen` stands for.
pub async fn bind(listen: &Listen, tls: Option<&TlsAcceptor>) -> Result<Vec<Listener>> {
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
    for address in resolve(address).await? {
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
    /// Serves `routes` to whoever connects, until `stop`; then lets requests
    /// under way finish, for a while.
    pub async fn serve(
        self,
        routes: Router,
        max_streams: u32,
        permits: Arc<Semaphore>,
        stop: CancellationToken,
    ) {
        tracing::info!(listen = self.name, "serving");
        let connections = GracefulShutdown::new();
        let builder = builder(max_streams);
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
            let (builder, routes) = (builder.clone(), routes.clone());
            let (tls, watcher) = (self.tls.clone(), connections.watcher());
            tokio::spawn(async move {
                let _until_the_end = permit;
                let io = match secure(tls, io).await {
                    Ok(io) => io,
                    Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
                };
                let service = TowerToHyperService::new(routes);
                let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
                if let Err(error) = watcher.watch(connection.into_owned()).await {
                    tracing::debug!(error, "connection ended");
                }
            });
        }
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, connections.shutdown()).await;
        tracing::debug!(listen = self.name, drained = drained.is_ok(), "stopped serving");
    }

    async fn accept(
        &self,
        permits: &Arc<Semaphore>,
    ) -> io::Result<(Box<dyn Io>, OwnedSemaphorePermit)> {
        let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
        let io: Box<dyn Io> = match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Socket::Unix(listener) => Box::new(listener.accept().await?.0),
        };
        Ok((io, permit))
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

async fn secure(tls: Option<TlsAcceptor>, io: Box<dyn Io>) -> io::Result<Box<dyn Io>> {
    match tls {
        None => Ok(io),
        Some(acceptor) => {
            let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(io)).await??;
            Ok(Box::new(stream))
        }
    }
}

fn builder(max_streams: u32) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(max_streams)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    builder
}
