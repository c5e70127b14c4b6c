//! Wakes the thread of the driver.
//!
//! A channel would do, but its receiver yields the CPU several times before it sleeps. On a busy CPU
//! each of these is a task switch.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

/// Wakes the thread that waits with the [`Wake`] of this waker.
#[derive(Clone)]
pub(crate) struct Waker(Arc<Signal>);

/// What a thread waits for.
pub(crate) struct Wake(Arc<Signal>);

/// Returns a waker, and what the thread waits for.
pub(crate) fn waker() -> (Waker, Wake) {
    let signal = Arc::new(Signal::default());
    (Waker(signal.clone()), Wake(signal))
}

impl Waker {
    /// Ends the current wait, or the next one if the thread is not waiting.
    pub(crate) fn wake(&self) {
        let was_set = std::mem::replace(&mut *self.0.is_set.lock(), true);
        if !was_set {
            self.0.changed.notify_one();
        }
    }
}

impl Wake {
    /// Waits for a call of [`Waker::wake`], at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        let mut is_set = self.0.is_set.lock();
        if !*is_set {
            self.0.changed.wait_for(&mut is_set, timeout);
        }
        *is_set = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A test that has waited for so long has failed.
    const DEADLINE: Duration = Duration::from_secs(60);

    #[test]
    fn a_wake_before_the_wait_ends_it_once() {
        let (waker, wake) = waker();
        waker.wake();
        waker.wake();
        let start = Instant::now();
        wake.wait(DEADLINE);
        assert!(start.elapsed() < DEADLINE);
        let start = Instant::now();
        wake.wait(Duration::from_millis(10));
        assert!(start.elapsed() >= Duration::from_millis(10));
    }

    #[test]
    fn a_wake_ends_the_wait_of_another_thread() {
        let (waker, wake) = waker();
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| wake.wait(DEADLINE));
            waker.wake();
        });
        assert!(start.elapsed() < DEADLINE);
    }
}
