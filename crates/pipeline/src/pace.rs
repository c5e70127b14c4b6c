//! How those who read or free a lot leave room for writers.
//!
//! They work in steps, each under the store's lock for a fraction of a
//! millisecond. That alone is not enough where threads share a core: whoever
//! always runs is interrupted at a moment of the scheduler's choice, most likely
//! with the lock held, and then everybody waits until it runs again. So it gives
//! way of its own accord, without the lock, between two steps.

use std::time::Duration;

/// Keys, or events, that are visited under one hold of the lock.
pub(crate) const STEP: usize = 128;
/// Rest after a step of work for which nobody waits.
pub(crate) const REST: Duration = Duration::from_micros(300);

/// Lets others run first. To be called between steps, without a lock.
pub(crate) fn give_way() {
    std::thread::yield_now();
}
