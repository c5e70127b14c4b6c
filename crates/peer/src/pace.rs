//! The pace of snapshots: they must not take the network from heartbeats and entries.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Spreads bytes over time.
pub(crate) struct Pace {
    bytes_per_second: Option<NonZeroU64>,
    /// When the bytes so far have had their time.
    due: Instant,
}

impl Pace {
    /// `bytes_per_second` is `None` if there is no limit.
    pub(crate) fn new(bytes_per_second: Option<NonZeroU64>, now: Instant) -> Pace {
        Pace { bytes_per_second, due: now }
    }

    /// Returns how long to wait before `bytes` are sent. Time in which nothing was sent is not
    /// made up for.
    pub(crate) fn delay(&mut self, bytes: usize, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let delay = self.due.saturating_duration_since(now);
        let seconds = bytes as f64 / rate.get() as f64;
        self.due = self.due.max(now) + Duration::from_secs_f64(seconds);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spread_over_time() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut pace = Pace::new(NonZeroU64::new(1000), start);
        assert_eq!(pace.delay(500, start), ms(0));
        assert_eq!(pace.delay(500, start), ms(500));
        assert_eq!(pace.delay(500, start + ms(700)), ms(300));
        // A pause does not lead to a burst.
        let later = start + ms(60_000);
        assert_eq!(pace.delay(1000, later), ms(0));
        assert_eq!(pace.delay(1, later), ms(1000));
        assert_eq!(Pace::new(None, start).delay(1 << 40, start), ms(0));
    }
}
