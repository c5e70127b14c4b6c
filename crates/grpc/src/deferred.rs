//! Calls that wait until the connection may start another one.

use std::collections::VecDeque;
use std::sync::Arc;

use http2::StreamMap;

use crate::admission::UNCOUNTED_BYTES;
use crate::budget::{Account, Share};
use crate::connection::CallEvent;
use crate::request::MethodId;

/// Maximum size of the waiting calls of a connection in bytes. Further calls are refused.
const MAX_BYTES: usize = 32 << 20;
/// The size of a call without its message.
const CALL_BYTES: usize = 256;
/// Entries of removed calls are removed from the queue when it has more entries than this
/// number plus twice the number of calls.
const MAX_STALE_ENTRIES: usize = 1024;

/// The queue of the waiting calls of one connection. The removal of a call takes constant
/// time, because a client may reset any number of them.
///
/// The calls count against the budget for requests, which all connections share, without the
/// first [`UNCOUNTED_BYTES`]. So some calls may wait however much other connections use.
pub(crate) struct DeferredCalls {
    calls: StreamMap<CallEvent>,
    /// Stream IDs in the order of arrival, including those of removed calls.
    order: VecDeque<u32>,
    bytes: usize,
    /// The part of `bytes` that the messages do not count themselves.
    uncounted_bytes: usize,
    share: Share,
}

impl DeferredCalls {
    /// Creates an empty queue. `requests` is what the connection uses of the budget for requests.
    pub(crate) fn new(requests: Arc<Account>) -> Self {
        DeferredCalls {
            calls: StreamMap::default(),
            order: VecDeque::new(),
            bytes: 0,
            uncounted_bytes: 0,
            share: Share::new(requests),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn contains(&self, stream: u32) -> bool {
        self.calls.contains_key(&stream)
    }

    /// Size of the calls in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a call, or returns it if there is no room.
    pub(crate) fn push(&mut self, call: CallEvent) -> Result<(), CallEvent> {
        let bytes = self.bytes + size(&call);
        let uncounted_bytes = self.uncounted_bytes + uncounted_size(&call);
        if bytes > MAX_BYTES || self.share.resize(shared(uncounted_bytes)).is_err() {
            return Err(call);
        }
        if self.order.len() > 2 * self.calls.len() + MAX_STALE_ENTRIES {
            let calls = &self.calls;
            self.order.retain(|stream| calls.contains_key(stream));
        }
        (self.bytes, self.uncounted_bytes) = (bytes, uncounted_bytes);
        self.order.push_back(call.stream());
        self.calls.insert(call.stream(), call);
        Ok(())
    }

    /// Removes and returns the call that has waited longest.
    pub(crate) fn pop(&mut self) -> Option<CallEvent> {
        while let Some(stream) = self.order.pop_front() {
            if let Some(call) = self.remove(stream) {
                return Some(call);
            }
        }
        None
    }

    /// Removes and returns the call of a stream.
    pub(crate) fn remove(&mut self, stream: u32) -> Option<CallEvent> {
        let call = self.calls.remove(&stream)?;
        self.bytes -= size(&call);
        self.uncounted_bytes -= uncounted_size(&call);
        // Returning bytes does not fail.
        let _ = self.share.resize(shared(self.uncounted_bytes));
        Some(call)
    }

    /// Removes all calls. Passes the method of each to `ended`.
    pub(crate) fn clear(&mut self, mut ended: impl FnMut(MethodId)) {
        for (_, call) in self.calls.drain() {
            if let CallEvent::Call { method, .. } = call {
                ended(method);
            }
        }
        self.order.clear();
        (self.bytes, self.uncounted_bytes) = (0, 0);
        let _ = self.share.resize(0);
    }
}

fn size(call: &CallEvent) -> usize {
    CALL_BYTES + call.bytes()
}

fn uncounted_size(call: &CallEvent) -> usize {
    CALL_BYTES + call.uncounted_bytes()
}

/// What a queue of `bytes` bytes uses of the budget.
fn shared(bytes: usize) -> usize {
    bytes.saturating_sub(UNCOUNTED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    fn queue(budget: &Arc<Budget>) -> DeferredCalls {
        DeferredCalls::new(Arc::new(Account::new(budget.clone())))
    }

    fn page(stream: u32, path_bytes: usize) -> CallEvent {
        CallEvent::Page { stream, verb: http::Method::GET, path: "/".repeat(path_bytes) }
    }

    #[test]
    fn calls_keep_their_order_and_removed_ones_are_skipped() {
        let mut calls = queue(&Budget::new(MAX_BYTES));
        for n in 0..5000 {
            calls.push(page(n, 1)).unwrap();
            if n % 10 != 0 {
                calls.remove(n).unwrap();
            }
        }
        assert!(calls.order.len() <= 2 * calls.calls.len() + MAX_STALE_ENTRIES + 1);
        assert!(calls.remove(1).is_none(), "removed twice");
        let order: Vec<u32> =
            std::iter::from_fn(|| calls.pop()).map(|call| call.stream()).collect();
        assert_eq!(order, (0..500).map(|n| 10 * n).collect::<Vec<_>>());
        assert!(calls.is_empty() && calls.bytes() == 0);
    }

    #[test]
    fn calls_above_the_limit_are_returned() {
        let mut calls = queue(&Budget::new(3 * MAX_BYTES));
        let accepted = (0..).take_while(|n| calls.push(page(*n, 1 << 20)).is_ok()).count();
        assert_eq!(accepted, 31, "calls of 1 MiB and {CALL_BYTES} bytes");
        calls.pop().unwrap();
        calls.push(page(100, 1 << 20)).unwrap();
    }

    #[test]
    fn connections_share_the_budget() {
        let budget = Budget::new(MAX_BYTES);
        let fill = |calls: &mut DeferredCalls| {
            let next = calls.len() as u32;
            (next..).take_while(|n| calls.push(page(*n, 1 << 10)).is_ok()).count() * (1 << 10)
        };
        let mut greedy: Vec<_> = (0..40).map(|_| queue(&budget)).collect();
        let bytes: usize = greedy.iter_mut().map(fill).sum();
        // The guaranteed parts of 40 connections are as much as the limit, or less.
        assert!(bytes <= 2 * MAX_BYTES + 40 * UNCOUNTED_BYTES, "{bytes} bytes wait");
        let further = fill(&mut queue(&budget));
        assert!(further >= UNCOUNTED_BYTES / 2, "{further} bytes of a further connection wait");
        greedy[..3].iter_mut().for_each(|calls| calls.clear(|_| ()));
        assert!(fill(&mut greedy[39]) > MAX_BYTES / 8, "the bytes are returned");
        drop(greedy);
        assert_eq!(budget.used(), 0);
    }
}
