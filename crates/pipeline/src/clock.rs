//! Store time: how long the store has been running in total.
//!
//! Lease TTLs are measured in store time, so a TTL does not elapse while the store is
//! down, as in etcd.

use std::time::{Duration, Instant};

/// Clock of a process that started at store time `base_ms`.
pub(crate) struct StoreClock {
    base_ms: i64,
    started: Instant,
}

impl StoreClock {
    pub(crate) fn new(base_ms: i64, started: Instant) -> Self {
        StoreClock { base_ms, started }
    }

    /// Returns the store time at `now` in milliseconds.
    pub(crate) fn at(&self, now: Instant) -> i64 {
        self.base_ms + now.saturating_duration_since(self.started).as_millis() as i64
    }

    /// Returns what was left of a TTL at the start of the process. The TTL of
    /// `ttl_seconds` started at store time `since_ms`.
    pub(crate) fn remaining(&self, ttl_seconds: i64, since_ms: i64) -> Duration {
        let end_ms = ttl_seconds.saturating_mul(1000).saturating_add(since_ms);
        Duration::from_millis(end_ms.saturating_sub(self.base_ms).max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continues_at_the_base() {
        let start = Instant::now();
        let clock = StoreClock::new(5000, start);
        assert_eq!(clock.at(start + Duration::from_millis(1500)), 6500);
        assert_eq!(clock.remaining(10, 2000), Duration::from_secs(7));
        assert_eq!(clock.remaining(1, 2000), Duration::ZERO);
        assert_eq!(clock.remaining(i64::MAX, 0), Duration::from_millis(i64::MAX as u64 - 5000));
    }
}
