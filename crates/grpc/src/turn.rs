//! How long a connection may work before other connections have a turn.

use std::time::{Duration, Instant};

/// How long the handlers of a connection may work in one turn.
const MAX_WORK: Duration = Duration::from_millis(2);
/// Number of calls between two looks at the clock, because most calls take about 1 µs.
const CALLS_PER_CHECK: u32 = 16;

/// The turn of a connection on its thread.
pub(crate) struct Turn {
    started: Instant,
    calls: u32,
    over: bool,
}

impl Turn {
    pub(crate) fn start() -> Self {
        Turn { started: Instant::now(), calls: 0, over: false }
    }

    /// Counts a call. Returns whether the turn was over before it.
    pub(crate) fn is_over(&mut self) -> bool {
        self.calls += 1;
        if self.calls == CALLS_PER_CHECK {
            self.calls = 0;
            self.over |= self.started.elapsed() >= MAX_WORK;
        }
        self.over
    }

    /// Whether a call was left because the turn is over.
    pub(crate) fn left_work(&self) -> bool {
        self.over
    }
}
