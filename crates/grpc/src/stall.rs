//! Notices clients that keep memory of the server for long.
//!
//! What the server holds for a client stays in memory until the client reads it. A client
//! that stops reading, but keeps its connection alive, would occupy the memory for ever. So would
//! incomplete requests.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A client that reads fewer bytes than this makes no progress.
const MIN_PROGRESS_BYTES: u64 = 64 << 10;
/// Number of ticks in the stall timeout.
const LONG_TICKS: u32 = 24;
/// Number of ticks in the timeout while memory is scarce: a twelfth of the stall timeout.
const SHORT_TICKS: u32 = 2;

/// How long a client may make no progress.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Memory is scarce, and the connection uses more than its part.
    Short,
    Long,
    Unlimited,
}

impl Patience {
    /// Whether a client that has made no progress for a number of ticks is disconnected.
    pub(crate) fn is_exhausted(self, ticks: u32) -> bool {
        match self {
            Patience::Short => ticks >= SHORT_TICKS,
            Patience::Long => ticks >= LONG_TICKS,
            Patience::Unlimited => false,
        }
    }
}

/// Watches the progress of the client of one connection.
pub(crate) struct StallTimer {
    tick: Duration,
    /// `None` while the connection holds little.
    timer: Option<Pin<Box<Sleep>>>,
    /// Number of written bytes when the client last made progress.
    written_before: u64,
    /// Number of ticks since then.
    ticks: u32,
}

impl StallTimer {
    pub(crate) fn new(timeout: Duration) -> Self {
        StallTimer { tick: timeout / LONG_TICKS, timer: None, written_before: 0, ticks: 0 }
    }

    /// How long a request may be incomplete while memory is scarce.
    pub(crate) fn short_timeout(&self) -> Duration {
        self.tick * SHORT_TICKS
    }

    /// Returns the number of ticks for which the client has made no progress, once in each tick.
    /// The client makes progress if it reads, or has little to read. `written` is the number of
    /// bytes written so far. There are no ticks while the connection holds little, neither unread
    /// responses nor requests. The task is woken at the next tick.
    pub(crate) fn poll_tick(
        &mut self,
        holds_unread: bool,
        holds_requests: bool,
        written: u64,
        cx: &mut Context<'_>,
    ) -> Option<u32> {
        if !holds_unread && !holds_requests {
            self.timer = None;
            return None;
        }
        let timer = self.timer.get_or_insert_with(|| {
            (self.written_before, self.ticks) = (written, 0);
            Box::pin(tokio::time::sleep(self.tick))
        });
        let mut ticked = None;
        while timer.as_mut().poll(cx).is_ready() {
            match holds_unread && written - self.written_before < MIN_PROGRESS_BYTES {
                true => self.ticks += 1,
                false => (self.written_before, self.ticks) = (written, 0),
            }
            ticked = Some(self.ticks);
            timer.as_mut().reset(Instant::now() + self.tick);
        }
        ticked
    }
}
