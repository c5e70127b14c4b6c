//! Messages of a client that a handler has yet to read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::message::Unread;

/// Bytes that handlers have read, by stream, for which the clients are owed
/// credit.
#[derive(Default)]
pub(crate) struct Credits {
    owed: Mutex<Owed>,
}

#[derive(Default)]
struct Owed {
    bytes: Vec<(u32, i64)>,
    connection: Option<Waker>,
}

impl Credits {
    /// Takes what is owed; `waker` is woken when there is more.
    pub(crate) fn take(&self, waker: &Waker) -> Vec<(u32, i64)> {
        let mut owed = self.owed.lock();
        if owed.connection.as_ref().is_none_or(|before| !before.will_wake(waker)) {
            owed.connection = Some(waker.clone());
        }
        std::mem::take(&mut owed.bytes)
    }

    fn add(&self, stream: u32, bytes: i64) {
        let mut owed = self.owed.lock();
        owed.bytes.push((stream, bytes));
        if owed.bytes.len() == 1
            && let Some(connection) = &owed.connection
        {
            connection.wake_by_ref();
        }
    }
}

/// The queue of one stream. It is bounded by the stream's window, as a message
/// gives credit only when it is read.
pub(crate) struct Inbox {
    stream: u32,
    credits: Arc<Credits>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    messages: VecDeque<Unread>,
    ended: bool,
    reader: Option<Waker>,
}

impl Inbox {
    pub(crate) fn new(stream: u32, credits: Arc<Credits>) -> Arc<Self> {
        Arc::new(Inbox { stream, credits, state: Mutex::default() })
    }

    pub(crate) fn push(&self, message: Unread) {
        let mut state = self.state.lock();
        state.messages.push_back(message);
        state.wake();
    }

    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.wake();
    }

    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.state.lock();
        match state.messages.pop_front() {
            Some(message) => {
                drop(state);
                self.credits.add(self.stream, message.framed_len() as i64);
                Poll::Ready(Some(message.bytes))
            }
            None if state.ended => Poll::Ready(None),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}
