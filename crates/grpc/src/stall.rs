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
/// The timeout while memory is scarce is this fraction of the stall timeout: a twelfth.
const SHORT_FRACTION: u32 = 12;
/// Number of ticks in the timeout while memory is scarce.
const TICKS: u32 = 2;

/// How long a client may make no progress.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Memory is scarce, and the connection uses more than its part.
    Short,
    Long,
    Unlimited,
}

/// Watches the progress of the client of one connection.
pub(crate) struct StallTimer {
    timeout: Duration,
    /// `None` while the connection holds little.
    timer: Option<Pin<Box<Sleep>>>,
    /// When the client last made progress, and the number of bytes that were written until then.
    progress: (Instant, u64),
}

impl StallTimer {
    pub(crate) fn new(timeout: Duration) -> Self {
        StallTimer { timeout, timer: None, progress: (Instant::now(), 0) }
    }

    /// The timeout while memory is scarce.
    pub(crate) fn short_timeout(&self) -> Duration {
        self.timeout / SHORT_FRACTION
    }

    /// Whether a client that has made no progress for some time is disconnected.
    pub(crate) fn is_exhausted(&self, patience: Patience, idle: Duration) -> bool {
        match patience {
            Patience::Short => idle >= self.short_timeout(),
            Patience::Long => idle >= self.timeout,
            Patience::Unlimited => false,
        }
    }

    /// Returns how long the client has made no progress, once in each tick. The client makes
    /// progress if it reads, or has little to read. `written` is the number of bytes written so
    /// far. There are no ticks while the connection holds little, neither unread responses nor
    /// requests. The task is woken at the next tick.
    pub(crate) fn poll_tick(
        &mut self,
        holds_unread: bool,
        holds_requests: bool,
        written: u64,
        cx: &mut Context<'_>,
    ) -> Option<Duration> {
        if !holds_unread && !holds_requests {
            self.timer = None;
            return None;
        }
        let (now, tick) = (Instant::now(), self.short_timeout() / TICKS);
        if self.timer.is_none() || !holds_unread || written - self.progress.1 >= MIN_PROGRESS_BYTES
        {
            self.progress = (now, written);
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(tick)));
        let mut idle = None;
        while timer.as_mut().poll(cx).is_ready() {
            idle = Some(now - self.progress.0);
            timer.as_mut().reset(now + tick);
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Requests keep the timer running. A response that becomes unread right before a tick has the
    /// whole timeout, and so has one after the client has read.
    #[tokio::test(start_paused = true)]
    async fn the_timeout_begins_when_the_client_stops_reading() {
        let mut stall = StallTimer::new(Duration::from_secs(60));
        let mut cx = Context::from_waker(Waker::noop());
        let mut stalls = async |tenths: u32, unread: bool, written: u64| {
            let mut stalled = false;
            for _ in 0..tenths {
                let idle = stall.poll_tick(unread, true, written, &mut cx);
                stalled |= idle.is_some_and(|idle| stall.is_exhausted(Patience::Short, idle));
                tokio::time::advance(Duration::from_millis(100)).await;
            }
            stalled
        };
        assert!(!stalls(324, false, 0).await);
        assert!(!stalls(49, true, 1000).await);
        assert!(!stalls(49, true, 70_000).await);
        assert!(!stalls(2, false, 70_000).await);
        assert!(!stalls(49, true, 80_000).await);
        assert!(stalls(30, true, 80_000).await);
    }
}
