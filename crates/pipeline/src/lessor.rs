//! The deadlines of leases. Methods that need the current time take it as a parameter.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// The heap is rebuilt when it has more than this many checks, in addition to two checks
/// per lease.
const MAX_EXTRA_CHECKS: usize = 1024;

/// The deadlines of all leases.
#[derive(Default)]
pub(crate) struct Lessor {
    /// The leases by ID, ordered, so that a reader can visit them in steps.
    leases: BTreeMap<i64, Deadline>,
    /// When to check whether a lease has expired. Each lease with a deadline has at least
    /// one check, not later than the deadline. A renewal moves only the deadline. When
    /// the check is due, it is moved to the deadline.
    checks: BinaryHeap<Reverse<(Instant, i64)>>,
    /// Whether another member of the cluster ends the leases: [`Lessor::demote`].
    demoted: bool,
}

/// The granted TTL of a lease, and when the lease expires.
struct Deadline {
    ttl_seconds: i64,
    /// `None` if the TTL is too long for an [`Instant`]: the lease never expires.
    expires_at: Option<Instant>,
}

/// When a lease expires. Leases are ordered by this time. Those that never expire come
/// last, and leases with the same deadline are ordered by ID.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseDeadline {
    never_expires: bool,
    expires_at: Option<Instant>,
    pub(crate) id: i64,
}

impl Lessor {
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Starts the TTL of a new lease.
    pub(crate) fn grant(&mut self, id: i64, ttl_seconds: i64, now: Instant) {
        let ttl = Duration::from_secs(ttl_seconds.max(0) as u64);
        self.resume(id, ttl_seconds, ttl, now);
    }

    /// Adds a recovered lease with the remaining TTL `left`.
    pub(crate) fn resume(&mut self, id: i64, ttl_seconds: i64, left: Duration, now: Instant) {
        let expires_at = now.checked_add(left);
        self.leases.insert(id, Deadline { ttl_seconds, expires_at });
        self.checks.extend(expires_at.map(|at| Reverse((at, id))));
    }

    /// Removes a lease.
    pub(crate) fn revoke(&mut self, id: i64) {
        self.leases.remove(&id);
        // The checks of the lease stay in the heap. Rebuild the heap before such checks
        // are the majority.
        if self.checks.len() > 2 * self.leases.len() + MAX_EXTRA_CHECKS {
            let check =
                |(id, lease): (&i64, &Deadline)| lease.expires_at.map(|at| Reverse((at, *id)));
            self.checks = self.leases.iter().filter_map(check).collect();
        }
    }

    /// Restarts the TTL of a lease. Returns the TTL in seconds; `None` if the lease does
    /// not exist or has expired, even if its revocation is still queued.
    pub(crate) fn renew(&mut self, id: i64, now: Instant) -> Option<i64> {
        let lease = self.leases.get_mut(&id)?;
        if lease.expires_at.is_some_and(|at| at <= now) {
            return None;
        }
        lease.expires_at = deadline(lease.ttl_seconds, now);
        Some(lease.ttl_seconds)
    }

    /// Removes all leases.
    pub(crate) fn clear(&mut self) {
        self.leases.clear();
        self.checks.clear();
    }

