//! The socket: receiving and sending.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::CommonState;
use tokio_rustls::rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, WriteTraffic,
};

use crate::scratch;
use crate::side::Side;

/// Plaintext of one record in bytes, at most.
const MAX_PLAINTEXT: usize = 16 << 10;
/// What a record adds to its plaintext in bytes, at most.
const RECORD_OVERHEAD: usize = 64;

/// A TLS session and its socket.
pub struct TlsSocket<S> {
    pub(crate) socket: TcpStream,
    pub(crate) side: S,
    /// The received part of a record whose rest has not arrived.
    ciphertext: Vec<u8>,
    /// Plaintext that arrived with the end of the handshake, or that did not fit in the buffer of a
    /// reader.
    pub(crate) plaintext: Vec<u8>,
    /// Sealed records, of which the first `sent` bytes are sent.
    sealed: Vec<u8>,
    sent: usize,
    /// Whether the peer has said that it sends nothing more.
    pub(crate) peer_closed: bool,
    /// Whether the peer has been told the same.
    end_sealed: bool,
    /// Whether the session has failed. rustls must not be asked again then.
    failed: bool,
}

/// What [`TlsSocket::poll_receive`] received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes, perhaps without a complete record.
    Bytes,
    /// The peer sends nothing more. It has said so within TLS, unless the connection was cut.
    End,
}

impl<S: Side> TlsSocket<S> {
    pub(crate) fn new(socket: TcpStream, side: S) -> TlsSocket<S> {
        TlsSocket {
            socket,
            side,
            ciphertext: Vec::new(),
            plaintext: Vec::new(),
            sealed: Vec::new(),
            sent: 0,
            peer_closed: false,
            end_sealed: false,
            failed: false,
        }
    }

    /// What was negotiated, and the certificates of the peer.
    pub fn session(&self) -> &CommonState {
        self.side.common()
    }

