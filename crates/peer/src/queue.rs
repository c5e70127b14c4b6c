//! The messages that wait for a stream to a member.
//!
//! Messages may be lost, and what waits for long is of no use: heartbeats are outdated, and entries
//! are sent again. So the queue is short, and it takes nothing while the member cannot be reached.

use std::collections::VecDeque;

use bytes::Bytes;
use consensus::entry::Content;
use consensus::message::{Body, Message};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::class::Class;
use crate::frame::{Kind, put_frame};

/// Maximum number of messages. Beyond it, [`Class::Control`] loses the oldest message, because a
/// newer one replaces it, and the others refuse a new message.
const MAX_MESSAGES: usize = 4096;
/// Maximum size of the entries in bytes, as they are counted by [`size`]. One message may be larger
/// if it is alone.
const MAX_BYTES: usize = 64 << 20;

/// Approximate size of a message without payloads, and of an entry.
const OVERHEAD_BYTES: usize = 64;

/// Something that waits for a stream.
pub(crate) enum Item {
    /// A message of the protocol.
    Message(Message),
    /// Other bytes, of [`Class::Forward`].
    Forwarded(Bytes),
}

pub(crate) struct Queue {
    class: Class,
    state: Mutex<State>,
    /// Signals that there are messages to send, or that the stream may send again.
    pub(crate) changed: Notify,
}

#[derive(Default)]
struct State {
    messages: VecDeque<Item>,
    bytes: usize,
    is_open: bool,
}

impl Queue {
    pub(crate) fn new(class: Class) -> Queue {
        Queue { class, state: Mutex::default(), changed: Notify::new() }
    }

    /// Takes messages from now on.
    pub(crate) fn open(&self) {
        self.state.lock().is_open = true;
    }

    /// Drops all messages, and takes none until the next [`Queue::open`]. Returns how many were
    /// dropped.
    pub(crate) fn close(&self) -> usize {
        std::mem::take(&mut *self.state.lock()).messages.len()
    }

    /// Adds a message, which waits for [`Queue::flush`]. Returns whether a message was dropped, this one
    /// or an older one.
    pub(crate) fn push(&self, message: Item) -> bool {
        let bytes = message.size();
        let mut state = self.state.lock();
        let is_full = state.messages.len() >= MAX_MESSAGES
            || (!state.messages.is_empty() && state.bytes + bytes > MAX_BYTES);
        if !state.is_open || (is_full && self.class != Class::Control) {
            return true;
        }
        if is_full {
            state.pop();
        }
        state.bytes += bytes;
        state.messages.push_back(message);
        is_full
    }

    /// Lets the stream send what waits.
    pub(crate) fn flush(&self) {
        if !self.state.lock().messages.is_empty() {
            self.changed.notify_one();
        }
    }

    pub(crate) fn pop(&self) -> Option<Item> {
        self.state.lock().pop()
    }

    /// Returns the number of messages and their approximate size in bytes.
    pub(crate) fn len(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.messages.len(), state.bytes)
    }
}

impl State {
    fn pop(&mut self) -> Option<Item> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.size();
        Some(message)
    }
}

impl Item {
    /// Appends the frame to `buf`.
    pub(crate) fn put(&self, buf: &mut Vec<u8>) {
        match self {
            Item::Message(message) => put_frame(Kind::Message, buf, |buf| message.encode(buf)),
            Item::Forwarded(body) => {
                put_frame(Kind::Forwarded, buf, |buf| buf.extend_from_slice(body));
            }
        }
    }

    /// Returns the approximate size in bytes.
    fn size(&self) -> usize {
        match self {
            Item::Message(message) => size(message),
            Item::Forwarded(body) => body.len() + OVERHEAD_BYTES,
        }
    }
}

/// Returns the approximate size of a message in bytes.
fn size(message: &Message) -> usize {
    let Body::Append { entries, .. } = &message.body else { return OVERHEAD_BYTES };
    let payload = |content: &Content| match content {
        Content::Data(data) => data.payload.len(),
        Content::Empty | Content::Change(_) => 0,
    };
    entries.iter().map(|entry| OVERHEAD_BYTES + payload(&entry.content)).sum::<usize>()
        + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use consensus::entry::{Data, Entry};
    use consensus::id::{ClusterId, MemberId, Position};

    use super::*;

    fn message(term: u64, body: Body) -> Message {
        let id = |number| MemberId::new(number).unwrap();
        Message { cluster: ClusterId(1), from: id(1), to: id(2), term, body }
    }

    fn append(term: u64, bytes: usize) -> Item {
        let data = Data { term, previous: 0, payload: Bytes::from(vec![0; bytes]) };
        let entry = Entry { position: Position { term, index: 1 }, content: Content::Data(data) };
        let previous = Position::default();
        Item::Message(message(term, Body::Append { previous, commit: 0, entries: vec![entry] }))
    }

    fn term(item: Option<Item>) -> u64 {
        match item {
            Some(Item::Message(message)) => message.term,
            _ => panic!("no message"),
        }
    }

    #[test]
    fn a_full_queue_of_entries_refuses_and_frees_memory() {
        let queue = Queue::new(Class::Log);
        assert!(queue.push(append(1, 0)), "it is closed");
        queue.open();
        assert!(!queue.push(append(1, MAX_BYTES)), "a large message alone is taken");
        assert!(queue.push(append(2, 1)));
        assert_eq!(term(queue.pop()), 1);
        assert_eq!(queue.len(), (0, 0));
        (0..MAX_MESSAGES).for_each(|_| assert!(!queue.push(append(3, 0))));
        assert!(queue.push(append(4, 0)));
        assert_eq!(queue.close(), MAX_MESSAGES);
        assert_eq!(queue.len(), (0, 0));
        assert!(queue.push(append(5, 0)), "it is closed");
    }

    #[test]
    fn a_full_queue_of_heartbeats_keeps_the_newest() {
        let queue = Queue::new(Class::Control);
        queue.open();
        for term in 0..MAX_MESSAGES as u64 {
            assert!(!queue.push(Item::Message(message(term, Body::TimeoutNow))));
        }
        assert!(queue.push(Item::Message(message(9999, Body::TimeoutNow))));
        assert_eq!(term(queue.pop()), 1);
        assert_eq!(queue.len().0, MAX_MESSAGES - 1);
    }
}
