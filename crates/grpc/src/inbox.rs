//! Streamed messages that a handler has not read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::assembler::Unread;

/// Bytes that the handlers of a connection have read. The connection releases them to
/// the client's flow control.
#[derive(Default)]
pub(crate) struct ReadBytes {
    pending: Mutex<PendingRelease>,
}

#[derive(Default)]
struct PendingRelease {
    /// Stream and number of bytes.
    bytes: Vec<(u32, i64)>,
    connection: Option<Waker>,
}

impl ReadBytes {
    /// Removes and returns the bytes read by stream. `waker` is woken when there are more.
    pub(crate) fn take(&self, waker: &Waker) -> Vec<(u32, i64)> {
        let mut pending = self.pending.lock();
        if pending.connection.as_ref().is_none_or(|before| !before.will_wake(waker)) {
            pending.connection = Some(waker.clone());
        }
        std::mem::take(&mut pending.bytes)
    }

    fn add(&self, stream: u32, bytes: i64) {
        let mut pending = self.pending.lock();
        pending.bytes.push((stream, bytes));
        if pending.bytes.len() == 1
            && let Some(connection) = &pending.connection
        {
            connection.wake_by_ref();
        }
    }
}

/// The queue of one stream. The stream's window bounds it, because a message is released
/// only when it is read.
pub(crate) struct Inbox {
    stream: u32,
    read_bytes: Arc<ReadBytes>,
    queue: Mutex<MessageQueue>,
}

#[derive(Default)]
struct MessageQueue {
    messages: VecDeque<Unread>,
    ended: bool,
    reader: Option<Waker>,
}

impl Inbox {
    pub(crate) fn new(stream: u32, read_bytes: Arc<ReadBytes>) -> Arc<Self> {
        Arc::new(Inbox { stream, read_bytes, queue: Mutex::default() })
    }

    pub(crate) fn push(&self, message: Unread) {
        let mut queue = self.queue.lock();
        queue.messages.push_back(message);
        queue.wake();
    }

    pub(crate) fn end(&self) {
        let mut queue = self.queue.lock();
        queue.ended = true;
        queue.wake();
    }

    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut queue = self.queue.lock();
        match queue.messages.pop_front() {
            Some(message) => {
                drop(queue);
                self.read_bytes.add(self.stream, message.framed_len() as i64);
                Poll::Ready(Some(message.bytes))
            }
            None if queue.ended => Poll::Ready(None),
            None => {
                queue.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl MessageQueue {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}
