//! The time until the next attempt to connect.

use std::time::Duration;

/// Doubles from attempt to attempt, up to a maximum.
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    attempts: u32,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { first, max, attempts: 0 }
    }

    /// Returns the time until the next attempt. `random` is at least 0 and less than 1: members
    /// that were cut off together must not return together.
    pub(crate) fn next(&mut self, random: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.attempts.min(16));
        self.attempts += 1;
        doubled.min(self.max).mul_f64(0.5 + random / 2.0)
    }

    /// Notes that a connection was of use.
    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_and_begin_again() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(500));
        let delays: Vec<_> = (0..40).map(|_| backoff.next(0.0)).collect();
        assert_eq!(delays[..4], [ms(50), ms(100), ms(200), ms(250)]);
        assert_eq!(delays[39], ms(250));
        assert!(backoff.next(0.999) < ms(500));
        backoff.reset();
        assert_eq!(backoff.next(0.0), ms(50));
    }
}
