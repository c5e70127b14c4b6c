//! Accepts clients at a bounded rate of handshakes.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tls_socket::TlsSocket;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::serve::serve;
use super::tls::FrontTls;
use super::workers::Workers;
use crate::forward::Shared;

/// A client that has not completed its handshake within this time is disconnected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Connections that wait in the kernel's queue.
const BACKLOG: u32 = 4096;

/// The listening side of the gateway.
pub struct Front {
    /// TLS with clients.
    pub tls: Arc<FrontTls>,
    /// Streams of one HTTP/2 connection.
    pub max_streams: u32,
    /// What all connections share.
    pub shared: Arc<Shared>,
    /// A permit for each connection that the limit on open files allows.
    pub permits: Arc<Semaphore>,
    /// Bounds the rate of handshakes.
    pub pace: Pace,
    /// The threads that serve the connections.
    pub workers: Workers,
}

/// Spreads handshakes evenly over time. A handshake costs about a millisecond of CPU: without a
/// bound, clients that all come back at once time out together, and come back again.
pub struct Pace {
    interval: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    /// A pace of `per_second` handshakes.
    pub fn new(per_second: u32) -> Pace {
        Pace { interval: Duration::from_secs(1) / per_second, next: Mutex::new(Instant::now()) }
    }

    /// Waits for its turn. Returns how long it waited.
    async fn wait(&self) -> Duration {
        let now = Instant::now();
        let turn = {
            let mut next = self.next.lock();
            let turn = (*next).max(now);
            *next = turn + self.interval;
            turn
        };
        tokio::time::sleep_until(turn.into()).await;
        turn - now
    }
}

/// Listens on every address that `address` (host and port) resolves to.
pub async fn listen(address: &str) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for resolved in tokio::net::lookup_host(address).await.with_context(|| address.to_owned())? {
        let bind = || -> std::io::Result<TcpListener> {
            let socket =
                if resolved.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(resolved)?;
            socket.listen(BACKLOG)
        };
        listeners.push(bind().map_err(|error| explain(error, resolved))?);
    }
    Ok(listeners)
}

fn explain(error: std::io::Error, address: SocketAddr) -> anyhow::Error {
    let remedy = match error.kind() {
        ErrorKind::AddrInUse => "; end the process that has this port, or choose another port",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("listen on {address}{remedy}"))
}

impl Front {
    /// Accepts connections until `stop` is cancelled, then waits up to `drainTimeout` for the open
    /// ones.
    pub async fn run(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&listener) => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((io, address, permit)) => {
                    let (front, stop, token) = (self.clone(), stop.clone(), connections.token());
                    self.workers.spawn(io, async move |worker, io| {
                        let _held_until_end = (permit, token);
                        front.serve_client(worker, io, address, stop).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        drop(listener);
        connections.close();
        let drain = self.shared.config.load().drain_timeout.0;
        let drained = tokio::time::timeout(drain, connections.wait()).await.is_ok();
        tracing::info!(drained, left = connections.len(), "stopped serving");
    }

    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> std::io::Result<(std::net::TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let permits = self.permits.clone();
        let permit = permits.acquire_owned().await.map_err(std::io::Error::other)?;
        let (io, address) = listener.accept().await?;
        io.set_nodelay(true)?;
        if address.ip().to_canonical().is_loopback() {
            sockets::disable_pacing(&io);
        }
        Ok((io.into_std()?, address, permit))
    }

    async fn serve_client(
        &self,
        worker: usize,
        io: TcpStream,
        address: SocketAddr,
        stop: CancellationToken,
    ) {
        let metrics = &self.shared.metrics;
        metrics.handshake_waited(self.pace.wait().await.as_secs_f64());
        let handshake =
            tokio::time::timeout(HANDSHAKE_TIMEOUT, TlsSocket::accept(io, self.tls.config()));
        let io = match handshake.await.map_err(std::io::Error::from).flatten() {
            Ok(io) => io,
            Err(error) => {
                metrics.handshake_failed();
                return tracing::debug!(%address, %error, "TLS handshake failed");
            }
        };
        let _counted = metrics.client_connected();
        let shared = self.shared.clone();
        if let Err(error) =
            serve(io, address, &self.tls, self.max_streams, worker, shared, stop).await
        {
            tracing::debug!(%address, error = format!("{error:#}"), "connection ended");
        }
    }
}
