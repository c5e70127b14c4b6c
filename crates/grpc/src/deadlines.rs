//! The deadlines of calls, from the header field `grpc-timeout`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Instant;

use tokio::time::Sleep;

/// Entries of calls that have ended are removed when there are more entries than this number
/// plus twice the number of calls.
const MAX_STALE_ENTRIES: usize = 1024;

/// The deadlines of the calls of one connection. Most calls end long before, so their
/// entries are removed lazily.
#[derive(Default)]
pub(crate) struct Deadlines {
    /// Deadline and stream ID of each call, and of calls that have ended; the earliest
    /// deadline first.
    entries: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Expires at the earliest deadline or before. `None` without entries.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadlines {
    /// Adds the deadline of a call.
    pub(crate) fn add(&mut self, stream: u32, deadline: Instant) {
        self.entries.push(Reverse((deadline, stream)));
        // `poll_expired` sets the timer.
        if self.entries.peek() == Some(&Reverse((deadline, stream))) {
            self.timer = None;
        }
    }

    /// Removes the entries of calls that have ended, if there are many. `open` is the number
    /// of calls that have not, and `is_open` finds out whether a call is one of them.
    pub(crate) fn forget_ended(&mut self, open: usize, is_open: impl Fn(u32) -> bool) {
        if self.entries.len() > 2 * open + MAX_STALE_ENTRIES {
            self.entries.retain(|Reverse((_, stream))| is_open(*stream));
        }
    }

    /// Removes and returns a stream whose deadline has passed. Otherwise, lets the task be
    /// woken at the earliest deadline.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Option<u32> {
        let Reverse((deadline, stream)) = *self.entries.peek()?;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.as_mut().poll(cx).is_pending() {
            return None;
        }
        self.timer = None;
        if Instant::now() < deadline {
            // The timer was that of a call that has ended.
            return self.poll_expired(cx);
        }
        self.entries.pop();
        Some(stream)
    }
}

fn sleep_until(deadline: Instant) -> Sleep {
    tokio::time::sleep_until(deadline.into())
}
