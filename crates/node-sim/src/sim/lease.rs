//! The Lease of a node, as `k8s.io/component-helpers/apimachinery/lease` renews it.
//!
//! A renewal is a PUT of the last answer with another `renewTime`. After a conflict the Lease is read
//! first. After [`MAX_TRIES`] renewals that failed, the Lease is read, and created if it is missing,
//! with a back-off. If renewals fail after that too, the next one comes at the usual time.

use std::time::Duration;

use node_lease::{Timestamp, with_duration, with_renew_time};
use rand::RngExt as _;

use crate::client::Outcome;
use crate::time::{Ticks, ticks};

use super::node::{NEVER, State, Step};
use super::requests;
use super::simulation::Simulation;
use super::start::{body, has_status};
use super::ticket::Call;

/// Renewals that fail in a row before the Lease is read again.
const MAX_TRIES: u8 = 5;
/// Bytes of a Lease that is kept. One of a kubelet has about 500.
const MAX_LEASE: usize = 64 << 10;
/// The random part of the interval, at most.
const JITTER: f64 = 0.04;
/// Renewals are due at multiples of this time, or of a quarter of the random part if that is shorter. Those of many nodes
/// are then sent and answered together: alone, each of them costs two task switches, more than its own work.
const TOGETHER: Duration = Duration::from_millis(50);
/// A refusal without a time to wait.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

impl Simulation {
    /// The timer of the start and of the Lease.
    pub(super) fn on_lease_timer(&mut self, id: u32, due: Ticks) {
        if self.node(id).lease_due != due {
            return;
        }
        self.node_mut(id).lease_due = NEVER;
        match self.node(id).state {
            State::Starting(Step::Lease) | State::Running => self.take_lease_step(id),
            State::Starting(_) => self.renew_while_starting(id),
            State::Free | State::Waiting | State::Stopped => {}
        }
    }

    /// A step of the start is due again; or a renewal, if the start takes longer than the interval.
    fn renew_while_starting(&mut self, id: u32) {
        match self.node(id).flags.lease_busy {
            // The outcome of the step goes on.
            true => {}
            false => self.take_step(id),
        }
    }

    /// Reads or renews the Lease, unless a request for it is in flight.
    pub(super) fn take_lease_step(&mut self, id: u32) {
        if self.node(id).flags.lease_busy {
            return;
        }
        let node = self.node(id);
        let renew_time = Timestamp { seconds: self.now.seconds, nanos: self.now.micros * 1000 };
        let renewal = match node.flags.must_read_lease {
            true => None,
            false => with_renew_time(&node.lease, renew_time),
        };
        let (call, request) = match renewal {
            Some(lease) => (Call::RenewLease, requests::put_lease(&node.name, lease)),
            None => (Call::GetLease, requests::get_lease(&node.name)),
        };
        self.node_mut(id).flags.lease_busy = true;
        self.send(id, call, request);
    }

    /// Notes that a request has its outcome. Returns whether the node still renews its Lease.
    fn ends_lease_step(&mut self, id: u32) -> bool {
        self.node_mut(id).flags.lease_busy = false;
        match self.node(id).state {
            State::Starting(Step::Lease) | State::Running => true,
            State::Starting(_) => {
                // The node was stopped and started again meanwhile.
                self.take_step(id);
                false
            }
            State::Free | State::Waiting | State::Stopped => false,
        }
    }

    pub(super) fn on_lease_read(&mut self, id: u32, outcome: Outcome<'_>) {
        if !self.ends_lease_step(id) {
            return;
        }
        if let Some(lease) = body(&outcome, &[200]) {
            if !self.is_usable(lease) {
                return self.read_lease_later(id, &outcome);
            }
            self.keep_lease(id, lease);
            let node = self.node_mut(id);
            node.failures = 0;
            node.flags.must_read_lease = false;
            return match node.tries >= MAX_TRIES {
                true => self.renewals_failed(id),
                false => self.take_lease_step(id),
            };
        }
        if has_status(&outcome, 404) {
            let (name, uid) = (self.node(id).name.clone(), self.node(id).uid);
            let duration = self.settings.lease_duration_seconds;
            self.node_mut(id).flags.lease_busy = true;
            let request = requests::create_lease(&name, uid, duration, self.now);
            return self.send(id, Call::CreateLease, request);
        }
        self.read_lease_later(id, &outcome);
    }

    pub(super) fn on_lease_created(&mut self, id: u32, outcome: Outcome<'_>) {
        if !self.ends_lease_step(id) {
            return;
        }
        match body(&outcome, &[201]) {
            Some(lease) => self.lease_is_valid(id, lease),
            None => self.read_lease_later(id, &outcome),
        }
    }

