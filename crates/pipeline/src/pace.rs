//! Pace of long work, so that it does not delay writers.
//!
//! Long reads and garbage collection work in steps, and hold the store's lock for a
//! fraction of a millisecond in each. On a shared core that is not enough. The OS
//! scheduler can preempt a busy thread at any moment, most likely with the lock held.
//! Every other thread then waits until it runs again. Such a thread therefore yields
//! between two steps, without the lock.

use std::time::Duration;

/// Keys or events that one step visits with the lock held.
pub(crate) const STEP: usize = 128;
/// Pause after a step of background work.
pub(crate) const REST: Duration = Duration::from_micros(300);

/// Yields to other threads. Call it between steps, without a lock.
pub(crate) fn give_way() {
    std::thread::yield_now();
}
