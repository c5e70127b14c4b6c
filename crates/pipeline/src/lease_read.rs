//! Reads of leases, in steps. Writers can run between the steps: a step holds the lock of
//! the lessor or of the store for a bounded number of leases or keys.

use std::sync::atomic::Ordering;
use std::time::Instant;

use etcdpb::Key;

use crate::pace::{self, STEP_ENTRIES};
use crate::{Error, Pipeline};

/// Maximum number of leases or of attached keys that are read on the calling thread.
const SMALL_READ_ENTRIES: usize = 1000;

impl Pipeline {
    /// Returns the remaining TTL and the granted TTL of a lease, both in seconds; `None` if
    /// the lease does not exist.
    pub fn lease_time_to_live(&self, id: i64) -> Option<(i64, i64)> {
        let (remaining, ttl) = self.shared().lessor.lock().remaining(id, Instant::now())?;
        Some((remaining.as_secs().min(ttl as u64) as i64, ttl))
    }

    /// Returns the keys attached to a lease, in order, unless they are more than 1,000.
    /// There are none if the lease does not exist.
    pub fn few_lease_keys(&self, id: i64) -> Option<Vec<Key>> {
        let store = self.shared().store.read();
        match store.lease(id) {
            Some(lease) if lease.keys.len() > SMALL_READ_ENTRIES => None,
            Some(lease) => Some(lease.keys.iter().cloned().collect()),
            None => Some(Vec::new()),
        }
    }

    /// Returns the keys attached to a lease, in order. They may change between the steps.
    /// Fails when `cancelled` returns true; it is called between the steps.
    pub fn lease_keys_unless(
        &self,
        id: i64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Key>, Error> {
        let mut keys: Vec<Key> = Vec::new();
        self.read_in_steps(cancelled, || {
            let store = self.shared().store.read();
            let Some(lease) = store.lease(id) else {
                keys.clear();
                return false;
            };
            let before = keys.len();
            let step: Vec<_> = lease.keys_after(keys.last()).take(STEP_ENTRIES).cloned().collect();
            keys.extend(step);
            keys.len() == before + STEP_ENTRIES
        })?;
        Ok(keys)
    }

    /// Returns the IDs of all leases, unless they are more than 1,000. The lease that
    /// expires first comes first.
    pub fn few_leases(&self) -> Option<Vec<i64>> {
        let lessor = self.shared().lessor.lock();
        (lessor.len() <= SMALL_READ_ENTRIES).then(|| lessor.by_deadline())
    }

    /// Returns the IDs of all leases; the lease that expires first comes first. Leases may
    /// be granted, renewed and revoked between the steps. Fails when `cancelled` returns
    /// true; it is called between the steps.
    pub fn leases_unless(&self, cancelled: &dyn Fn() -> bool) -> Result<Vec<i64>, Error> {
        let (mut deadlines, mut last) = (Vec::new(), None);
        self.read_in_steps(cancelled, || {
            let lessor = self.shared().lessor.lock();
            let before = deadlines.len();
            deadlines.extend(lessor.deadlines_after(last).take(STEP_ENTRIES));
            drop(lessor);
            last = deadlines.last().map(|deadline| deadline.id);
            deadlines.len() == before + STEP_ENTRIES
        })?;
        deadlines.sort_unstable();
        Ok(deadlines.into_iter().map(|deadline| deadline.id).collect())
    }

    /// Returns the leases with their TTLs in seconds, ordered by ID. Fails when `cancelled`
    /// returns true; it is called between the steps.
    pub fn lease_ttls_unless(
        &self,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<(i64, i64)>, Error> {
        let mut ttls: Vec<(i64, i64)> = Vec::new();
        self.read_in_steps(cancelled, || {
            let store = self.shared().store.read();
            let before = ttls.len();
            let leases = store.leases_after(ttls.last().map(|(id, _)| *id)).take(STEP_ENTRIES);
            let step: Vec<_> = leases.map(|(id, lease)| (id, lease.ttl_seconds)).collect();
            ttls.extend(step);
            ttls.len() == before + STEP_ENTRIES
        })?;
        Ok(ttls)
    }

    /// Calls `step` until it returns false.
    fn read_in_steps(
        &self,
        cancelled: &dyn Fn() -> bool,
        mut step: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        while step() {
            pace::pause(cancelled)?;
            if self.shared().stopping.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
        }
        Ok(())
    }
}
