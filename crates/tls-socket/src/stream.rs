//! The socket as a stream of tokio.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::side::Side;
use crate::socket::{Received, TlsSocket};

/// Sealed bytes beyond which a writer waits until they are sent.
const MAX_UNSENT: usize = 64 << 10;

impl<S: Side> AsyncRead for TlsSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (this, before) = (&mut *self, buffer.filled().len());
        loop {
            let mut rest = Vec::new();
            let received = this.poll_receive(cx, &mut |bytes| {
                let taken = bytes.len().min(buffer.remaining());
                buffer.put_slice(&bytes[..taken]);
                rest.extend_from_slice(&bytes[taken..]);
            });
            this.plaintext = rest;
            // An error after some bytes is reported by the next call.
            if buffer.filled().len() > before || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            match ready!(received)? {
                Received::Bytes => {}
                Received::End if this.peer_closed => return Poll::Ready(Ok(())),
                // Somebody else may have cut the connection.
                Received::End => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }
}

impl<S: Side> AsyncWrite for TlsSocket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.unsent() >= MAX_UNSENT {
            ready!(TlsSocket::poll_flush(&mut self, cx))?;
        }
        let sealed = self.seal(slices)?;
        // What the socket does not take now is sent by a later call.
        if let Poll::Ready(Err(error)) = TlsSocket::poll_flush(&mut self, cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(sealed))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        TlsSocket::poll_flush(&mut self, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.seal_end()?;
        ready!(TlsSocket::poll_flush(&mut self, cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
