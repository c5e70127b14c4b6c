//! A connection to an API server whose answers are counted as they are read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::buffers::Held;

/// Counts what is read from a connection of HTTP/1.1, and stops reading when the buffers are full.
/// All bytes count: requests are in sequence, so the few bytes of a header are forgotten with the end
/// of its answer.
pub struct Metered<IO> {
    io: IO,
    held: Arc<Held>,
}

impl<IO> Metered<IO> {
    /// Meters a connection.
    pub fn new(io: IO, held: Arc<Held>) -> Metered<IO> {
        Metered { io, held }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Metered<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.held.may_read(cx.waker()) {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.io).poll_read(cx, buffer);
        let read = buffer.filled().len() - before;
        if read > 0 {
            this.held.read(read);
        }
        result
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Metered<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
