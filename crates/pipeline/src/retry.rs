//! When a snapshot that failed is tried again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The first and the longest interval between two attempts. It doubles after each failure.
/// An attempt may fill the disk until it fails, so it must not follow too soon.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
const MAX_INTERVAL: Duration = Duration::from_secs(600);

/// The failures since the last success, and when to try again.
#[derive(Default)]
pub(crate) struct Retry {
    failures: AtomicU32,
    at: Mutex<Option<Instant>>,
}

impl Retry {
    /// Notes a failure, after which the next attempt is due later.
    pub(crate) fn failed(&self, now: Instant) {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        let factor = 1_u32.checked_shl(before).unwrap_or(u32::MAX);
        *self.at.lock() = Some(now + MIN_INTERVAL.saturating_mul(factor).min(MAX_INTERVAL));
    }

    /// Notes a success: no further attempt is due.
    pub(crate) fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        *self.at.lock() = None;
    }

    /// Whether the last attempt has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// Whether an attempt is due after a failure. Costs little if there was none.
    pub(crate) fn is_due(&self, now: impl FnOnce() -> Instant) -> bool {
        self.has_failed() && self.at.lock().is_some_and(|at| at <= now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_follow_failures_at_growing_intervals() {
        let (retry, start) = (Retry::default(), Instant::now());
        let due_after = |from: Instant| {
            let seconds = (0..).find(|s| retry.is_due(|| from + Duration::from_secs(*s)));
            seconds.unwrap()
        };
        assert!(!retry.is_due(|| start + Duration::from_secs(1_000_000)), "nothing has failed");
        let mut now = start;
        let mut intervals = Vec::new();
        for _ in 0..40 {
            retry.failed(now);
            intervals.push(due_after(now));
            now += Duration::from_secs(1000);
        }
        assert_eq!(intervals[..8], [10, 20, 40, 80, 160, 320, 600, 600]);
        assert!(intervals[8..].iter().all(|interval| *interval == 600));
        retry.succeeded();
        assert!(!retry.is_due(|| now + Duration::from_secs(1_000_000)));
        retry.failed(now);
        assert_eq!(due_after(now), 10);
    }
}
