//! Frames: a kind, a length of 4 bytes, and a body.
//!
//! Lengths are checked before anything is allocated. A frame gets at most [`STEP_BYTES`] at once; beyond that, memory
//! grows only with bytes that have arrived.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// Size of the kind and the length in bytes.
pub(crate) const HEADER_BYTES: usize = 5;
/// Number of bytes that are read at once, at least.
const READ_BYTES: usize = 16 << 10;
/// The memory that a frame gets before its bytes have come. Most frames are shorter: then they are never moved, and only memory
/// that has bytes is touched.
const STEP_BYTES: usize = 256 << 10;

/// What a frame contains. Members of different versions exchange them, so the numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Who connects, and what for.
    Hello = 1,
    /// Who answers, and whether the stream begins.
    Welcome = 2,
    /// A message, in the format of `consensus`.
    Message = 3,
    /// The sender is alive: a number of 8 bytes, which the receiver returns.
    Ping = 4,
    /// The receiver is alive: the number of bytes that it has taken, and the number of the last
    /// ping, of 8 bytes each.
    Acknowledgement = 5,
    /// A part of the content of a snapshot.
    Chunk = 6,
    /// The end of a snapshot: its size (8 bytes) and its CRC-32C (4 bytes).
    End = 7,
    /// Whether the receiver has installed the snapshot: a byte.
    Result = 8,
    /// What members say to each other beside the protocol.
    Forwarded = 9,
}

impl Kind {
    fn from_number(number: u8) -> Option<Kind> {
        use Kind::*;
        [Hello, Welcome, Message, Ping, Acknowledgement, Chunk, End, Result, Forwarded]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// A frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) body: Bytes,
}

/// Reads frames from a connection.
pub(crate) struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
    /// After how long without a byte the other side counts as dead.
    silence: Duration,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(io: R, silence: Duration) -> FrameReader<R> {
        FrameReader { io, buffer: BytesMut::new(), silence }
    }

    /// Reads a frame with a body of up to `max` bytes. `None` at the end.
    ///
    /// # Errors
    /// If the connection fails, is silent or ends within a frame, or the frame is not allowed.
    pub(crate) async fn next(&mut self, max: usize) -> io::Result<Option<Frame>> {
        if self.buffer.is_empty() && !self.fill(HEADER_BYTES).await? {
            return Ok(None);
        }
        self.fill_to(HEADER_BYTES).await?;
        let kind = self.buffer[0];
        let length = u32::from_le_bytes(self.buffer[1..HEADER_BYTES].try_into().expect("4 bytes"));
        let kind = Kind::from_number(kind).ok_or_else(|| invalid(format!("frame kind {kind}")))?;
        let length = length as usize;
        if length > max {
            return Err(invalid(format!("a frame of {length} bytes; the limit is {max}")));
        }
        self.fill_to(HEADER_BYTES + length).await?;
        self.buffer.advance(HEADER_BYTES);
        Ok(Some(Frame { kind, body: self.buffer.split_to(length).freeze() }))
    }

    /// Reads exactly `count` bytes, a few.
    pub(crate) async fn bytes(&mut self, count: usize) -> io::Result<Bytes> {
        self.fill_to(count).await?;
        Ok(self.buffer.split_to(count).freeze())
    }