    /// Reads once from the socket and passes the decrypted bytes to `sink`.
    ///
    /// # Errors
    /// If the socket fails, or the peer violates TLS.
    pub fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<Received>> {
        if !self.plaintext.is_empty() {
            sink(&std::mem::take(&mut self.plaintext));
            return Poll::Ready(Ok(Received::Bytes));
        }
        if self.peer_closed || self.failed {
            return Poll::Ready(Ok(Received::End));
        }
        scratch::with_receive_buffer(|buffer| {
            let kept = self.ciphertext.len();
            buffer[..kept].copy_from_slice(&self.ciphertext);
            let mut free = ReadBuf::new(&mut buffer[kept..]);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut free))?;
            let read = free.filled().len();
            if read == 0 {
                return Poll::Ready(Ok(Received::End));
            }
            let received = &mut buffer[..kept + read];
            let used = self.open(received, sink)?;
            self.keep(&received[used..])?;
            let closed = self.peer_closed && used == kept + read && self.plaintext.is_empty();
            Poll::Ready(Ok(if closed { Received::End } else { Received::Bytes }))
        })
    }

    /// Keeps the start of a record until the next read.
    pub(crate) fn keep(&mut self, rest: &[u8]) -> io::Result<()> {
        // rustls refuses a record that is too large, before it is complete.
        if rest.len() >= scratch::RECEIVE_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "TLS record too large"));
        }
        self.ciphertext.clear();
        if rest.is_empty() {
            self.ciphertext = Vec::new();
        } else {
            self.ciphertext.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Handles all complete records. Returns the number of bytes that they have. After an error,
    /// tries to tell the peer.
    pub(crate) fn open(
        &mut self,
        records: &mut [u8],
        sink: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        let mut used = 0;
        loop {
            let status = self.side.process(&mut records[used..]);
            let state = match status.state {
                Ok(state) => state,
                Err(error) => {
                    used += status.discard;
                    self.failed = true;
                    self.send_alert(&mut records[used..]);
                    return Err(invalid(error));
                }
            };
            match state {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        sink(record.map_err(invalid)?.payload);
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => encode(&mut data, &mut self.sealed)?,
                // The bytes are in `sealed`, which is sent in order.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.peer_closed = true,
                ConnectionState::BlockedHandshake
                | ConnectionState::WriteTraffic(_)
                | ConnectionState::Closed => return Ok(used + status.discard),
                _ => return Err(invalid("early data")),
            }
            used += status.discard;
        }
    }

    /// Seals one record with the first bytes of `slices`. Returns how many bytes it has. The caller
    /// bounds [`unsent`](Self::unsent), and calls [`poll_flush`](Self::poll_flush) afterwards.
    ///
    /// # Errors
    /// If the session is closed, or its keys are used up.
    pub fn seal(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let first = slices.iter().find(|slice| !slice.is_empty());
        let Some(first) = first else { return Ok(0) };
        if first.len() >= MAX_PLAINTEXT || slices.len() == 1 {
            let plaintext = &first[..first.len().min(MAX_PLAINTEXT)];
            self.seal_record(plaintext)?;
            return Ok(plaintext.len());
        }
        scratch::with_plain_buffer(|plaintext| {
            for slice in slices {
                let room = MAX_PLAINTEXT - plaintext.len();
                plaintext.extend_from_slice(&slice[..slice.len().min(room)]);
            }
            self.seal_record(plaintext)?;
            Ok(plaintext.len())
        })
    }

    fn seal_record(&mut self, plaintext: &[u8]) -> io::Result<()> {
        if self.sealed.capacity() == 0 {
            self.sealed = scratch::take_sealed();
        }
        self.with_writer(plaintext.len() + RECORD_OVERHEAD, |traffic, free| {
            traffic.encrypt(plaintext, free)
        })
    }

    /// Appends a record to the sealed ones, which `write` writes into free space of `room` bytes, or
    /// of as many as it asks for.
    fn with_writer(
        &mut self,
        mut room: usize,
        mut write: impl FnMut(&mut WriteTraffic<'_, S::Data>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> io::Result<()> {
        if self.failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // rustls remembers where the parts of a message are in what was kept, so it must see the
        // same bytes here.
        let TlsSocket { side, ciphertext, sealed, .. } = self;
        let status = side.process(ciphertext);
        debug_assert_eq!(status.discard, 0, "all that is kept was handled before");
        let ConnectionState::WriteTraffic(mut traffic) = status.state.map_err(invalid)? else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        append(sealed, &mut room, |free| match write(&mut traffic, free) {
            Ok(bytes) => Ok(bytes),
            Err(EncryptError::InsufficientSize(error)) => Err(Ok(error)),
            Err(error) => Err(Err(invalid(error))),
        })
    }

    /// Seals the record that says that nothing more is sent. Nothing can be sealed afterwards.
    pub fn seal_end(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.end_sealed, true) {
            return Ok(());
        }
        self.with_writer(RECORD_OVERHEAD, |traffic, free| traffic.queue_close_notify(free))
    }

    /// Sealed bytes that are not sent yet.
    pub fn unsent(&self) -> usize {
        self.sealed.len() - self.sent
    }

    /// Sends all sealed records.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unsent() > 0 {
            let unsent = &self.sealed[self.sent..];
            match ready!(Pin::new(&mut self.socket).poll_write(cx, unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        if self.sealed.capacity() > 0 {
            scratch::give_sealed(std::mem::take(&mut self.sealed));
            self.sent = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Seals what rustls has to tell the peer after an error, and tries to send it. `rest` are the
    /// bytes that were not handled.
    fn send_alert(&mut self, rest: &mut [u8]) {
        // Without something to send, rustls would look at the bytes again, and must not after an error.
        while self.side.common().wants_write() {
            let state = self.side.process(rest).state;
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { break };
            if encode(&mut data, &mut self.sealed).is_err() {
                break;
            }
        }
        // The connection ends; if the socket is full, the peer does not learn why.
        let _ = self.socket.try_write(&self.sealed[self.sent..]);
    }
}

fn encode<D>(data: &mut EncodeTlsData<'_, D>, sealed: &mut Vec<u8>) -> io::Result<()> {
    let mut room = RECORD_OVERHEAD;
    append(sealed, &mut room, |free| match data.encode(free) {
        Ok(bytes) => Ok(bytes),
        Err(EncodeError::InsufficientSize(error)) => Err(Ok(error)),
        Err(error) => Err(Err(invalid(error))),
    })
}

/// Appends what `write` writes into free space of `room` bytes, or of as many as it asks for.
fn append(
    sealed: &mut Vec<u8>,
    room: &mut usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Result<InsufficientSizeError, io::Error>>,
) -> io::Result<()> {
    let end = sealed.len();
    loop {
        sealed.resize(end + *room, 0);
        match write(&mut sealed[end..]) {
            Ok(bytes) => {
                sealed.truncate(end + bytes);
                return Ok(());
            }
            Err(Ok(error)) => *room = error.required_size,
            Err(Err(error)) => {
                sealed.truncate(end);
                return Err(error);
            }
        }
    }
}

pub(crate) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
