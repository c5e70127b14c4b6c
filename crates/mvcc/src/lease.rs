//! Leases and the keys attached to them.
//!
//! This module has no clock. The pipeline passes in the *store time*: how long the store
//! has been running in total, over all its processes, in milliseconds. When a lease
//! expires, the pipeline submits a command that revokes it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use etcdpb::{Key, Record};

use crate::effect::{Effect, Effects};
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
    by_id: BTreeMap<i64, Granted>,
    /// Number of grants so far.
    grants: u64,
    /// The leases that were revoked while a [`LeaseCursor`] existed, for the cursors.
    revoked: Vec<(i64, Granted)>,
    /// Each cursor has a clone.
    cursors: Arc<()>,
}

/// A lease with the number of its grant.
pub(crate) struct Granted {
    lease: Lease,
    grant: u64,
}

impl Leases {
    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.by_id.get(&id).map(|granted| &granted.lease)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.after(None)
    }

    /// Returns the leases with higher IDs than `after`, or all leases, ordered by ID.
    pub(crate) fn after(&self, after: Option<i64>) -> impl Iterator<Item = (i64, &Lease)> {
        self.granted_after(after).map(|(id, granted)| (id, &granted.lease))
    }

    fn granted_after(&self, after: Option<i64>) -> impl Iterator<Item = (i64, &Granted)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range((start, Bound::Unbounded)).map(|(id, granted)| (*id, granted))
    }

    fn get_mut(&mut self, id: i64) -> Option<&mut Lease> {
        self.by_id.get_mut(&id).map(|granted| &mut granted.lease)
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
        self.remove(id);
        self.grants += 1;
        let lease = Lease { ttl_seconds, ttl_start_ms, keys: BTreeSet::new() };
        self.by_id.insert(id, Granted { lease, grant: self.grants });
    }

    /// Restarts the TTL of a lease at store time `at_ms`. Returns when it had started before.
    pub(crate) fn renew(&mut self, id: i64, at_ms: i64) -> Result<i64, Error> {
        let lease = self.get_mut(id).ok_or(Error::LeaseNotFound)?;
        let before = lease.ttl_start_ms;
        lease.ttl_start_ms = before.max(at_ms);
        Ok(before)
    }

    /// Restarts the TTL of every lease at store time `at_ms`.
    pub(crate) fn renew_all(&mut self, at_ms: i64) {
        let leases = self.by_id.values_mut().map(|granted| &mut granted.lease);
        leases.for_each(|lease| lease.ttl_start_ms = lease.ttl_start_ms.max(at_ms));
    }

    pub(crate) fn remove(&mut self, id: i64) {
        let Some(mut granted) = self.by_id.remove(&id) else { return };
        if Arc::strong_count(&self.cursors) == 1 {
            self.revoked = Vec::new();
            return;
        }
        granted.lease.keys.clear();
        self.revoked.push((id, granted));
    }

    /// Returns a lease without its keys, for [`Leases::restore`].
    pub(crate) fn granted(&self, id: i64) -> Option<Granted> {
        let Granted { lease: Lease { ttl_seconds, ttl_start_ms, .. }, grant } =
            self.by_id.get(&id)?;
        let (ttl_seconds, ttl_start_ms) = (*ttl_seconds, *ttl_start_ms);
        let lease = Lease { ttl_seconds, ttl_start_ms, keys: BTreeSet::new() };
        Some(Granted { lease, grant: *grant })
    }

    /// Takes back the revocation of a lease. Its keys are attached again when their records become
    /// the newest ones again.
    pub(crate) fn restore(&mut self, id: i64, granted: Granted) {
        self.by_id.insert(id, granted);
    }

    /// Sets the store time in milliseconds at which the TTL of a lease started.
    pub(crate) fn set_ttl_start(&mut self, id: i64, ttl_start_ms: i64) {
        if let Some(lease) = self.get_mut(id) {
            lease.ttl_start_ms = ttl_start_ms;
        }
    }

    /// Detaches the key of `record` from its lease.
    pub(crate) fn detach(&mut self, record: &Record) {
        if let Some(lease) = self.get_mut(record.lease()) {
            lease.keys.remove(record.key());
        }
    }

    /// Moves a key from the lease of its previous record to that of its new record.
    pub(crate) fn reattach(&mut self, previous: Option<&Record>, new: &Record) {
        let old = previous.map_or(0, Record::lease);
        if old == new.lease() {
            return;
        }
        if let Some(lease) = self.get_mut(old) {
            lease.keys.remove(new.key());
        }
        if let Some(lease) = self.get_mut(new.lease()) {
            lease.keys.insert(Key::new(new.key()));
        }
    }
}

/// Reads the leases that existed at its start, in steps, while they change. While a cursor
/// exists, the leases that are revoked occupy memory.
pub(crate) struct LeaseCursor {
    /// Number of grants at the start.
    grants: u64,
    /// Store time at the start in milliseconds.
    clock_ms: i64,
    /// The last lease that was read.
    after: Option<i64>,
    /// Index of the first revoked lease that was not read.
    revoked: usize,
    _cursor: Arc<()>,
}

impl LeaseCursor {
    pub(crate) fn new(leases: &Leases, clock_ms: i64) -> Self {
        let (grants, revoked) = (leases.grants, leases.revoked.len());
        LeaseCursor { grants, clock_ms, after: None, revoked, _cursor: leases.cursors.clone() }
    }

    /// Visits at most `max_leases` leases, and appends the effects that grant them. A lease may
    /// be appended twice if it was revoked meanwhile. Returns false at the end.
    pub(crate) fn step(
        &mut self,
        leases: &Leases,
        max_leases: usize,
        effects: &mut Effects,
    ) -> bool {
        let (mut visited, clock_ms, grants) = (0, self.clock_ms, self.grants);
        let mut append = |id, lease: &Lease, grant| {
            if grant <= grants {
                // It may have been renewed since the start.
                let at_ms = Some(lease.ttl_start_ms.min(clock_ms));
                effects.push(Effect::LeaseGranted { id, ttl_seconds: lease.ttl_seconds, at_ms });
            }
        };
        for (id, granted) in leases.granted_after(self.after).take(max_leases) {
            append(id, &granted.lease, granted.grant);
            (visited, self.after) = (visited + 1, Some(id));
        }
        if visited > 0 {
            return true;
        }
        for (id, granted) in leases.revoked[self.revoked..].iter().take(max_leases) {
            append(*id, &granted.lease, granted.grant);
            visited += 1;
        }
        self.revoked += visited;
        visited > 0
    }
}
