//! Which HTTP a client speaks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use grpc::Io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

/// A client that does not say by then which HTTP it speaks is dropped.
const FIRST_WORDS_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection of which so much is known.
pub enum Opened {
    /// HTTP/2; its preface has been read.
    Http2(Box<dyn Io>),
    /// Something else, HTTP/1.1 most likely; nothing is missing from it.
    Other(Replayed),
    /// The client hung up, or is told to go before it has said anything.
    Gone,
}

/// Reads until it is clear which HTTP it is.
pub async fn open(mut io: Box<dyn Io>, stop: &CancellationToken) -> io::Result<Opened> {
    let mut head = [0; grpc::PREFACE.len()];
    let first_words = tokio::time::timeout(FIRST_WORDS_TIMEOUT, first_words(&mut io, &mut head));
    let len = tokio::select! {
        len = first_words => len??,
        () = stop.cancelled() => return Ok(Opened::Gone),
    };
    Ok(match &head[..len] {
        [] => Opened::Gone,
        head if head == grpc::PREFACE => Opened::Http2(io),
        head => Opened::Other(Replayed::new(head, io)),
    })
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
pub struct Replayed {
    head: Bytes,
    io: Box<dyn Io>,
}

impl Replayed {
    /// Reads `head` first, then what comes from `io`.
    pub fn new(head: &[u8], io: Box<dyn Io>) -> Self {
        Replayed { head: Bytes::copy_from_slice(head), io }
    }
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
