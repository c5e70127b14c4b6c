//! Whether the log may try to allocate a segment on a disk that may be full.
//!
//! An attempt that fails takes all free space for a moment. If every refused write made one, a
//! snapshot, which would free a part of the log, could not be written.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval between two attempts if the free space is too small or unreliable.
const RETRY: Duration = Duration::from_secs(1);
/// After a failure, the free space must exceed the segment by this part of its size.
const MARGIN_DIVISOR: u64 = 16;

/// The space on the disk of the log that a snapshot in progress needs. The log leaves it free.
#[derive(Clone, Default)]
pub struct SpaceClaim(Arc<AtomicU64>);

impl SpaceClaim {
    /// Sets the claimed space in bytes; 0 once the snapshot has ended.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Release);
    }

    /// Returns the claimed space in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Decides whether a segment may be allocated.
#[derive(Default)]
pub(crate) struct SpaceGate {
    pub(crate) claim: SpaceClaim,
    /// The last attempt, if it failed because the disk was full.
    failure: Mutex<Option<Failure>>,
}

/// An attempt that failed because the disk was full.
#[derive(Clone, Copy)]
struct Failure {
    at: Instant,
    /// Whether the free space was large enough. Then it says nothing, for example because of
    /// a quota.
    is_unreliable: bool,
}

impl SpaceGate {
    /// Calls `allocate`, which allocates `needed` bytes, unless this is refused. `free` is the
    /// free space, if it is known.
    pub(crate) fn allocate<T>(
        &self,
        needed: u64,
        free: impl Fn() -> Option<u64>,
        allocate: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let now = Instant::now();
        let mut failure = self.failure.lock().expect("no thread panicked with the lock");
        let claimed = self.claim.bytes();
        let free = if failure.is_some() || claimed > 0 { free() } else { None };
        if !allows(*failure, claimed, needed, free, now) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let allocated = allocate();
        let is_full = allocated.as_ref().is_err_and(crate::durability::is_disk_full);
        let is_unreliable = free.is_some_and(|free| free >= needed);
        *failure = is_full.then_some(Failure { at: now, is_unreliable });
        allocated
    }
}

/// Whether `needed` bytes may be allocated, after a failed attempt if there was one, and while a
/// snapshot needs `claimed` bytes.
fn allows(
    failure: Option<Failure>,
    claimed: u64,
    needed: u64,
    free: Option<u64>,
    now: Instant,
) -> bool {
    let leaves = |rest: u64| free.is_some_and(|free| free >= needed.saturating_add(rest));
    match failure {
        // Do not take the space of the snapshot if the attempt must fail.
        None => claimed == 0 || free.is_none() || leaves(0),
        Some(Failure { at, is_unreliable }) => {
            let suffices = !is_unreliable && leaves(claimed.max(needed / MARGIN_DIVISOR));
            suffices || claimed == 0 && now.saturating_duration_since(at) >= RETRY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_needs_free_space_or_time() {
        let at = Instant::now();
        let failure = Some(Failure { at, is_unreliable: false });
        let unreliable = Some(Failure { at, is_unreliable: true });
        let (soon, later) = (at + RETRY / 2, at + RETRY);
        for (failure, claimed, free, now, expected) in [
            (None, 0, None, soon, true),
            (None, 500, Some(1600), soon, true),
            (None, 500, Some(1599), soon, false),
            (None, 500, None, soon, true),
            (failure, 0, Some(1699), soon, false),
            (failure, 0, Some(1700), soon, true),
            (failure, 0, Some(0), later, true),
            (failure, 0, None, soon, false),
            (failure, 500, Some(2099), later, false),
            (failure, 500, Some(2100), soon, true),
            (failure, 500, None, later, false),
            (unreliable, 0, Some(1 << 40), soon, false),
            (unreliable, 0, Some(1 << 40), later, true),
            (unreliable, 500, Some(1 << 40), later, false),
        ] {
            let allowed = allows(failure, claimed, 1600, free, now);
            assert_eq!(allowed, expected, "claimed {claimed}, free {free:?}");
        }
    }
}
