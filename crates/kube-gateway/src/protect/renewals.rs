//! Limits the renewals of Leases in progress at each API server.
//!
//! What the gateway serves from the store would be many times more than an API server can do. If the gateway must forward
//! it for a while, as after its start, an API server that gets all of it at once is too busy for the questions whose
//! answers would let the gateway serve again. So the others wait here. None is refused: a kubelet sends a
//! renewal again at once after an error.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Renewals at an API server at a time. kube-apiserver executes 600 requests at once by default, 200 of them writes.
/// One that takes 5 ms for a renewal answers 50,000 a second.
const MAX_RUNNING: usize = 256;

/// The renewals of one API server.
pub struct RenewalQueue(Arc<Semaphore>);

/// The place of a renewal at an API server, until it is dropped.
pub struct RenewalTurn {
    _permit: OwnedSemaphorePermit,
}

impl Default for RenewalQueue {
    fn default() -> RenewalQueue {
        RenewalQueue(Arc::new(Semaphore::new(MAX_RUNNING)))
    }
}

impl RenewalQueue {
    /// Waits for a turn. Who began to wait first has the first one.
    pub async fn turn(&self) -> RenewalTurn {
        let permit = self.0.clone().acquire_owned().await;
        RenewalTurn { _permit: permit.expect("the semaphore is never closed") }
    }

    /// Renewals in progress.
    pub fn running(&self) -> usize {
        MAX_RUNNING - self.0.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn turns_are_limited_and_come_in_order() {
        let queue = RenewalQueue::default();
        let mut turns: Vec<_> = (0..MAX_RUNNING).map(|_| queue.turn().now_or_never()).collect();
        assert!(turns.iter().all(Option::is_some));
        assert_eq!(queue.running(), MAX_RUNNING);
        let (mut first, mut second) = (Box::pin(queue.turn()), Box::pin(queue.turn()));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        turns.pop();
        assert!((&mut second).now_or_never().is_none(), "the turn of the first one");
        // It has gone.
        drop(first);
        assert!(second.now_or_never().is_some());
        assert_eq!(queue.running(), MAX_RUNNING - 1);
    }
}
