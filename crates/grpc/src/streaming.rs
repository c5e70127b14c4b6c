//! The streaming calls of a connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::task::{ArcWake, AtomicWaker, waker};
use http2::StreamMap;
use parking_lot::Mutex;

use crate::budget::Share;
use crate::inbox::Inbox;
use crate::payload::Payload;
use crate::request::MethodId;
use crate::routes::ResponseStream;
use crate::status::Status;

/// Entries of ended calls are removed from the queue when it has more entries than this
/// number plus twice the number of calls.
const MAX_STALE_ENTRIES: usize = 1024;

/// Maximum number of calls without a message that are polled before the connection is read
/// again. Each may have taken a fraction of a millisecond.
const MAX_FRUITLESS_POLLS: usize = 32;

/// All open streaming calls, by stream ID. A call is dropped as soon as it is removed.
#[derive(Default)]
pub(crate) struct StreamingCalls {
    open: StreamMap<StreamingCall>,
    ready: Arc<ReadyQueue>,
}

/// A call with a stream of response messages.
pub(crate) struct StreamingCall {
    responses: ResponseStream,
    pub(crate) request: StreamedRequest,
    pub(crate) method: MethodId,
    /// Whether the head of the response has been sent. It is sent before the first
    /// message.
    pub(crate) head_sent: bool,
    /// Whether the call waits until the client has read enough of its responses.
    pub(crate) backpressured: bool,
    readiness: Arc<Readiness>,
    /// Wakes `readiness`.
    waker: Waker,
}

/// The request of a streaming call.
pub(crate) enum StreamedRequest {
    /// One message, which the handler has, and what it uses of the budget.
    Message(#[expect(dead_code, reason = "counts the message until the call ends")] Share),
    /// The unread messages.
    Messages(Arc<Inbox>),
}

impl StreamedRequest {
    /// The unread messages; `None` if the call has only one request message.
    pub(crate) fn inbox(&self) -> Option<&Arc<Inbox>> {
        match self {
            StreamedRequest::Message(_) => None,
            StreamedRequest::Messages(inbox) => Some(inbox),
        }
    }
}

/// Streams whose next message may be ready.
#[derive(Default)]
struct ReadyQueue {
    streams: Mutex<VecDeque<u32>>,
    /// Wakes the task of the connection.
    connection: AtomicWaker,
}

/// How many calls may be polled before the connection is read and written again.
pub(crate) struct Turns {
    calls: usize,
    /// How many of them may have no message. Such a call may have worked without a result,
    /// for example read history that contains nothing for its watchers.
    fruitless: usize,
}

/// Whether one stream is in the queue.
struct Readiness {
    stream: u32,
    queued: AtomicBool,
    queue: Arc<ReadyQueue>,
}

impl ArcWake for Readiness {
    fn wake_by_ref(this: &Arc<Self>) {
        if this.push() {
            this.queue.connection.wake();
        }
    }
}

impl Readiness {
    /// Adds the stream to the queue. Returns false if the queue contains it.
    fn push(&self) -> bool {
        let added = !self.queued.swap(true, Ordering::AcqRel);
        if added {
            self.queue.streams.lock().push_back(self.stream);
        }
        added
    }
}

impl StreamingCall {
    /// Polls for the next message. If there is none, the call is polled again when it is
    /// woken.
    pub(crate) fn poll_message(&mut self) -> Poll<Option<Result<Payload, Status>>> {
        self.responses.as_mut().poll_next(&mut Context::from_waker(&self.waker))
    }

    /// Lets the call be polled again after the other calls.
    pub(crate) fn poll_again(&self) {
        self.readiness.push();
    }
}

impl StreamingCalls {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn contains(&self, stream: u32) -> bool {
        self.open.contains_key(&stream)
    }

    /// Adds a call. It is polled for the first time by [`StreamingCalls::poll_next`].
    pub(crate) fn insert(
        &mut self,
        stream: u32,
        method: MethodId,
        request: StreamedRequest,
        responses: ResponseStream,
    ) {
        let queue = self.ready.clone();
        let readiness = Arc::new(Readiness { stream, queued: AtomicBool::new(false), queue });
        readiness.push();
        let waker = waker(readiness.clone());
        let (head_sent, backpressured) = (false, false);
        let call = StreamingCall {
            responses,
            request,
            method,
            head_sent,
            backpressured,
            readiness,
            waker,
        };
        self.open.insert(stream, call);
    }

    pub(crate) fn get_mut(&mut self, stream: u32) -> Option<&mut StreamingCall> {
        self.open.get_mut(&stream)
    }

    /// Removes and returns a call.
    pub(crate) fn remove(&mut self, stream: u32) -> Option<StreamingCall> {
        let removed = self.open.remove(&stream);
        let mut streams = self.ready.streams.lock();
        if streams.len() > 2 * self.open.len() + MAX_STALE_ENTRIES {
            streams.retain(|stream| self.open.contains_key(stream));
        }
        removed
    }

    /// The streams of all calls.
    pub(crate) fn streams(&self) -> Vec<u32> {
        self.open.keys().copied().collect()
    }

    /// Removes all calls. Passes the method of each to `ended`.
    pub(crate) fn clear(&mut self, mut ended: impl FnMut(MethodId)) {
        self.open.drain().for_each(|(_, call)| ended(call.method));
    }

    /// Lets the task be woken when a call has its next message.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        if !self.open.is_empty() {
            self.ready.connection.register(cx.waker());
        }
    }

    /// Returns the turns for one poll of each call that may be ready.
    pub(crate) fn turns(&self) -> Turns {
        Turns { calls: self.ready_len(), fruitless: MAX_FRUITLESS_POLLS }
    }

    /// Number of calls that may be ready, or more.
    pub(crate) fn ready_len(&self) -> usize {
        if self.open.is_empty() { 0 } else { self.ready.streams.lock().len() }
    }

    /// Polls calls that may be ready, and reduces `turns`. Returns the stream and the next
    /// message of one; `None` if no call has a message, or no turns are left.
    /// [`StreamingCalls::register`] must have been called before.
    pub(crate) fn poll_next(
        &mut self,
        turns: &mut Turns,
    ) -> Option<(u32, Option<Result<Payload, Status>>)> {
        while turns.calls > 0 && turns.fruitless > 0 {
            turns.calls -= 1;
            let stream = self.ready.streams.lock().pop_front()?;
            let Some(call) = self.open.get_mut(&stream) else { continue };
            call.readiness.queued.store(false, Ordering::Release);
            if call.backpressured {
                continue;
            }
            if let Poll::Ready(message) = call.poll_message() {
                return Some((stream, message));
            }
            turns.fruitless -= 1;
        }
        None
    }

    /// Lets a call that was backpressured be polled again.
    pub(crate) fn resume(&mut self, stream: u32) {
        if let Some(call) = self.open.get_mut(&stream)
            && std::mem::replace(&mut call.backpressured, false)
        {
            call.poll_again();
        }
    }
}
