//! Keepalive: pings silent clients, and limits how often clients may ping. The rules are
//! the same as in grpc-go, which etcd uses.

use std::time::{Duration, Instant};

/// Keepalive parameters.
#[derive(Clone, Debug)]
pub struct Keepalive {
    /// A client that has sent nothing for this long is pinged. Zero disables pings.
    pub interval: Duration,
    /// A client that does not respond to a ping within this time is disconnected.
    pub timeout: Duration,
    /// Minimum time between two pings of a client that has open streams. A client that
    /// pings more often is disconnected with ENHANCE_YOUR_CALM.
    pub min_interval: Duration,
}

/// Minimum time between two pings of a client without open streams.
const IDLE_MIN_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);
/// Number of early pings that are tolerated.
const STRIKES: u32 = 2;

pub(crate) struct Liveness {
    keepalive: Keepalive,
    last_received: Instant,
    /// When the server sent a ping that has not been answered.
    ping_sent: Option<Instant>,
    /// When the client last sent a ping.
    last_client_ping: Option<Instant>,
    strikes: u32,
}

/// Response to a client's ping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PingVerdict {
    Acknowledge,
    TooMany,
}

/// Action that is due at a point in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DueAction {
    None,
    SendPing,
    Disconnect,
}

impl Liveness {
    pub(crate) fn new(keepalive: Keepalive, now: Instant) -> Self {
        Liveness {
            keepalive,
            last_received: now,
            ping_sent: None,
            last_client_ping: None,
            strikes: 0,
        }
    }

    /// Notes that the client sent bytes.
    pub(crate) fn received(&mut self, now: Instant) {
        (self.last_received, self.ping_sent) = (now, None);
    }

    /// Decides how to respond to a ping of the client. `wrote` is whether the server has
    /// sent anything but ping acknowledgements since the previous ping, in which case an
    /// early ping is legitimate. `busy` is whether streams are open.
    pub(crate) fn client_pinged(&mut self, wrote: bool, busy: bool, now: Instant) -> PingVerdict {
        let before = self.last_client_ping.replace(now);
        if wrote {
            self.strikes = 0;
            return PingVerdict::Acknowledge;
        }
        let least = if busy { self.keepalive.min_interval } else { IDLE_MIN_INTERVAL };
        if before.is_some_and(|before| now < before + least) {
            self.strikes += 1;
        }
        if self.strikes > STRIKES { PingVerdict::TooMany } else { PingVerdict::Acknowledge }
    }

    /// When [`Liveness::on_time`] is to be called next.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        if self.keepalive.interval.is_zero() {
            return None;
        }
        Some(match self.ping_sent {
            Some(sent) => sent + self.keepalive.timeout,
            None => self.last_received + self.keepalive.interval,
        })
    }

    /// Returns the action that is due.
    pub(crate) fn on_time(&mut self, now: Instant) -> DueAction {
        if self.alarm().is_none_or(|alarm| now < alarm) {
            return DueAction::None;
        }
        if self.ping_sent.is_some() {
            return DueAction::Disconnect;
        }
        self.ping_sent = Some(now);
        DueAction::SendPing
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
    fn silent_client_is_pinged_then_disconnected() {
        let start = Instant::now();
        let mut liveness = liveness(start);
        assert_eq!(liveness.on_time(start + 99 * SECOND), DueAction::None);
        assert_eq!(liveness.on_time(start + 100 * SECOND), DueAction::SendPing);
        liveness.received(start + 110 * SECOND);
        assert_eq!(liveness.on_time(start + 209 * SECOND), DueAction::None);
        assert_eq!(liveness.on_time(start + 210 * SECOND), DueAction::SendPing);
        assert_eq!(liveness.on_time(start + 229 * SECOND), DueAction::None);
        assert_eq!(liveness.on_time(start + 230 * SECOND), DueAction::Disconnect);
    }

    #[test]
    fn third_early_ping_is_rejected() {
        let start = Instant::now();
        let mut calm = liveness(start);
        for at in 0..10 {
            assert_eq!(
                calm.client_pinged(false, true, start + at * 5 * SECOND),
                PingVerdict::Acknowledge
            );
        }
        let mut eager = liveness(start);
        let answers: Vec<_> =
            (0..4).map(|at| eager.client_pinged(false, true, start + at * SECOND)).collect();
        assert_eq!(
            answers,
            [
                PingVerdict::Acknowledge,
                PingVerdict::Acknowledge,
                PingVerdict::Acknowledge,
                PingVerdict::TooMany
            ]
        );
        let mut active = liveness(start);
        assert!(
            (0..10).all(|at| active.client_pinged(true, true, start + at * SECOND)
                == PingVerdict::Acknowledge)
        );
    }
}
