//! How long a connection may work before other connections have a turn.

use std::time::{Duration, Instant};

/// How long a connection may work in one turn.
const MAX_WORK: Duration = Duration::from_millis(2);
/// The turn looks at the clock after as many calls, because most take about 1 µs.
const CALLS_PER_CHECK: usize = 16;
/// A request of this size counts as another call: decoding and validating it takes time.
const BYTES_PER_CALL: usize = 4096;

/// The turn of a connection on its thread.
pub(crate) struct Turn {
    started: Instant,
    /// The work since the last look at the clock, in calls.
    calls: usize,
    over: bool,
}

impl Turn {
    pub(crate) fn start(now: Instant) -> Self {
        Turn { started: now, calls: 0, over: false }
    }

    /// Counts a call with a request of `bytes` bytes.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.calls += 1 + bytes / BYTES_PER_CALL;
    }

    /// Whether the turn is over. Looks at the clock if the counted calls may have taken long.
    pub(crate) fn is_over(&mut self) -> bool {
        if self.calls >= CALLS_PER_CHECK {
            self.calls = 0;
            self.check(Instant::now());
        }
        self.over
    }

    /// Ends the turn if it has lasted long enough.
    pub(crate) fn check(&mut self, now: Instant) {
        self.over |= now.saturating_duration_since(self.started) >= MAX_WORK;
    }

    /// Whether the turn was over when it was last checked.
    pub(crate) fn was_over(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_request_makes_the_turn_look_at_the_clock() {
        let past = Instant::now() - 2 * MAX_WORK;
        let over_after = |bytes: usize| {
            let mut turn = Turn::start(past);
            (0..)
                .find(|_| {
                    turn.is_over() || {
                        turn.count(bytes);
                        false
                    }
                })
                .unwrap()
        };
        assert_eq!([0, 1000, 16 << 10, 600_000].map(over_after), [16, 16, 4, 1]);
        let mut turn = Turn::start(past);
        turn.check(past + MAX_WORK / 2);
        assert!(!turn.was_over());
        turn.check(past + MAX_WORK);
        assert!(turn.is_over() && turn.was_over());
    }
}
