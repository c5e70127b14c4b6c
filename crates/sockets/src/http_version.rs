//! Detection of the HTTP version.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use crate::io::Io;

/// A client that has not sent enough to detect the HTTP version within this time is
/// disconnected.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of the head of a request on HTTP/1.1 in bytes. A server of pages closes a
/// connection that sends more.
pub const HTTP1_HEAD_BYTES: usize = 16 << 10;
/// How long a client on HTTP/1.1 may take to send the head of its next request. Its connection is
/// closed after that.
pub const HTTP1_HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection whose HTTP version is known.
pub enum Detected {
    /// HTTP/2; its preface has been read.
    Http2(Box<dyn Io>),
    /// Another protocol, in most cases HTTP/1.1. The stream yields all bytes of the
    /// client.
    Other(Replayed),
    /// The client closed the connection, or `stop` was cancelled before the version was
    /// known.
    Closed,
}

/// Reads the first bytes of a connection, until the HTTP version is known. Fails after 10
/// s.
pub async fn detect_http_version(
    mut io: Box<dyn Io>,
    stop: &CancellationToken,
) -> io::Result<Detected> {
    let mut head = [0; http2::PREFACE.len()];
    let read_head = tokio::time::timeout(DETECTION_TIMEOUT, read_head(&mut io, &mut head));
    let len = tokio::select! {
        len = read_head => len??,
        () = stop.cancelled() => return Ok(Detected::Closed),
    };
    Ok(match &head[..len] {
        [] => Detected::Closed,
        head if head == http2::PREFACE => Detected::Http2(io),
        head => Detected::Other(Replayed::new(head, io)),
    })
}

/// Reads until `head` contains HTTP/2's preface, or bytes that differ from it. Returns
/// the number of bytes read, or 0 if the client closed the connection.
async fn read_head(io: &mut Box<dyn Io>, head: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < head.len() && http2::PREFACE.starts_with(&head[..len]) {
        match io.read(&mut head[len..]).await? {
            0 => return Ok(0),
            read => len += read,
        }
    }
    Ok(len)
}

/// A connection that yields bytes again that have already been read from it.
pub struct Replayed {
    head: Bytes,
    io: Box<dyn Io>,
}

impl Replayed {
    /// Creates a connection that yields `head` first, and then the bytes of `io`.
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
