//! Leases and the keys attached to them.
//!
//! This module has no clock. The pipeline passes in the *store time*: how long the store
//! has been running in total, over all its processes, in milliseconds. When a lease
//! expires, the pipeline submits a command that revokes it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use etcdpb::{Key, Record};

use crate::error::Error;

/// The largest TTL that can be granted, in seconds.
pub const MAX_LEASE_TTL_SECONDS: i64 = 9_000_000_000;

/// A granted lease.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// The granted TTL in seconds.
    pub ttl_seconds: i64,
    /// Store time in milliseconds at which the TTL started: at the grant or at the last
    /// renewal.
    pub ttl_start_ms: i64,
    /// The attached keys, in order.
    pub keys: BTreeSet<Key>,
}

impl Lease {
    /// Returns the attached keys after `after`, or all of them, in order.
    pub fn keys_after(&self, after: Option<&Key>) -> impl Iterator<Item = &Key> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.keys.range::<Key, _>((start, Bound::Unbounded))
    }
}

/// All existing leases, ordered by ID, so that a reader can visit them in steps.
#[derive(Default)]
pub(crate) struct Leases {
    by_id: BTreeMap<i64, Lease>,
}

impl Leases {
    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.by_id.get(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.by_id.iter().map(|(id, lease)| (*id, lease))
    }

    /// Returns the leases with higher IDs than `after`, or all leases, ordered by ID.
    pub(crate) fn after(&self, after: Option<i64>) -> impl Iterator<Item = (i64, &Lease)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range((start, Bound::Unbounded)).map(|(id, lease)| (*id, lease))
    }

    /// Fails if this lease cannot be granted.
    pub(crate) fn check_grant(&self, id: i64, ttl_seconds: i64) -> Result<(), Error> {
        match () {
            () if id == 0 => Err(Error::LeaseNotFound),
            () if ttl_seconds > MAX_LEASE_TTL_SECONDS => Err(Error::LeaseTtlTooLarge),
            () if self.by_id.contains_key(&id) => Err(Error::LeaseExists),
            () => Ok(()),
        }
    }

    /// Adds a lease without keys.
    pub(crate) fn insert(&mut self, id: i64, ttl_seconds: i64, ttl_start_ms: i64) {
        self.by_id.insert(id, Lease { ttl_seconds, ttl_start_ms, keys: BTreeSet::new() });
    }

    /// Restarts the TTL of a lease at store time `at_ms`.
    pub(crate) fn renew(&mut self, id: i64, at_ms: i64) -> Result<(), Error> {
        let lease = self.by_id.get_mut(&id).ok_or(Error::LeaseNotFound)?;
        lease.ttl_start_ms = lease.ttl_start_ms.max(at_ms);
        Ok(())
    }

    /// Restarts the TTL of every lease at store time `at_ms`.
    pub(crate) fn renew_all(&mut self, at_ms: i64) {
        self.by_id
            .values_mut()
            .for_each(|lease| lease.ttl_start_ms = lease.ttl_start_ms.max(at_ms));
    }

    pub(crate) fn remove(&mut self, id: i64) {
        self.by_id.remove(&id);
    }

    /// Detaches the key of `record` from its lease.
    pub(crate) fn detach(&mut self, record: &Record) {
        if let Some(lease) = self.by_id.get_mut(&record.lease()) {
            lease.keys.remove(record.key());
        }
    }

    /// Moves a key from the lease of its previous record to that of its new record.
    pub(crate) fn reattach(&mut self, previous: Option<&Record>, new: &Record) {
        let old = previous.map_or(0, Record::lease);
        if old == new.lease() {
            return;
        }
        if let Some(lease) = self.by_id.get_mut(&old) {
            lease.keys.remove(new.key());
        }
        if let Some(lease) = self.by_id.get_mut(&new.lease()) {
            lease.keys.insert(new.key().clone());
        }
    }
}
