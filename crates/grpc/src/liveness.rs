//! Whether the other side is still there, and whether it asks too often whether
//! we are. The rules are those of gRPC for Go's server, which etcd uses.

use std::time::{Duration, Instant};

/// When to ask, and how often to be asked.
#[derive(Clone, Debug)]
pub struct Keepalive {
    /// A client that was silent for so long is asked for a sign of life; never
    /// if zero.
    pub interval: Duration,
    /// It is given so long to answer.
    pub timeout: Duration,
    /// A client may ask as often as this while it has calls under way. One that
    /// asks more often is disconnected.
    pub min_interval: Duration,
}

/// Clients without calls may ask as often as this.
const IDLE_MIN_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);
/// Pings that came too early and were forgiven.
const STRIKES: u32 = 2;

pub(crate) struct Liveness {
    keepalive: Keepalive,
    heard: Instant,
    asked: Option<Instant>,
    pinged: Option<Instant>,
    strikes: u32,
}

/// What to do about a ping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ping {
    Answer,
    TooMany,
}

/// What is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Ping,
    GiveUp,
}

impl Liveness {
    pub(crate) fn new(keepalive: Keepalive, now: Instant) -> Self {
        Liveness { keepalive, heard: now, asked: None, pinged: None, strikes: 0 }
    }

    /// The client said something.
    pub(crate) fn heard(&mut self, now: Instant) {
        (self.heard, self.asked) = (now, None);
    }

    /// The client sent a ping. `wrote` says whether we sent it anything but
    /// answers to pings since the last one: whoever is told something may well
    /// ask more.
    pub(crate) fn pinged(&mut self, wrote: bool, busy: bool, now: Instant) -> Ping {
        let before = self.pinged.replace(now);
        if wrote {
            self.strikes = 0;
            return Ping::Answer;
        }
        let least = if busy { self.keepalive.min_interval } else { IDLE_MIN_INTERVAL };
        if before.is_some_and(|before| now < before + least) {
            self.strikes += 1;
        }
        if self.strikes > STRIKES { Ping::TooMany } else { Ping::Answer }
    }

    pub(crate) fn alarm(&self) -> Option<Instant> {
        if self.keepalive.interval.is_zero() {
            return None;
        }
        Some(match self.asked {
            Some(asked) => asked + self.keepalive.timeout,
            None => self.heard + self.keepalive.interval,
        })
    }

    pub(crate) fn on_time(&mut self, now: Instant) -> Due {
        if self.alarm().is_none_or(|alarm| now < alarm) {
            return Due::Nothing;
        }
        if self.asked.is_some() {
            return Due::GiveUp;
        }
        self.asked = Some(now);
        Due::Ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn liveness(now: Instant) -> Liveness {
        let keepalive =
            Keepalive { interval: 100 * SECOND, timeout: 20 * SECOND, min_interval: 5 * SECOND };
        Liveness::new(keepalive, now)
    }

    #[test]
    fn a_silent_client_is_asked_and_then_given_up() {
        let start = Instant::now();
        let mut liveness = liveness(start);
        assert_eq!(liveness.on_time(start + 99 * SECOND), Due::Nothing);
        assert_eq!(liveness.on_time(start + 100 * SECOND), Due::Ping);
        liveness.heard(start + 110 * SECOND);
        assert_eq!(liveness.on_time(start + 209 * SECOND), Due::Nothing);
        assert_eq!(liveness.on_time(start + 210 * SECOND), Due::Ping);
        assert_eq!(liveness.on_time(start + 229 * SECOND), Due::Nothing);
        assert_eq!(liveness.on_time(start + 230 * SECOND), Due::GiveUp);
    }

    #[test]
    fn three_early_pings_are_too_many() {
        let start = Instant::now();
        let mut calm = liveness(start);
        for at in 0..10 {
            assert_eq!(calm.pinged(false, true, start + at * 5 * SECOND), Ping::Answer);
        }
        let mut eager = liveness(start);
        let answers: Vec<_> =
            (0..4).map(|at| eager.pinged(false, true, start + at * SECOND)).collect();
        assert_eq!(answers, [Ping::Answer, Ping::Answer, Ping::Answer, Ping::TooMany]);
        let mut told = liveness(start);
        assert!((0..10).all(|at| told.pinged(true, true, start + at * SECOND) == Ping::Answer));
    }
}
