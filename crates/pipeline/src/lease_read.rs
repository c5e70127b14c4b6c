//! Reads of leases, in steps. Writers can run between the steps: a step holds the lock of
//! the lessor or of the store for a bounded number of leases or keys.

use std::sync::atomic::Ordering;
use std::time::Instant;

use auth::Spans;
use etcdpb::Key;

use crate::lessor::LeaseDeadline;
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
    /// Fails when `stops` returns true; it is called between the steps with the memory in bytes
    /// that the result occupies so far.
    pub fn lease_keys_unless(
        &self,
        id: i64,
        stops: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<Key>, Error> {
        self.read_in_steps(stops, |keys: &mut Vec<Key>| {
            let store = self.shared().store.read();
            match store.lease(id) {
                Some(lease) => {
                    let after = keys.last().cloned();
                    keys.extend(lease.keys_after(after.as_ref()).take(STEP_ENTRIES).cloned());
                }
                None => keys.clear(),
            }
        })
    }

    /// Whether a key is attached to a lease that is not in `spans`.
    pub fn lease_has_key_outside(&self, id: i64, spans: &Spans) -> bool {
        let store = self.shared().store.read();
        store.lease(id).is_some_and(|lease| lease.has_key_outside(spans))
    }

    /// Whether a key is attached to any lease that is not in `spans`. Fails when `stops` returns
    /// true; it is called between the steps.
    pub fn any_lease_key_outside_unless(
        &self,
        spans: &Spans,
        stops: &dyn Fn() -> bool,
    ) -> Result<bool, Error> {
        let mut last = None;
        loop {
            let mut leases = 0;
            {
                let store = self.shared().store.read();
                for (id, lease) in store.leases_after(last).take(STEP_ENTRIES) {
                    if lease.has_key_outside(spans) {
                        return Ok(true);
                    }
                    last = Some(id);
                    leases += 1;
                }
            }
            if leases < STEP_ENTRIES {
                return Ok(false);
            }
            pace::pause(stops)?;
        }
    }

    /// Returns the IDs of all leases, unless they are more than 1,000. The lease that
    /// expires first comes first.
    pub fn few_leases(&self) -> Option<Vec<i64>> {
        let lessor = self.shared().lessor.lock();
        (lessor.len() <= SMALL_READ_ENTRIES).then(|| lessor.by_deadline())
    }

    /// Returns the IDs of all leases; the lease that expires first comes first. Leases may
    /// be granted, renewed and revoked between the steps. Fails when `stops` returns true; it
    /// is called between the steps with the memory in bytes that is occupied so far.
    pub fn leases_unless(&self, stops: &dyn Fn(usize) -> bool) -> Result<Vec<i64>, Error> {
        let mut deadlines = self.read_in_steps(stops, |deadlines: &mut Vec<LeaseDeadline>| {
            let lessor = self.shared().lessor.lock();
            let last = deadlines.last().map(|deadline| deadline.id);
            deadlines.extend(lessor.deadlines_after(last).take(STEP_ENTRIES));
        })?;
        deadlines.sort_unstable();
        Ok(deadlines.into_iter().map(|deadline| deadline.id).collect())
    }

    /// Returns the leases with their TTLs in seconds, ordered by ID. Fails when `stops` returns
    /// true; it is called between the steps with the memory in bytes that is occupied so far.
    pub fn lease_ttls_unless(
        &self,
        stops: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<(i64, i64)>, Error> {
        self.read_in_steps(stops, |ttls: &mut Vec<(i64, i64)>| {
            let store = self.shared().store.read();
            let leases = store.leases_after(ttls.last().map(|(id, _)| *id)).take(STEP_ENTRIES);
            ttls.extend(leases.map(|(id, lease)| (id, lease.ttl_seconds)));
        })
    }

    /// Calls `step` until it no longer appends [`STEP_ENTRIES`] entries. Returns all entries.
    fn read_in_steps<T>(
        &self,
        stops: &dyn Fn(usize) -> bool,
        mut step: impl FnMut(&mut Vec<T>),
    ) -> Result<Vec<T>, Error> {
        let mut entries = Vec::new();
        loop {
            let before = entries.len();
            step(&mut entries);
            if entries.len() != before + STEP_ENTRIES {
                return Ok(entries);
            }
            pace::pause(&|| stops(size_of_val(&entries[..])))?;
            if self.shared().stopping.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
        }
    }
}
