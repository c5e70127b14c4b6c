//! A connection to an API server whose answers are counted as they are read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::buffers::Held;

/// Bytes of the header of an HTTP/2 frame.
const FRAME_HEADER: usize = 9;
/// The type of a frame with bytes of a body.
const DATA: u8 = 0;

/// Counts the bodies that are read from `io`, and stops reading when the buffers are full.
pub struct Metered<IO> {
    io: IO,
    held: Arc<Held>,
    /// Absent for HTTP/1.1. There all bytes count: requests are in sequence, so the few bytes of a
    /// header are forgotten with the end of its answer.
    frames: Option<Frames>,
}

impl<IO> Metered<IO> {
    /// Meters a connection of HTTP/1.1.
    pub fn http1(io: IO, held: Arc<Held>) -> Metered<IO> {
        Metered { io, held, frames: None }
    }

    /// Meters a connection of HTTP/2.
    pub fn http2(io: IO, held: Arc<Held>) -> Metered<IO> {
        Metered { io, held, frames: Some(Frames::default()) }
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
        let read = &buffer.filled()[before..];
        let data = this.frames.as_mut().map_or(read.len(), |frames| frames.follow(read));
        if data > 0 {
            this.held.read(data);
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

/// Finds the DATA frames in a stream of frames.
#[derive(Default)]
struct Frames {
    header: [u8; FRAME_HEADER],
    header_bytes: usize,
    /// Bytes of the payload of the current frame that are still to come.
    payload: usize,
}

impl Frames {
    /// Follows further bytes. Returns how many belong to bodies.
    fn follow(&mut self, mut bytes: &[u8]) -> usize {
        let mut data = 0;
        while !bytes.is_empty() {
            if self.payload > 0 {
                let taken = bytes.len().min(self.payload);
                if self.header[3] == DATA {
                    data += taken;
                }
                self.payload -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            let taken = bytes.len().min(FRAME_HEADER - self.header_bytes);
            self.header[self.header_bytes..][..taken].copy_from_slice(&bytes[..taken]);
            self.header_bytes += taken;
            bytes = &bytes[taken..];
            if self.header_bytes == FRAME_HEADER {
                self.header_bytes = 0;
                let [high, middle, low, ..] = self.header;
                self.payload = u32::from_be_bytes([0, high, middle, low]) as usize;
            }
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, bytes: usize) -> Vec<u8> {
        let mut frame = vec![0, (bytes >> 8) as u8, bytes as u8, kind, 0, 0, 0, 0, 1];
        frame.resize(FRAME_HEADER + bytes, DATA);
        frame
    }

    #[test]
    fn only_data_counts_in_any_split() {
        let stream = [frame(4, 6), frame(1, 300), frame(DATA, 1000), frame(DATA, 0), frame(8, 4)];
        let stream = [stream.concat(), frame(DATA, 77)].concat();
        for piece in 1..stream.len() {
            let mut frames = Frames::default();
            let data: usize = stream.chunks(piece).map(|piece| frames.follow(piece)).sum();
            assert_eq!(data, 1077, "{piece}");
        }
    }
}
