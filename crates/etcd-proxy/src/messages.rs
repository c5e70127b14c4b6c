//! Reassembly of gRPC messages from the data of an HTTP/2 stream, within a memory budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Size in bytes of the prefix of each message: a compression flag and the length.
const PREFIX_BYTES: usize = 5;
/// Maximum size of a buffered message in bytes. Of a larger message, only the size is recorded.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Maximum initial capacity of the buffer for a message in bytes. The length in the prefix is
/// not trusted, because the message may never arrive.
const MAX_INITIAL_CAPACITY: usize = 16 << 10;

/// The memory budget of all connections for messages that are incomplete or not yet written.
/// Of a message that does not fit into the budget, only the size is recorded.
#[derive(Clone)]
pub struct Budget {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Budget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Budget { used: Arc::default(), bytes }
    }

    /// Reserves a part of the budget. Returns `None` if less is available.
    fn reserve(&self, bytes: usize) -> Option<Reservation> {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let reservation = Reservation { used: self.used.clone(), bytes };
        // If the budget is exceeded, the reservation is dropped here, which releases it.
        (before + bytes <= self.bytes).then_some(reservation)
    }
}

/// A reserved part of the budget, released on drop.
struct Reservation {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A complete message.
#[derive(Default)]
pub struct Message {
    /// The size in bytes, without the prefix.
    pub size: u64,
    /// The content; `None` if the message was compressed, too large or exceeded the budget.
    pub content: Option<Bytes>,
    _reservation: Option<Reservation>,
}

/// Assembles the messages that one side sends on a stream.
#[derive(Default)]
pub struct Assembler {
    prefix: [u8; PREFIX_BYTES],
    /// Received bytes of the current message's prefix.
    prefix_len: usize,
    /// Size of the current message in bytes.
    size: usize,
    /// Bytes of the current message that have not been received.
    remaining: usize,
    /// The received content of the current message; `None` if only its size is recorded.
    content: Option<(Vec<u8>, Reservation)>,
}

impl Assembler {
    /// Processes data and calls `sink` for each message that it completes.
    pub fn push(&mut self, mut bytes: &[u8], budget: &Budget, mut sink: impl FnMut(Message)) {
        while !bytes.is_empty() {
            if self.prefix_len < PREFIX_BYTES {
                let (part, rest) = bytes.split_at(bytes.len().min(PREFIX_BYTES - self.prefix_len));
                self.prefix[self.prefix_len..self.prefix_len + part.len()].copy_from_slice(part);
                self.prefix_len += part.len();
                bytes = rest;
                if self.prefix_len < PREFIX_BYTES {
                    return;
                }
                self.start_message(budget);
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.remaining));
            if let Some((content, _)) = &mut self.content {
                content.extend_from_slice(part);
            }
            self.remaining -= part.len();
            bytes = rest;
            if self.remaining == 0 {
                self.prefix_len = 0;
                let (content, reservation) = self.content.take().unzip();
                let content = content.map(Bytes::from);
                sink(Message { size: self.size as u64, content, _reservation: reservation });
            }
        }
    }

    /// Starts a message after its prefix is complete.
    fn start_message(&mut self, budget: &Budget) {
        let [compressed, length @ ..] = self.prefix;
        self.size = u32::from_be_bytes(length) as usize;
        self.remaining = self.size;
        let reservation = (compressed == 0 && self.size <= MAX_MESSAGE_BYTES)
            .then(|| budget.reserve(self.size))
            .flatten();
        self.content = reservation.map(|reservation| {
            (Vec::with_capacity(self.size.min(MAX_INITIAL_CAPACITY)), reservation)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_prefix(message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((message.len() as u32).to_be_bytes());
        bytes.extend(message);
        bytes
    }

    #[test]
    fn messages_are_reassembled_from_any_pieces() {
        let bytes = [with_prefix(b"one"), with_prefix(b""), with_prefix(b"three")].concat();
        for piece_bytes in 1..bytes.len() {
            let (mut assembler, budget, mut found) =
                (Assembler::default(), Budget::new(100), Vec::new());
            for part in bytes.chunks(piece_bytes) {
                assembler.push(part, &budget, |message| found.push(message));
            }
            let contents: Vec<_> =
                found.iter().map(|message| message.content.clone().unwrap()).collect();
            assert_eq!(contents, [&b"one"[..], b"", b"three"], "pieces of {piece_bytes} bytes");
            drop(found);
            assert_eq!(
                budget.used.load(Ordering::Relaxed),
                0,
                "budget in use after the messages were dropped"
            );
        }
    }

    #[test]
    fn only_the_size_of_messages_that_exceed_the_budget_is_kept() {
        let (mut assembler, budget, mut found) = (Assembler::default(), Budget::new(4), Vec::new());
        let bytes = [with_prefix(b"123"), with_prefix(b"45"), vec![1, 0, 0, 0, 1, 9]].concat();
        assembler.push(&bytes, &budget, |message| found.push(message));
        // The last message has the compression flag.
        let sizes: Vec<_> = found.iter().map(|m| (m.size, m.content.is_some())).collect();
        assert_eq!(sizes, [(3, true), (2, false), (1, false)]);
        found.clear();
        assembler.push(&with_prefix(b"45"), &budget, |message| found.push(message));
        assert!(found[0].content.is_some(), "the budget was not released with the messages");
    }
}
