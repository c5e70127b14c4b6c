//! The pace of long work, which limits how long it delays writers.
//!
//! Long reads and garbage collection work in steps. In each step they hold the lock of
//! the store for a fraction of a millisecond. On a core that several threads share, short
//! steps are not enough: the OS scheduler can preempt a thread that works without pause
//! while it holds the lock. All other threads then wait until it runs again. Therefore
//! such a thread yields the core between two steps, when it does not hold the lock.

use std::time::Duration;

use crate::Error;

/// Number of keys or events that one step visits with the lock held.
pub(crate) const STEP_ENTRIES: usize = 128;
/// Number of bytes of values that are sorted at once: comparing values with long common
/// prefixes takes up to ten times as long as reading them.
pub(crate) const SMALL_SORT_BYTES: usize = 256 << 10;
/// Pause after a step of background work.
pub(crate) const STEP_PAUSE: Duration = Duration::from_micros(300);

/// Yields the core to other threads. Call it between steps, without a lock.
pub(crate) fn yield_thread() {
    std::thread::yield_now();
}

/// Yields the core as [`yield_thread`] does. Fails if the caller has cancelled the read.
pub(crate) fn pause(cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
    yield_thread();
    match cancelled() {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}
