//! Keepalive: pings silent clients, and limits how often clients may ping. The rules are
//! those of grpc-go, which etcd uses.

use std::time::{Duration, Instant};

/// Keepalive parameters.
#[derive(Clone, Debug)]
pub struct Keepalive {
    /// A client that has sent nothing for this long gets a ping. Zero disables pings.
    pub interval: Duration,
    /// A client that sends nothing within this time after a ping is disconnected.
    pub timeout: Duration,
    /// Minimum time between two pings of a client that has open streams. A ping after a
    /// shorter time is a strike, unless the server has responded to a request in between.
    /// At its third strike, a client is disconnected with ENHANCE_YOUR_CALM. With zero, no ping
    /// is a strike; pings in quick succession count as useless frames instead.
    pub min_interval: Duration,
}

/// Pings within this time after another one count as useless frames, if pings are no strikes.
const QUICK: Duration = Duration::from_secs(1);
/// As [`Keepalive::min_interval`], for a client without open streams.
const IDLE_MIN_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);
/// Number of early pings without a response in between that are tolerated.
const MAX_PING_STRIKES: u32 = 2;

/// The pings of one connection, in both directions.
pub(crate) struct Liveness {
    keepalive: Keepalive,
    last_received: Instant,
    /// When the server sent a ping, if it has received nothing since.
    ping_sent: Option<Instant>,
    /// When the client last sent a ping.
    last_client_ping: Option<Instant>,
    /// Number of early pings of the client since the last response.
    strikes: u32,
}

/// Response to a client's ping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PingVerdict {
    Acknowledge,
    /// Acknowledge it, and count it as a useless frame.
    Useless,
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

    /// Decides how to respond to a ping of the client. `responded` is whether the server
    /// has framed HEADERS or DATA since the client's previous ping; an early ping is then
    /// not a strike. `busy` is whether streams are open.
    pub(crate) fn client_pinged(
        &mut self,
        responded: bool,
        busy: bool,
        now: Instant,
    ) -> PingVerdict {
        let before = self.last_client_ping.replace(now);
        if self.keepalive.min_interval.is_zero() {
            let quick = before.is_some_and(|before| now < before + QUICK);
            return if quick { PingVerdict::Useless } else { PingVerdict::Acknowledge };
        }
        if responded {
            self.strikes = 0;
            return PingVerdict::Acknowledge;
        }
        let min_interval = if busy { self.keepalive.min_interval } else { IDLE_MIN_INTERVAL };
        if before.is_some_and(|before| now < before + min_interval) {
            self.strikes += 1;
        }
        if self.strikes > MAX_PING_STRIKES {
            PingVerdict::TooMany
        } else {
            PingVerdict::Acknowledge
        }
    }

    /// The time at which [`Liveness::on_alarm`] must be called.
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
    pub(crate) fn on_alarm(&mut self, now: Instant) -> DueAction {
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
        assert_eq!(liveness.on_alarm(start + 99 * SECOND), DueAction::None);
        assert_eq!(liveness.on_alarm(start + 100 * SECOND), DueAction::SendPing);
        liveness.received(start + 110 * SECOND);
        assert_eq!(liveness.on_alarm(start + 209 * SECOND), DueAction::None);
        assert_eq!(liveness.on_alarm(start + 210 * SECOND), DueAction::SendPing);
        assert_eq!(liveness.on_alarm(start + 229 * SECOND), DueAction::None);
        assert_eq!(liveness.on_alarm(start + 230 * SECOND), DueAction::Disconnect);
    }

    #[test]
    fn without_strikes_quick_pings_are_useless() {
        let start = Instant::now();
        let keepalive =
            Keepalive { interval: SECOND, timeout: SECOND, min_interval: Duration::ZERO };
        let mut liveness = Liveness::new(keepalive, start);
        let mut pinged = |at: Duration| liveness.client_pinged(false, false, start + at);
        assert_eq!(pinged(Duration::ZERO), PingVerdict::Acknowledge);
        assert_eq!(pinged(SECOND), PingVerdict::Acknowledge);
        for millis in 1001..1100 {
            assert_eq!(pinged(Duration::from_millis(millis)), PingVerdict::Useless);
        }
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
