//! A connection that remembers whether the other side has ended it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that notes its end before its reader can see it.
pub struct WatchedIo<T> {
    io: T,
    ended: Arc<AtomicBool>,
}

impl<T> WatchedIo<T> {
    /// Wraps a stream. `ended` becomes true with its end or an error.
    pub fn new(io: T, ended: Arc<AtomicBool>) -> WatchedIo<T> {
        WatchedIo { io, ended }
    }

    fn note<R>(&self, result: io::Result<R>) -> Poll<io::Result<R>> {
        if result.is_err() {
            self.ended.store(true, Ordering::Release);
        }
        Poll::Ready(result)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WatchedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.io).poll_read(cx, buffer));
        if buffer.filled().len() == before {
            self.ended.store(true, Ordering::Release);
        }
        self.note(result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WatchedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.io).poll_write(cx, bytes));
        self.note(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bytes));
        self.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.io).poll_flush(cx));
        self.note(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
