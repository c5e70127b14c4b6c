//! Reassembly of gRPC messages from the data of a stream, within a memory budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Size of the prefix of each message: a compression flag and the length.
const PREFIX_BYTES: usize = 5;
/// Maximum message size. For larger messages, only the size is recorded.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Maximum initial capacity of the buffer for a message.
const MAX_INITIAL_CAPACITY: usize = 16 << 10;

/// The memory budget for messages that are incomplete or wait for the recorder. For
/// messages that exceed it, only the size is recorded.
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

    fn reserve(&self, bytes: usize) -> Option<Reservation> {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let reservation = Reservation { used: self.used.clone(), bytes };
        // If the budget is exceeded, dropping the reservation releases it.
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
    /// The size in bytes.
    pub size: u64,
    /// The bytes, unless the message was compressed, too large or exceeded the budget.
    pub kept: Option<Bytes>,
    _reservation: Option<Reservation>,
}

/// Assembles the messages of one direction of a stream.
#[derive(Default)]
pub struct Assembler {
    prefix: [u8; PREFIX_BYTES],
    /// Received bytes of the prefix.
    prefix_len: usize,
    /// Size of the current message in bytes.
    size: usize,
    /// Bytes of the message that have not been received.
    remaining: usize,
    /// The received bytes of the message, unless only its size is recorded.
    kept: Option<(Vec<u8>, Reservation)>,
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
            if let Some((kept, _)) = &mut self.kept {
                kept.extend_from_slice(part);
            }
            self.remaining -= part.len();
            bytes = rest;
            if self.remaining == 0 {
                self.prefix_len = 0;
                let (kept, reservation) = self.kept.take().unzip();
                let kept = kept.map(Bytes::from);
                sink(Message { size: self.size as u64, kept, _reservation: reservation });
            }
        }
    }

    fn start_message(&mut self, budget: &Budget) {
        let [compressed, length @ ..] = self.prefix;
        self.size = u32::from_be_bytes(length) as usize;
        self.remaining = self.size;
        let reservation = (compressed == 0 && self.size <= MAX_MESSAGE_BYTES)
            .then(|| budget.reserve(self.size))
            .flatten();
        self.kept = reservation.map(|reservation| {
            (Vec::with_capacity(self.size.min(MAX_INITIAL_CAPACITY)), reservation)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((message.len() as u32).to_be_bytes());
        bytes.extend(message);
        bytes
    }

    #[test]
    fn messages_are_reassembled_from_any_pieces() {
        let bytes = [framed(b"one"), framed(b""), framed(b"three")].concat();
        for piece in 1..bytes.len() {
            let (mut assembler, budget, mut found) =
                (Assembler::default(), Budget::new(100), Vec::new());
            for part in bytes.chunks(piece) {
                assembler.push(part, &budget, |message| found.push(message));
            }
            let kept: Vec<_> = found.iter().map(|message| message.kept.clone().unwrap()).collect();
            assert_eq!(kept, [&b"one"[..], b"", b"three"], "pieces of {piece}");
            drop(found);
            assert_eq!(budget.used.load(Ordering::Relaxed), 0, "the whole budget is released");
        }
    }

    #[test]
    fn messages_that_exceed_the_budget_have_a_size() {
        let (mut assembler, budget, mut found) = (Assembler::default(), Budget::new(4), Vec::new());
        let bytes = [framed(b"123"), framed(b"45"), vec![1, 0, 0, 0, 1, 9]].concat();
        assembler.push(&bytes, &budget, |message| found.push(message));
        let sizes: Vec<_> = found.iter().map(|m| (m.size, m.kept.is_some())).collect();
        assert_eq!(sizes, [(3, true), (2, false), (1, false)], "the last is compressed");
        found.clear();
        assembler.push(&framed(b"45"), &budget, |message| found.push(message));
        assert!(found[0].kept.is_some(), "the budget is available again");
    }
}