    /// Reads until the buffer has `count` bytes.
    async fn fill_to(&mut self, count: usize) -> io::Result<()> {
        while self.buffer.len() < count {
            if !self.fill(count - self.buffer.len()).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Reads what has arrived, of which `missing` bytes are needed. Returns `false` at the end.
    async fn fill(&mut self, missing: usize) -> io::Result<bool> {
        // Beyond a step, what is said to come is not worth memory before as much has come.
        let step = missing.min(self.buffer.len().max(STEP_BYTES));
        self.buffer.reserve(step.max(READ_BYTES));
        match timeout(self.silence, self.io.read_buf(&mut self.buffer)).await {
            Ok(read) => Ok(read? > 0),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the peer is silent")),
        }
    }
}

/// Appends a frame whose body `write` writes.
pub(crate) fn put_frame(kind: Kind, buf: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = buf.len();
    buf.push(kind as u8);
    buf.extend_from_slice(&[0; 4]);
    write(buf);
    let length = (buf.len() - start - HEADER_BYTES) as u32;
    buf[start + 1..start + HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
}

/// Appends a frame with numbers.
pub(crate) fn put_numbers(kind: Kind, numbers: &[u64], buf: &mut Vec<u8>) {
    put_frame(kind, buf, |buf| {
        numbers.iter().for_each(|n| buf.extend_from_slice(&n.to_le_bytes()))
    });
}

/// Reads the numbers of a frame.
pub(crate) fn numbers<const COUNT: usize>(mut body: Bytes) -> io::Result<[u64; COUNT]> {
    if body.len() != COUNT * 8 {
        return Err(invalid("frame of the wrong size"));
    }
    Ok(std::array::from_fn(|_| body.get_u64_le()))
}

/// Writes all bytes. Fails if the other side takes none for the time of `silence`.
pub(crate) async fn write_all(
    io: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
    silence: Duration,
) -> io::Result<()> {
    let stopped = || io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes");
    while !bytes.is_empty() {
        let written = timeout(silence, io.write(bytes)).await.map_err(|_| stopped())??;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    timeout(silence, io.flush()).await.map_err(|_| stopped())?
}

/// The error of bytes that no correct member sends.
pub(crate) fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn reader(bytes: &[u8]) -> FrameReader<&[u8]> {
        FrameReader::new(bytes, LONG)
    }

    #[tokio::test]
    async fn frames_are_read_as_written() {
        let mut buf = Vec::new();
        put_frame(Kind::Chunk, &mut buf, |buf| buf.extend_from_slice(&[7; 200_000]));
        put_numbers(Kind::Acknowledgement, &[1, u64::MAX], &mut buf);
        let mut reader = reader(&buf);
        let chunk = reader.next(200_000).await.unwrap().unwrap();
        assert_eq!((chunk.kind, chunk.body), (Kind::Chunk, Bytes::from(vec![7; 200_000])));
        let numbers_frame = reader.next(16).await.unwrap().unwrap();
        assert_eq!(numbers_frame.kind, Kind::Acknowledgement);
        assert_eq!(numbers(numbers_frame.body.clone()).unwrap(), [1, u64::MAX]);
        assert!(numbers::<1>(numbers_frame.body).is_err());
        assert_eq!(reader.next(16).await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_no_frame_is_an_error() {
        let error = async |bytes: &[u8]| reader(bytes).next(10).await.unwrap_err().kind();
        assert_eq!(error(b"GET / HTTP/1.1\r\n").await, io::ErrorKind::InvalidData);
        assert_eq!(error(&[3, 11, 0, 0, 0]).await, io::ErrorKind::InvalidData);
        assert_eq!(error(&[3, 0xff, 0xff, 0xff, 0xff]).await, io::ErrorKind::InvalidData);
        assert_eq!(error(&[3, 2, 0]).await, io::ErrorKind::UnexpectedEof);
        assert_eq!(error(&[3, 2, 0, 0, 0, 1]).await, io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_length_alone_takes_no_memory() {
        let bytes = [&[Kind::Message as u8][..], &u32::MAX.to_le_bytes(), &[0; 1000]].concat();
        let mut reader = reader(&bytes);
        assert!(reader.next(u32::MAX as usize).await.is_err());
        assert!(
            reader.buffer.capacity() <= STEP_BYTES + READ_BYTES,
            "{}",
            reader.buffer.capacity()
        );
    }

    #[tokio::test]
    async fn silence_is_an_error() {
        let (io, _other) = tokio::io::duplex(10);
        let mut reader = FrameReader::new(io, Duration::from_millis(1));
        assert_eq!(reader.next(10).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut io, _other) = tokio::io::duplex(10);
        let written = write_all(&mut io, &[0; 11], Duration::from_millis(1)).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
