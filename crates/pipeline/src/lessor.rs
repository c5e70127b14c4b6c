//! When leases run out. Time is a parameter.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

/// Alarms of leases that are gone are tolerated up to this number and that of the
/// leases there are.
const SPARE_ALARMS: usize = 1024;

/// Deadlines of all leases.
#[derive(Default)]
pub(crate) struct Lessor {
    leases: HashMap<i64, Deadline>,
    /// At least one entry a lease, never later than its deadline. A renewal
    /// only moves the deadline; the entry is moved when its time comes.
    alarms: BinaryHeap<Reverse<(Instant, i64)>>,
}

struct Deadline {
    ttl_seconds: i64,
    /// `None` for a lease so long that the clock cannot express its end.
    at: Option<Instant>,
}

impl Lessor {
    /// Starts the clock of a new lease.
    pub(crate) fn grant(&mut self, id: i64, ttl_seconds: i64, now: Instant) {
        let ttl = Duration::from_secs(ttl_seconds.max(0) as u64);
        self.resume(id, ttl_seconds, ttl, now);
    }

    /// Goes on with a lease that has `left` of its TTL.
    pub(crate) fn resume(&mut self, id: i64, ttl_seconds: i64, left: Duration, now: Instant) {
        let at = now.checked_add(left);
        self.leases.insert(id, Deadline { ttl_seconds, at });
        self.alarms.extend(at.map(|at| Reverse((at, id))));
    }

    /// Forgets a lease.
    pub(crate) fn revoke(&mut self, id: i64) {
        self.leases.remove(&id);
        // Its alarm stays behind; before such make up most of the heap they go.
        if self.alarms.len() > 2 * self.leases.len() + SPARE_ALARMS {
            let alarm = |(id, lease): (&i64, &Deadline)| lease.at.map(|at| Reverse((at, *id)));
            self.alarms = self.leases.iter().filter_map(alarm).collect();
        }
    }

    /// Starts the clock again and returns the TTL in seconds. A lease that has
    /// run out cannot be saved, even if its revocation is still on the way.
    pub(crate) fn renew(&mut self, id: i64, now: Instant) -> Option<i64> {
        let lease = self.leases.get_mut(&id)?;
        if lease.at.is_some_and(|at| at <= now) {
            return None;
        }
        lease.at = deadline(lease.ttl_seconds, now);
        Some(lease.ttl_seconds)
    }

    /// Time left, and the TTL in seconds; nothing left when it has run out.
    pub(crate) fn remaining(&self, id: i64, now: Instant) -> Option<(Duration, i64)> {
        let lease = self.leases.get(&id)?;
        let left = lease.at.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
        Some((left, lease.ttl_seconds))
    }

    /// Up to `limit` leases that have run out. Each is reported again after
    /// `retry` unless it is revoked before.
    pub(crate) fn expired(&mut self, now: Instant, retry: Duration, limit: usize) -> Vec<i64> {
        let mut expired = Vec::new();
        while expired.len() < limit {
            let Some(&Reverse((alarm, id))) = self.alarms.peek() else { break };
            if alarm > now {
                break;
            }
            self.alarms.pop();
            let Some(at) = self.leases.get(&id).and_then(|lease| lease.at) else { continue };
            if at <= now {
                expired.push(id);
                self.alarms.push(Reverse((now + retry, id)));
            } else {
                self.alarms.push(Reverse((at, id)));
            }
        }
        expired
    }

    /// When [`Lessor::expired`] may next have something to say.
    pub(crate) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.peek().map(|Reverse((at, _))| *at)
    }

    /// All leases, those that end first in front.
    pub(crate) fn by_deadline(&self) -> Vec<i64> {
        let mut leases: Vec<_> =
            self.leases.iter().map(|(id, l)| (l.at.is_none(), l.at, *id)).collect();
        leases.sort_unstable();
        leases.into_iter().map(|(_, _, id)| id).collect()
    }
}

fn deadline(ttl_seconds: i64, now: Instant) -> Option<Instant> {
    now.checked_add(Duration::from_secs(ttl_seconds.max(0) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_renewed_lease_lives_its_ttl_again() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.grant(1, 10, start);
        lessor.grant(2, 10, start);
        assert_eq!(lessor.renew(1, start + 9 * SECOND), Some(10));
        assert_eq!(lessor.expired(start + 10 * SECOND, SECOND, 9), [2]);
        assert_eq!(lessor.expired(start + 19 * SECOND, 100 * SECOND, 9), [2, 1], "and 2 again");
        lessor.revoke(1);
        assert_eq!(lessor.remaining(1, start), None);
    }

    #[test]
    fn what_has_run_out_cannot_be_renewed() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.grant(1, 10, start);
        assert_eq!(lessor.renew(1, start + 10 * SECOND), None);
        assert_eq!(lessor.remaining(1, start + 11 * SECOND), Some((Duration::ZERO, 10)));
        assert_eq!(lessor.renew(7, start), None);
    }

    #[test]
    fn leases_that_come_and_go_leave_nothing_behind() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.grant(-1, 5, start);
        for id in 1..10_000 {
            lessor.grant(id, 1000, start);
            lessor.revoke(id);
        }
        assert!(lessor.alarms.len() <= SPARE_ALARMS + 2);
        assert_eq!(lessor.expired(start + 6 * SECOND, SECOND, 9), [-1]);
    }

    #[test]
    fn an_immortal_lease_has_no_alarm() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.grant(1, i64::MAX, start);
        assert_eq!(lessor.next_alarm(), None);
        assert_eq!(lessor.renew(1, start), Some(i64::MAX));
        lessor.grant(2, 5, start);
        assert_eq!(lessor.by_deadline(), [2, 1]);
    }
}