    /// Keeps a Lease that was read, for the next renewal.
    pub(super) fn keep_lease(&mut self, id: u32, lease: &[u8]) {
        let duration = self.settings.lease_duration_seconds;
        // The process that created the Lease may have had another setting.
        let kept = with_duration(lease, duration).unwrap_or_else(|| lease.into());
        self.node_mut(id).lease = kept.into();
    }

    /// Whether a Lease can be renewed. One that cannot is reported once: all nodes may have one.
    pub(super) fn is_usable(&mut self, lease: &[u8]) -> bool {
        let is_usable = lease.len() <= MAX_LEASE
            && with_renew_time(lease, Timestamp { seconds: 0, nanos: 0 }).is_some();
        if !is_usable && !std::mem::replace(&mut self.has_warned_of_lease, true) {
            let bytes = lease.len();
            tracing::warn!(bytes, "the server sent a Lease that is too large or not in protobuf");
        }
        is_usable
    }

    fn read_lease_later(&mut self, id: u32, outcome: &Outcome<'_>) {
        self.node_mut(id).flags.must_read_lease = true;
        let delay = self.back_off(id, outcome);
        self.schedule_lease(id, delay);
    }

    pub(super) fn on_lease_renewed(&mut self, id: u32, outcome: Outcome<'_>) {
        self.metrics.heartbeat(&outcome);
        if !self.ends_lease_step(id) {
            return;
        }
        if let Some(lease) = body(&outcome, &[200]) {
            return self.lease_is_valid(id, lease);
        }
        if let Outcome::Answered(answer) = &outcome
            && answer.status == 429
        {
            // client-go waits as long as the server asks for, and that is no failure.
            let asked = answer.retry_after.map(|seconds| Duration::from_secs(seconds.into()));
            return self.schedule_lease(id, ticks(asked.unwrap_or(DEFAULT_WAIT)));
        }
        let node = self.node_mut(id);
        node.tries += 1;
        if has_status(&outcome, 409) {
            node.flags.must_read_lease = true;
        } else if node.tries >= MAX_TRIES {
            return self.renewals_failed(id);
        }
        self.take_lease_step(id);
    }

    /// All tries are used up.
    fn renewals_failed(&mut self, id: u32) {
        let node = self.node_mut(id);
        node.tries = 0;
        if std::mem::replace(&mut node.flags.is_second_round, true) {
            node.flags.is_second_round = false;
            return self.schedule_renewal(id);
        }
        node.flags.must_read_lease = true;
        self.take_lease_step(id);
    }

    fn lease_is_valid(&mut self, id: u32, lease: &[u8]) {
        // Without its bytes, the next renewal reads the Lease first, and finds out what is wrong.
        let lease = if lease.len() <= MAX_LEASE { lease } else { &[] };
        let node = self.node_mut(id);
        // A Lease that was renewed often has the length of its predecessor.
        match node.lease.len() == lease.len() {
            true => node.lease.copy_from_slice(lease),
            false => node.lease = lease.into(),
        }
        (node.tries, node.failures) = (0, 0);
        node.flags.must_read_lease = false;
        node.flags.is_second_round = false;
        self.schedule_renewal(id);
        self.start_has_lease(id);
    }

    /// Renews the Lease after the interval and its random part.
    fn schedule_renewal(&mut self, id: u32) {
        let interval = self.settings.lease_interval;
        let jitter: f64 = self.random.random_range(0.0..JITTER);
        let (now, shortest) = (self.now.tick, ticks(interval));
        let due = together(now + ticks(interval.mul_f64(1.0 + jitter)), now + shortest, interval);
        self.schedule_lease(id, due - now + self.node(id).delay);
    }
}

/// The time for a renewal that is due at a time: together with others, but not before the earliest time.
fn together(due: Ticks, earliest: Ticks, interval: Duration) -> Ticks {
    let step = ticks(interval.mul_f64(JITTER / 4.0).min(TOGETHER)).max(1);
    let due = due - due % step;
    if due < earliest { due + step } else { due }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_are_due_together_within_their_random_part() {
        for (seconds, step) in [(10, 5), (4, 4), (1, 1)] {
            let interval = Duration::from_secs(seconds);
            let shortest = ticks(interval);
            let longest = ticks(interval.mul_f64(1.0 + JITTER));
            for now in 0..20 {
                for due in now + shortest..=now + longest {
                    let at = together(due, now + shortest, interval);
                    assert_eq!(at % step, 0, "every {seconds} s, {now}, {due}");
                    assert!((now + shortest..=now + longest).contains(&at), "{now}, {due}: {at}");
                }
            }
        }
    }
}
