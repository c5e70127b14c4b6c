//! Messages of a streaming call that its handler has not read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::assembler::UnreadMessage;

/// Bytes of messages that the handlers of a connection have read. The connection passes
/// them to [`http2::Connection::release`], so that the client may send more.
#[derive(Default)]
pub(crate) struct ConsumedBytes {
    pending: Mutex<PendingRelease>,
}

#[derive(Default)]
struct PendingRelease {
    /// Stream IDs and numbers of bytes.
    bytes: Vec<(u32, i64)>,
    /// Wakes the task of the connection.
    connection: Option<Waker>,
}

impl ConsumedBytes {
    /// Removes and returns the entries: a stream ID and a number of bytes each. Wakes
    /// `waker` when a handler reads the next message.
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

/// The unread messages of one stream. Their size is bounded by the stream's flow-control
/// window, because the bytes of a message are released only when the handler reads it.
pub(crate) struct Inbox {
    stream: u32,
    consumed_bytes: Arc<ConsumedBytes>,
    queue: Mutex<MessageQueue>,
}

#[derive(Default)]
struct MessageQueue {
    messages: VecDeque<UnreadMessage>,
    /// Whether the client sends no more messages.
    ended: bool,
    /// Wakes the handler that waits for a message.
    reader: Option<Waker>,
}

impl Inbox {
    pub(crate) fn new(stream: u32, consumed_bytes: Arc<ConsumedBytes>) -> Arc<Self> {
        Arc::new(Inbox { stream, consumed_bytes, queue: Mutex::default() })
    }

    pub(crate) fn push(&self, message: UnreadMessage) {
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
                self.consumed_bytes.add(self.stream, message.framed_len() as i64);
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
