//! A snapshot that arrives: its description, and its content as bytes.

use std::io::{self, Read};
use std::sync::mpsc;

use bytes::{Buf as _, Bytes};
use consensus::message::Message;
use tokio::sync::oneshot;

use crate::window::Held;

/// A snapshot that arrives. A thread that may block reads its content; the sender waits meanwhile.
/// The content is complete only if reading it ends without an error.
///
/// The receiver installs the content, calls [`IncomingSnapshot::finish`], and passes the message
/// to [`consensus::Replica::receive`].
#[derive(Debug)]
pub struct IncomingSnapshot {
    message: Message,
    parts: mpsc::Receiver<Part>,
    current: Option<Chunk>,
    has_ended: bool,
    result: oneshot::Sender<bool>,
}

/// A part of the content.
#[derive(Debug)]
pub(crate) enum Part {
    Chunk(Chunk),
    /// The content is complete.
    End,
}

#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: Bytes,
    /// Lets the sender send more when it is dropped.
    pub(crate) _held: Held,
}

impl IncomingSnapshot {
    /// Returns the snapshot, where to put its parts, and what its receiver says at the end.
    pub(crate) fn new(
        message: Message,
    ) -> (IncomingSnapshot, mpsc::Sender<Part>, oneshot::Receiver<bool>) {
        let (parts_sender, parts) = mpsc::channel();
        let (result, result_receiver) = oneshot::channel();
        let snapshot = IncomingSnapshot { message, parts, current: None, has_ended: false, result };
        (snapshot, parts_sender, result_receiver)
    }

    /// Returns the message that describes the snapshot.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Tells the sender whether the snapshot is installed. A snapshot that is dropped is not.
    pub fn finish(self, installed: bool) {
        // The sender may be gone.
        let _ = self.result.send(installed);
    }
}

impl Read for IncomingSnapshot {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.current.is_none() && !self.has_ended {
            match self.parts.recv() {
                Ok(Part::Chunk(chunk)) => {
                    self.current = Some(chunk).filter(|chunk| !chunk.bytes.is_empty());
                }
                Ok(Part::End) => self.has_ended = true,
                Err(mpsc::RecvError) => {
                    let reason = "the sender stopped before the end of the snapshot";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
                }
            }
        }
        let Some(chunk) = &mut self.current else { return Ok(0) };
        let count = chunk.bytes.len().min(buf.len());
        chunk.bytes.copy_to_slice(&mut buf[..count]);
        if chunk.bytes.is_empty() {
            // The sender may send more.
            self.current = None;
        }
        Ok(count)
    }
}
