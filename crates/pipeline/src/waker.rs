//! Wakes the thread of the driver.

use crossbeam_channel::{Receiver, Sender, bounded};

/// Wakes the thread that waits for the receiver.
#[derive(Clone)]
pub(crate) struct Waker(Sender<()>);

/// Returns a waker, and what the thread waits for.
pub(crate) fn waker() -> (Waker, Receiver<()>) {
    let (sender, receiver) = bounded(1);
    (Waker(sender), receiver)
}

impl Waker {
    pub(crate) fn wake(&self) {
        // If the channel is full, an earlier wake-up is still pending.
        let _ = self.0.try_send(());
    }
}
