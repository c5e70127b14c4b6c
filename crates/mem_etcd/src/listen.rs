//! From a listening socket to a served connection.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use bytes::Bytes;
use grpc::{Io, Routes};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::config::{Listen, resolve};
use crate::tls::Acceptor;

/// A client that does not finish its TLS handshake by then is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// And so is one that does not say by then which HTTP it speaks.
const FIRST_WORDS_TIMEOUT: Duration = Duration::from_secs(10);
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

/// What is served on a socket.
#[derive(Clone)]
pub struct Served {
    /// The calls, unless it is only for the pages.
    pub routes: Option<Arc<Routes<Api>>>,
    /// Everything else.
    pub pages: Router,
    /// How calls are served.
    pub options: grpc::Options,
}

impl Listener {
    /// Serves whoever connects, until `stop`; then lets what is under way finish,
    /// for a while.
    pub async fn serve(self, served: Served, permits: Arc<Semaphore>, stop: CancellationToken) {
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
            let (served, tls, stop) = (served.clone(), self.tls.clone(), stop.clone());
            connections.spawn(async move {
                let _until_the_end = permit;
                let io = match secure(tls, io).await {
                    Ok(io) => io,
                    Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
                };
                if let Err(error) = converse(io, served, stop).await {
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
                    // Without it the connection is only slower.
                    let _ = set_tcp_congestion(&stream, UNPACED);
                }
                Box::new(stream)
            }
            Socket::Unix(listener) => Box::new(listener.accept().await?.0),
        };
        Ok((io, permit))
    }
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

/// Serves a connection in the HTTP that it speaks.
async fn converse(
    mut io: Box<dyn Io>,
    served: Served,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut head = [0; grpc::PREFACE.len()];
    let first_words = tokio::time::timeout(FIRST_WORDS_TIMEOUT, first_words(&mut io, &mut head));
    let len = tokio::select! {
        len = first_words => len??,
        () = stop.cancelled() => return Ok(()),
    };
    let head = &head[..len];
    if head.is_empty() {
        return Ok(());
    }
    if let Some(routes) = served.routes.filter(|_| head == grpc::PREFACE) {
        return Ok(grpc::serve(io, head, routes, &served.options, stop).await?);
    }
    let io = TokioIo::new(Replayed { head: Bytes::copy_from_slice(head), io });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new());
    let mut connection =
        std::pin::pin!(server.serve_connection(io, TowerToHyperService::new(served.pages)));
    tokio::select! {
        result = connection.as_mut() => return Ok(result?),
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

/// Reads until it is clear which HTTP it is; how many bytes that took, 0 if the
/// client hangs up.
async fn first_words(io: &mut Box<dyn Io>, head: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < head.len() && grpc::PREFACE.starts_with(&head[..len]) {
        match io.read(&mut head[len..]).await? {
            0 => return Ok(0),
            read => len += read,
        }
    }
    Ok(len)
}

/// A socket, with what was read from it already.
struct Replayed {
    head: Bytes,
    io: Box<dyn Io>,
}

impl AsyncRead for Replayed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.head.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let len = self.head.len().min(buffer.remaining());
        buffer.put_slice(&self.head.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replayed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
