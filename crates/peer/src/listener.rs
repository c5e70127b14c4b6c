//! Accepts connections of other members.
//!
//! Whoever connects costs a bounded amount of memory for a bounded time until its handshake is
//! complete. If too many handshakes are in progress, the oldest one is given up: it is the one that
//! is least likely to be that of a member.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::connection::accept;
use crate::incoming;
use crate::peers::Peers;
use crate::shared::Shared;
use crate::tls::PeerTls;
use crate::url::PeerUrl;

/// Maximum number of connections whose handshake is in progress.
const MAX_HANDSHAKES: usize = 256;
/// Delay after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Maximum number of connections that wait in the kernel's queue of a socket.
const BACKLOG: u32 = 1024;

/// Sockets that listen for other members.
pub struct Listeners(Vec<(TcpListener, bool)>);

impl Listeners {
    /// Listens on every address that the URLs resolve to.
    ///
    /// # Errors
    /// If a URL without TLS is not a loopback address, or an address cannot be used.
    pub async fn bind(urls: &[PeerUrl]) -> anyhow::Result<Listeners> {
        let mut listeners = Vec::new();
        for url in urls {
            let sockets = bind(url).await.with_context(|| format!("listen for peers on {url}"))?;
            listeners.extend(sockets.into_iter().map(|socket| (socket, url.uses_tls())));
        }
        Ok(Listeners(listeners))
    }

    /// Returns the addresses.
    ///
    /// # Errors
    /// If the system does not know them.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.0.iter().map(|(listener, _)| listener.local_addr()).collect()
    }

    /// Checks that there is a certificate if one is needed.
    pub(crate) fn check(&self, tls: Option<&Arc<PeerTls>>) -> anyhow::Result<()> {
        let needs_tls = self.0.iter().any(|(_, uses_tls)| *uses_tls);
        ensure!(tls.is_some() || !needs_tls, "https peer URLs need a certificate for peers");
        Ok(())
    }

    /// Accepts connections until the transport stops.
    pub(crate) fn start(
        self,
        shared: &Arc<Shared>,
        peers: &Arc<Peers>,
        tls: Option<&Arc<PeerTls>>,
    ) {
        let handshakes = Arc::new(Handshakes::default());
        for (listener, uses_tls) in self.0 {
            let server = Server {
                shared: shared.clone(),
                peers: peers.clone(),
                tls: tls.filter(|_| uses_tls).cloned(),
                handshakes: handshakes.clone(),
            };
            shared.tasks.spawn(server.run(listener));
        }
    }
}

async fn bind(url: &PeerUrl) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in url.resolve().await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => listeners.push(listener),
            // "localhost" may resolve to an IPv6 address on a machine without IPv6.
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable && !listeners.is_empty() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

/// Accepts connections on a socket.
#[derive(Clone)]
struct Server {
    shared: Arc<Shared>,
    peers: Arc<Peers>,
    tls: Option<Arc<PeerTls>>,
    handshakes: Arc<Handshakes>,
}

impl Server {
    async fn run(self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.shared.stop.cancelled() => return,
            };
            match accepted {
                Ok((socket, remote)) => {
                    let handshake = self.handshakes.begin();
                    self.shared.tasks.spawn(self.clone().serve(socket, remote, handshake));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a peer");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    async fn serve(self, socket: TcpStream, remote: SocketAddr, handshake: Handshake) {
        let served = tokio::select! {
            served = self.serve_now(socket, handshake) => served,
            () = self.shared.stop.cancelled() => Ok(()),
        };
        if let Err(error) = served {
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::TimedOut) {
                self.shared.refusals.invalid();
            }
            tracing::debug!(%remote, %error, "a connection of a peer failed");
        }
    }

    async fn serve_now(&self, socket: TcpStream, handshake: Handshake) -> io::Result<()> {
        let timeouts = &self.shared.config.timeouts;
        let accepted = tokio::select! {
            accepted = accept(socket, self.tls.as_deref(), timeouts) => accepted,
            () = handshake.given_up.cancelled() => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "too many handshakes are in progress"))
            }
        };
        drop(handshake);
        incoming::serve(&self.shared, &self.peers, self.tls.as_deref(), accepted?).await
    }
}

/// The handshakes in progress, by their numbers.
#[derive(Default)]
struct Handshakes(Mutex<(u64, BTreeMap<u64, CancellationToken>)>);

/// A handshake in progress. Dropping it ends the handshake.
struct Handshake {
    handshakes: Arc<Handshakes>,
    number: u64,
    given_up: CancellationToken,
}

impl Handshakes {
    /// Notes that a handshake begins. Gives up the oldest one if there are too many.
    fn begin(self: &Arc<Self>) -> Handshake {
        let given_up = CancellationToken::new();
        let mut state = self.0.lock();
        let (last, in_progress) = &mut *state;
        *last += 1;
        in_progress.insert(*last, given_up.clone());
        if in_progress.len() > MAX_HANDSHAKES
            && let Some((_, oldest)) = in_progress.pop_first()
        {
            oldest.cancel();
        }
        Handshake { handshakes: self.clone(), number: *last, given_up }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.handshakes.0.lock().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_too_many_handshakes_is_given_up() {
        let handshakes = Arc::new(Handshakes::default());
        let mut begun: Vec<_> = (0..MAX_HANDSHAKES).map(|_| handshakes.begin()).collect();
        drop(begun.remove(7));
        begun.push(handshakes.begin());
        assert!(begun.iter().all(|handshake| !handshake.given_up.is_cancelled()));
        begun.push(handshakes.begin());
        assert!(begun[0].given_up.is_cancelled() && !begun[1].given_up.is_cancelled());
        drop(begun);
        assert!(handshakes.0.lock().1.is_empty());
    }
}
