//! gRPC's messages in the payload of a stream, copied as far as there is room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// What comes before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Larger messages are recorded by their size.
const MESSAGE_BYTES: usize = 64 << 20;
/// What is reserved for a message before more of it has come.
const FIRST_BYTES: usize = 16 << 10;

/// How many bytes of messages may be kept in all, unfinished or waiting for the
/// recorder; for who finds no room, only the message's size is recorded.
#[derive(Clone)]
pub struct Budget {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Budget { used: Arc::default(), bytes }
    }

    fn reserve(&self, bytes: usize) -> Option<Room> {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let room = Room { used: self.used.clone(), bytes };
        // If it is too much, the room that is dropped here gives it back.
        (before + bytes <= self.bytes).then_some(room)
    }
}

/// Bytes of the budget that somebody holds.
struct Room {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A message that has gone by.
#[derive(Default)]
pub struct Message {
    pub size: u64,
    /// Its bytes, unless it was compressed or there was no room for them.
    pub kept: Option<Bytes>,
    _room: Option<Room>,
}

/// Puts the messages of one direction of a stream together.
#[derive(Default)]
pub struct Inbox {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that are there.
    have: usize,
    size: usize,
    left: usize,
    kept: Option<(Vec<u8>, Room)>,
}

impl Inbox {
    /// Takes in payload, and hands on the messages that it completes.
    pub fn push(&mut self, mut bytes: &[u8], budget: &Budget, mut sink: impl FnMut(Message)) {
        while !bytes.is_empty() {
            if self.have < PREFIX_BYTES {
                let (part, rest) = bytes.split_at(bytes.len().min(PREFIX_BYTES - self.have));
                self.prefix[self.have..self.have + part.len()].copy_from_slice(part);
                self.have += part.len();
                bytes = rest;
                if self.have < PREFIX_BYTES {
                    return;
                }
                self.begin(budget);
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.left));
            if let Some((kept, _)) = &mut self.kept {
                kept.extend_from_slice(part);
            }
            self.left -= part.len();
            bytes = rest;
            if self.left == 0 {
                self.have = 0;
                let (kept, room) = self.kept.take().unzip();
                let kept = kept.map(Bytes::from);
                sink(Message { size: self.size as u64, kept, _room: room });
            }
        }
    }

    fn begin(&mut self, budget: &Budget) {
        let [compressed, length @ ..] = self.prefix;
        self.size = u32::from_be_bytes(length) as usize;
        self.left = self.size;
        let room = (compressed == 0 && self.size <= MESSAGE_BYTES)
            .then(|| budget.reserve(self.size))
            .flatten();
        self.kept = room.map(|room| (Vec::with_capacity(self.size.min(FIRST_BYTES)), room));
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
    fn messages_in_any_pieces() {
        let bytes = [framed(b"one"), framed(b""), framed(b"three")].concat();
        for piece in 1..bytes.len() {
            let (mut inbox, budget, mut found) = (Inbox::default(), Budget::new(100), Vec::new());
            for part in bytes.chunks(piece) {
                inbox.push(part, &budget, |message| found.push(message));
            }
            let kept: Vec<_> = found.iter().map(|message| message.kept.clone().unwrap()).collect();
            assert_eq!(kept, [&b"one"[..], b"", b"three"], "pieces of {piece}");
            drop(found);
            assert_eq!(budget.used.load(Ordering::Relaxed), 0, "everything is given back");
        }
    }

    #[test]
    fn what_there_is_no_room_for_has_a_size() {
        let (mut inbox, budget, mut found) = (Inbox::default(), Budget::new(4), Vec::new());
        let bytes = [framed(b"123"), framed(b"45"), vec![1, 0, 0, 0, 1, 9]].concat();
        inbox.push(&bytes, &budget, |message| found.push(message));
        let sizes: Vec<_> = found.iter().map(|m| (m.size, m.kept.is_some())).collect();
        assert_eq!(sizes, [(3, true), (2, false), (1, false)], "the last is compressed");
        found.clear();
        inbox.push(&framed(b"45"), &budget, |message| found.push(message));
        assert!(found[0].kept.is_some(), "there is room again");
    }
}