    /// Restarts the TTL of a lease that another member has renewed.
    pub(crate) fn restart(&mut self, id: i64, now: Instant) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.expires_at = deadline(lease.ttl_seconds, now);
        }
    }

    /// Lets no lease expire until [`Lessor::promote`]: only the leader of a cluster ends leases.
    pub(crate) fn demote(&mut self) {
        self.demoted = true;
    }

    /// Lets leases expire. All TTLs start again, as in etcd: the last leader may have renewed leases
    /// that this member does not know of.
    pub(crate) fn promote(&mut self, now: Instant) {
        self.demoted = false;
        self.leases.values_mut().for_each(|lease| {
            lease.expires_at = deadline(lease.ttl_seconds, now);
        });
    }

    /// Returns the remaining TTL, zero for an expired lease, and the granted TTL in
    /// seconds.
    pub(crate) fn remaining(&self, id: i64, now: Instant) -> Option<(Duration, i64)> {
        let lease = self.leases.get(&id)?;
        let left = lease.expires_at.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
        Some((left, lease.ttl_seconds))
    }

    /// Returns the ID of an expired lease. A lease that is not revoked is returned again after
    /// `retry`.
    pub(crate) fn next_expired(&mut self, now: Instant, retry: Duration) -> Option<i64> {
        if self.demoted {
            return None;
        }
        loop {
            let Reverse((check_at, id)) = *self.checks.peek()?;
            if check_at > now {
                return None;
            }
            self.checks.pop();
            let Some(at) = self.leases.get(&id).and_then(|lease| lease.expires_at) else {
                continue;
            };
            if at <= now {
                self.checks.push(Reverse((now + retry, id)));
                return Some(id);
            }
            self.checks.push(Reverse((at, id)));
        }
    }

    /// Returns the earliest time at which [`Lessor::next_expired`] may return a lease.
    pub(crate) fn next_check(&self) -> Option<Instant> {
        let first = self.checks.peek().filter(|_| !self.demoted);
        first.map(|Reverse((at, _))| *at)
    }

    /// Returns the deadlines of the leases with higher IDs than `after`, or of all leases,
    /// ordered by ID.
    pub(crate) fn deadlines_after(
        &self,
        after: Option<i64>,
    ) -> impl Iterator<Item = LeaseDeadline> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.leases.range((start, Bound::Unbounded)).map(|(id, lease)| LeaseDeadline {
            never_expires: lease.expires_at.is_none(),
            expires_at: lease.expires_at,
            id: *id,
        })
    }

    /// Returns the IDs of all leases, ordered by deadline. Leases that never expire come
    /// last.
    pub(crate) fn by_deadline(&self) -> Vec<i64> {
        let mut leases: Vec<_> = self.deadlines_after(None).collect();
        leases.sort_unstable();
        leases.into_iter().map(|lease| lease.id).collect()
    }
}

/// Returns when a TTL that starts now ends; `None` if an [`Instant`] cannot express it.
fn deadline(ttl_seconds: i64, now: Instant) -> Option<Instant> {
    now.checked_add(Duration::from_secs(ttl_seconds.max(0) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns all expired leases.
    fn expired(lessor: &mut Lessor, now: Instant, retry: Duration) -> Vec<i64> {
        std::iter::from_fn(|| lessor.next_expired(now, retry)).collect()
    }

    #[test]
    fn a_renewed_lease_gets_its_full_ttl() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.grant(1, 10, start);
        lessor.grant(2, 10, start);
        assert_eq!(lessor.renew(1, start + 9 * SECOND), Some(10));
        assert_eq!(expired(&mut lessor, start + 10 * SECOND, SECOND), [2]);
        assert_eq!(
            expired(&mut lessor, start + 19 * SECOND, 100 * SECOND),
            [2, 1],
            "lease 2 is returned again"
        );
        lessor.revoke(1);
        assert_eq!(lessor.remaining(1, start), None);
    }

    #[test]
    fn a_new_leader_starts_all_ttls_again() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.demote();
        lessor.grant(1, 10, start);
        lessor.grant(2, 10, start);
        assert_eq!(lessor.next_check(), None);
        assert!(expired(&mut lessor, start + 20 * SECOND, SECOND).is_empty());
        lessor.restart(2, start + 15 * SECOND);
        assert_eq!(lessor.remaining(2, start + 15 * SECOND), Some((10 * SECOND, 10)));
        lessor.promote(start + 20 * SECOND);
        assert!(expired(&mut lessor, start + 29 * SECOND, SECOND).is_empty());
        let mut both = expired(&mut lessor, start + 30 * SECOND, SECOND);
        both.sort_unstable();
        assert_eq!(both, [1, 2]);
    }

    #[test]
    fn an_expired_lease_cannot_be_renewed() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.grant(1, 10, start);
        assert_eq!(lessor.renew(1, start + 10 * SECOND), None);
        assert_eq!(lessor.remaining(1, start + 11 * SECOND), Some((Duration::ZERO, 10)));
        assert_eq!(lessor.renew(7, start), None);
    }

    #[test]
    fn revoked_leases_do_not_accumulate() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.grant(-1, 5, start);
        for id in 1..10_000 {
            lessor.grant(id, 1000, start);
            lessor.revoke(id);
        }
        assert!(lessor.checks.len() <= MAX_EXTRA_CHECKS + 2);
        assert_eq!(expired(&mut lessor, start + 6 * SECOND, SECOND), [-1]);
    }

    #[test]
    fn a_lease_that_never_expires_has_no_check() {
        let start = Instant::now();
        let mut lessor = Lessor::default();
        lessor.grant(1, i64::MAX, start);
        assert_eq!(lessor.next_check(), None);
        assert_eq!(lessor.renew(1, start), Some(i64::MAX));
        lessor.grant(2, 5, start);
        assert_eq!(lessor.by_deadline(), [2, 1]);
    }
}
