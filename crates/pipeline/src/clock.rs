//! Store time: how long the store has been running in total.
//!
//! Lease TTLs are measured in store time. So a TTL does not elapse while the store is
//! down, as in etcd.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// The clock of a process that started at store time `base_ms`.
pub(crate) struct StoreClock {
    /// Changes only with [`StoreClock::continue_from`].
    base_ms: AtomicI64,
    started: Instant,
}

impl StoreClock {
    pub(crate) fn new(base_ms: i64, started: Instant) -> Self {
        StoreClock { base_ms: base_ms.into(), started }
    }

    /// Returns the store time at `now` in milliseconds.
    pub(crate) fn time_ms(&self, now: Instant) -> i64 {
        self.base_ms.load(Ordering::Relaxed) + self.elapsed_ms(now)
    }

    /// Sets the store time at `now` to `time_ms`, unless it is later already. A member of a cluster
    /// that begins to lead continues the store time of the last leader.
    pub(crate) fn continue_from(&self, time_ms: i64, now: Instant) {
        self.base_ms.fetch_max(time_ms - self.elapsed_ms(now), Ordering::Relaxed);
    }

    fn elapsed_ms(&self, now: Instant) -> i64 {
        now.saturating_duration_since(self.started).as_millis() as i64
    }

    /// Returns the remaining part, at the start of the process, of a TTL of `ttl_seconds`
    /// that started at store time `ttl_start_ms`.
    pub(crate) fn remaining(&self, ttl_seconds: i64, ttl_start_ms: i64) -> Duration {
        let end_ms = ttl_seconds.saturating_mul(1000).saturating_add(ttl_start_ms);
        let base_ms = self.base_ms.load(Ordering::Relaxed);
        Duration::from_millis(end_ms.saturating_sub(base_ms).max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_time_continues_at_the_base() {
        let start = Instant::now();
        let clock = StoreClock::new(5000, start);
        assert_eq!(clock.time_ms(start + Duration::from_millis(1500)), 6500);
        clock.continue_from(6000, start + Duration::from_millis(1500));
        assert_eq!(clock.time_ms(start + Duration::from_millis(1500)), 6500);
        assert_eq!(clock.remaining(10, 2000), Duration::from_secs(7));
        assert_eq!(clock.remaining(1, 2000), Duration::ZERO);
        assert_eq!(clock.remaining(i64::MAX, 0), Duration::from_millis(i64::MAX as u64 - 5000));
        clock.continue_from(9000, start + Duration::from_millis(1500));
        assert_eq!(clock.time_ms(start + Duration::from_millis(1600)), 9100);
    }
}
