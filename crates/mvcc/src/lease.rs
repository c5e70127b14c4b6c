//! Leases: which exist, and which keys end with them.
//!
//! Time is not known here. Whoever drives the store tells it the *store time*,
//! the milliseconds that the store has been running in all, restarts included;
//! watches the clock; and proposes a revocation when a lease has run out.

use std::collections::{BTreeSet, HashMap};

use etcdpb::{Key, Record};

use crate::Error;

/// The largest TTL that may be granted, in seconds.
pub const MAX_LEASE_TTL_SECONDS: i64 = 9_000_000_000;

/// A granted lease.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// The TTL that was granted, in seconds.
    pub ttl_seconds: i64,
    /// Store time from which the TTL runs: of the grant, or the last renewal.
    pub since_ms: i64,
    /// The keys attached to it, in order.
    pub keys: BTreeSet<Key>,
}

/// All leases that live.
#[derive(Default)]
pub(crate) struct Leases {
    by_id: HashMap<i64, Lease>,
}

impl Leases {
    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.by_id.get(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn shrink(&mut self) {
        self.by_id.shrink_to_fit();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.by_id.iter().map(|(id, lease)| (*id, lease))
    }

    pub(crate) fn check_grant(&self, id: i64, ttl_seconds: i64) -> Result<(), Error> {
        match () {
            () if id == 0 => Err(Error::LeaseNotFound),
            () if ttl_seconds > MAX_LEASE_TTL_SECONDS => Err(Error::LeaseTtlTooLarge),
            () if self.by_id.contains_key(&id) => Err(Error::LeaseExists),
            () => Ok(()),
        }
    }

    pub(crate) fn insert(&mut self, id: i64, ttl_seconds: i64, since_ms: i64) {
        self.by_id.insert(id, Lease { ttl_seconds, since_ms, keys: BTreeSet::new() });
    }

    /// Starts the TTL of a lease again, if there is such a lease.
    pub(crate) fn renew(&mut self, id: i64, at_ms: i64) -> Result<(), Error> {
        let lease = self.by_id.get_mut(&id).ok_or(Error::LeaseNotFound)?;
        lease.since_ms = lease.since_ms.max(at_ms);
        Ok(())
    }

    /// The same for all of them.
    pub(crate) fn renew_all(&mut self, at_ms: i64) {
        self.by_id.values_mut().for_each(|lease| lease.since_ms = lease.since_ms.max(at_ms));
    }

    pub(crate) fn remove(&mut self, id: i64) {
        self.by_id.remove(&id);
    }

    /// Takes a key away from its lease.
    pub(crate) fn detach(&mut self, record: &Record) {
        if let Some(lease) = self.by_id.get_mut(&record.lease()) {
            lease.keys.remove(record.key());
        }
    }

    /// Moves a key from the lease of its record before to that of its record now.
    pub(crate) fn reattach(&mut self, before: Option<&Record>, now: &Record) {
        let old = before.map_or(0, Record::lease);
        if old == now.lease() {
            return;
        }
        if let Some(lease) = self.by_id.get_mut(&old) {
            lease.keys.remove(now.key());
        }
        if let Some(lease) = self.by_id.get_mut(&now.lease()) {
            lease.keys.insert(now.key().clone());
        }
    }
}
