//! An HTTP/2 connection over TLS that holds no buffer while it is idle.
//!
//! [`Channel`] connects the state machine of the crate `http2` with the socket of the crate
//! `tls-socket`. It copies nothing in between. The owner of a channel polls it: it reads with
//! [`Channel::poll_receive`], handles the events of [`Channel::http`], and writes with
//! [`Channel::send`].
//!
//! # Invariants
//! - At most [`MAX_SEALED`] bytes and one frame are encrypted before the socket takes some.
//! - The owner's task is woken when the socket can be read again after `Pending`, and when it can be
//!   written again after it took less than everything.

#![warn(missing_docs)]

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http2::{Connection, RequestBuilder};
use tls_socket::{Received, Side, TlsSocket};

/// Sealed bytes beyond which the socket must take some before more are sealed.
pub const MAX_SEALED: usize = 32 << 10;
/// Slices of the output that are sealed at once.
const MAX_SLICES: usize = 16;

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
