//! The unary calls and pages of a connection that are in progress.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{FuturesUnordered, Stream};
use http2::StreamMap;

use crate::deadlines::Deadlines;
use crate::payload::Payload;
use crate::request::MethodId;
use crate::routes::UnaryResponse;
use crate::status::Status;

/// A call or a page with one response message.
pub(crate) struct UnaryCall {
    pub(crate) stream: u32,
    pub(crate) deadline: Option<Instant>,
    pub(crate) work: UnaryWork,
}

/// The future of a [`UnaryCall`].
pub(crate) enum UnaryWork {
    Call { method: MethodId, response: UnaryResponse },
    Page { verb: http::Method, response: BoxFuture<'static, http::Response<Bytes>> },
}

/// The result of a [`UnaryCall`].
pub(crate) enum UnaryResult {
    Call {
        method: MethodId,
        result: Result<Payload, Status>,
    },
    Page {
        verb: http::Method,
        response: http::Response<Bytes>,
    },
    /// The client has reset the call.
    Cancelled {
        method: MethodId,
    },
}

impl UnaryCall {
    /// The method; `None` for a page.
    fn method(&self) -> Option<MethodId> {
        match &self.work {
            UnaryWork::Call { method, .. } => Some(*method),
            UnaryWork::Page { .. } => None,
        }
    }
}

impl Future for UnaryCall {
    type Output = (u32, UnaryResult);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(u32, UnaryResult)> {
        let stream = self.stream;
        match &mut self.work {
            UnaryWork::Call { method, response } => {
                let method = *method;
                let result = response.as_mut().poll(cx);
                result.map(|result| (stream, UnaryResult::Call { method, result }))
            }
            UnaryWork::Page { verb, response } => response.as_mut().poll(cx).map(|response| {
                let verb = std::mem::take(verb);
                (stream, UnaryResult::Page { verb, response })
            }),
        }
    }
}

/// The unary calls in progress.
///
/// A call is polled for the first time when it starts, and for the second time after the
/// calls of all other requests of the same socket read have started. So handlers that yield
/// once are batched, without a wake-up of the task. Only a call that is then still pending
/// gets a waker, and an entry by which it can be cancelled.
#[derive(Default)]
pub(crate) struct UnaryCalls {
    /// Calls that have been polled once.
    started: VecDeque<Pin<Box<UnaryCall>>>,
    /// The streams of those calls in `started` that the client has reset.
    cancelled: HashSet<u32, foldhash::fast::RandomState>,
    /// Calls that have been polled twice or more.
    waiting: FuturesUnordered<Abortable<Pin<Box<UnaryCall>>>>,
    /// The calls in `waiting`, by stream ID, except those that were cancelled.
    handles: StreamMap<WaitingCall>,
}

/// How to cancel a call.
struct WaitingCall {
    abort: AbortHandle,
    method: Option<MethodId>,
}

impl UnaryCalls {
    /// Number of calls in progress.
    pub(crate) fn len(&self) -> usize {
        self.started.len() + self.waiting.len()
    }

    /// Whether a call waits for more than other calls of the same socket read.
    pub(crate) fn is_waiting(&self, stream: u32) -> bool {
        self.handles.contains_key(&stream)
    }

    /// Polls a call for the first time. Most reads of the store complete in this poll.
    pub(crate) fn start(&mut self, call: UnaryCall) -> Option<UnaryResult> {
        let mut call = Box::pin(call);
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((_, result)) => Some(result),
            Poll::Pending => {
                self.started.push_back(call);
                None
            }
        }
    }

    /// Returns the result of a call that has completed. The caller calls it until it returns
    /// `None`.
    pub(crate) fn poll_next(
        &mut self,
        deadlines: &mut Deadlines,
        cx: &mut Context<'_>,
    ) -> Option<(u32, UnaryResult)> {
        while let Some(mut call) = self.started.pop_front() {
            let stream = call.stream;
            if !self.cancelled.is_empty() && self.cancelled.remove(&stream) {
                match call.method() {
                    Some(method) => return Some((stream, UnaryResult::Cancelled { method })),
                    None => continue,
                }
            }
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(result) => return Some(result),
                Poll::Pending => self.wait_for(call, deadlines),
            }
        }
        if !self.cancelled.is_empty() {
            self.cancelled.clear();
        }
        loop {
            match Pin::new(&mut self.waiting).poll_next(cx) {
                Poll::Ready(Some(Ok((stream, result)))) => {
                    self.handles.remove(&stream);
                    return Some((stream, result));
                }
                // The call was cancelled.
                Poll::Ready(Some(Err(_))) => {}
                Poll::Ready(None) | Poll::Pending => return None,
            }
        }
    }

    fn wait_for(&mut self, call: Pin<Box<UnaryCall>>, deadlines: &mut Deadlines) {
        let (stream, method) = (call.stream, call.method());
        if let Some(deadline) = call.deadline {
            deadlines.add(stream, deadline);
        }
        let (abort, registration) = AbortHandle::new_pair();
        self.handles.insert(stream, WaitingCall { abort, method });
        self.waiting.push(Abortable::new(call, registration));
    }

    /// Cancels a call. Returns its method if it is known that there is such a call.
    pub(crate) fn cancel(&mut self, stream: u32) -> Option<MethodId> {
        match self.handles.remove(&stream) {
            Some(call) => {
                // `poll_next` drops it.
                call.abort.abort();
                call.method
            }
            None => {
                if !self.started.is_empty() {
                    self.cancelled.insert(stream);
                }
                None
            }
        }
    }

    /// Drops all calls. Passes the method of each to `ended`.
    pub(crate) fn clear(&mut self, mut ended: impl FnMut(MethodId)) {
        let started = self.started.drain(..).filter_map(|call| call.method());
        let waiting = self.handles.drain().filter_map(|(_, call)| call.method);
        started.chain(waiting).for_each(&mut ended);
        self.cancelled.clear();
        self.waiting.clear();
    }
}
