//! One HTTP/2 connection and its socket.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http2::{Connection, Keepalive, Limits, Refill, RequestBuilder};
use tls_socket::{Received, Side, TlsSocket};

/// Sealed bytes beyond which the socket must take some before more are sealed.
const MAX_SEALED: usize = 32 << 10;
/// Slices of the output that are sealed at once.
const MAX_SLICES: usize = 16;

/// A connection without any frame for this time is checked by a PING, as client-go does.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Limits of a connection to an API server. The bound over all its answers is that of
/// [`Held`](crate::protect::Held).
pub const LIMITS: Limits = Limits {
    stream_window: 256 << 10,
    connection_window: 16 << 20,
    refill: Refill::OnArrival,
    // kube-apiserver's limit for the header of a request.
    fields_bytes: 1 << 20,
    output_bytes: 32 << 10,
};

/// The pings of a connection that is closed if one is not answered within `timeout`. No ping of the
/// peer is a strike: Go's client pings with each request that it cancels.
pub fn keepalive(timeout: Duration) -> Keepalive {
    Keepalive { interval: PING_AFTER, timeout, min_interval: Duration::ZERO }
}

/// A connection and its socket.
pub struct Channel<S, B: RequestBuilder> {
    socket: TlsSocket<S>,
    /// The connection's state.
    pub http: Connection<B>,
}

impl<S: Side, B: RequestBuilder<Context = ()>> Channel<S, B> {
    /// Wraps a socket whose handshake is done.
    pub fn new(socket: TlsSocket<S>, http: Connection<B>) -> Channel<S, B> {
        Channel { socket, http }
    }

    /// Reads once from the socket. The events are then in `http`. Returns whether the peer may send
    /// more.
    ///
    /// # Errors
    /// If the socket fails, or the peer violates TLS or HTTP/2. In the last case the output ends with
    /// GOAWAY.
    pub fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<anyhow::Result<bool>> {
        let (socket, http) = (&mut self.socket, &mut self.http);
        let mut result = Ok(());
        let received = ready!(socket.poll_receive(cx, &mut |bytes| {
            if result.is_ok() {
                result = http.receive(bytes, &(), now);
            }
        }));
        result?;
        Poll::Ready(Ok(received? == Received::Bytes))
    }

    /// Sends what the connection has to send, as far as the socket takes it. Returns whether it sent
    /// anything. If the socket takes no more, the task is woken when it does.
    pub fn send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut sent = false;
        loop {
            self.seal()?;
            if self.socket.unsent() == 0 {
                return Ok(sent);
            }
            sent = true;
            if self.socket.poll_flush(cx)?.is_pending() {
                return Ok(sent);
            }
        }
    }

    fn seal(&mut self) -> io::Result<()> {
        while self.socket.unsent() < MAX_SEALED {
            self.http.fill_output();
            let output = self.http.output();
            if output.is_empty() {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = output.slices(&mut slices);
            let sealed = self.socket.seal(&slices[..count])?;
            output.advance(sealed);
        }
        Ok(())
    }

    /// Bytes that were framed and wait for the socket.
    pub fn backlog(&mut self) -> usize {
        self.socket.unsent() + self.http.output().len()
    }

    /// Tells the peer that nothing follows, as far as the socket takes it.
    pub fn close(&mut self, cx: &mut Context<'_>) {
        // The connection ends in any case.
        let _ = self.send(cx);
        let _ = self.socket.seal_end();
        let _ = self.socket.poll_flush(cx);
    }
}
