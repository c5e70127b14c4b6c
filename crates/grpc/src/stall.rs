//! Notices clients that do not read.
//!
//! What the server holds for a client stays in memory until the client reads it. A client
//! that stops reading, but keeps its connection alive, would occupy the memory for ever.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

/// A client that reads fewer bytes than this within the timeout makes no progress.
const MIN_PROGRESS_BYTES: u64 = 64 << 10;

/// Watches the progress of the client of one connection.
pub(crate) struct StallTimer {
    timeout: Duration,
    /// `None` while nothing is unread.
    timer: Option<Pin<Box<Sleep>>>,
    /// Number of written bytes when `timer` was started.
    written_before: u64,
}

impl StallTimer {
    pub(crate) fn new(timeout: Duration) -> Self {
        StallTimer { timeout, timer: None, written_before: 0 }
    }

    /// Returns whether the client has made no progress for the timeout, and starts the next
    /// one. `written` is the number of bytes written so far. `holds_unread` is false if
    /// nothing waits for the client. The task is woken when the timeout is over.
    pub(crate) fn poll_stalled(
        &mut self,
        holds_unread: bool,
        written: u64,
        cx: &mut Context<'_>,
    ) -> bool {
        if !holds_unread {
            self.timer = None;
            return false;
        }
        let mut stalled = false;
        loop {
            let timer = self.timer.get_or_insert_with(|| {
                self.written_before = written;
                Box::pin(tokio::time::sleep(self.timeout))
            });
            if timer.as_mut().poll(cx).is_pending() {
                return stalled;
            }
            stalled = written - self.written_before < MIN_PROGRESS_BYTES;
            self.timer = None;
        }
    }
}
