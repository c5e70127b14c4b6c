//! Counts the memory of the open streams of a connection.
//!
//! A stream occupies memory as long as it is open, whatever it waits for: the rest of its request,
//! its turn, or events. A client can open thousands with a few bytes each.

use crate::admission::{Admission, Reservation, TOO_MANY_REQUESTS};
use crate::status::Status;

/// Streams of a connection that do not count. kube-apiserver opens one Watch stream for each kind
/// of resources, and has at most some hundred calls in progress on a connection. So it is served
/// even when other clients have used up the memory.
const UNCOUNTED_STREAMS: usize = 256;
/// The memory of an open stream with its call. A Watch call without a watch has 2.0 KiB, other
/// calls have 0.7 to 1.0 KiB.
const STREAM_BYTES: usize = 2 << 10;
/// Streams are counted in steps of this number, so that connections seldom touch the counter that
/// they share.
const STEP_STREAMS: usize = 256;

/// What the open streams of a connection use of the memory that calls keep.
#[derive(Debug)]
pub(crate) struct OpenStreams {
    memory: Reservation,
    /// Number of streams that `memory` has room for.
    counted: usize,
}

impl OpenStreams {
    pub(crate) fn new(admission: &Admission) -> Self {
        OpenStreams { memory: admission.reserve(), counted: 0 }
    }

    /// Checks whether the connection may have `open` open streams.
    pub(crate) fn admit(&mut self, open: usize) -> Result<(), Status> {
        let counted = open.saturating_sub(UNCOUNTED_STREAMS).next_multiple_of(STEP_STREAMS);
        if counted <= self.counted {
            return Ok(());
        }
        if !self.memory.resize(counted * STREAM_BYTES) {
            return Err(Status::resource_exhausted(TOO_MANY_REQUESTS));
        }
        self.counted = counted;
        Ok(())
    }

    /// Returns the memory of streams that have ended, if there are many.
    pub(crate) fn release(&mut self, open: usize) {
        let counted = open.saturating_sub(UNCOUNTED_STREAMS).next_multiple_of(STEP_STREAMS);
        if counted + STEP_STREAMS < self.counted || counted == 0 && self.counted > 0 {
            // Returning memory does not fail.
            let _ = self.memory.resize(counted * STREAM_BYTES);
            self.counted = counted;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admission::Capacity;
    use crate::budget::{Account, Budget};

    fn admission(capacity: &Capacity) -> Admission {
        Admission::new(capacity, Arc::new(Account::new(Budget::new(0))), None)
    }

    #[test]
    fn streams_of_all_connections_share_the_memory() {
        // Calls may keep twice as much.
        let capacity = Capacity::new(4 << 20, 2);
        let admissions: Vec<_> = (0..20).map(|_| admission(&capacity)).collect();
        let fill = |streams: &mut OpenStreams| {
            (1..).take_while(|open| streams.admit(*open).is_ok()).count()
        };
        let mut greedy: Vec<_> = admissions.iter().map(OpenStreams::new).collect();
        let opened: Vec<usize> = greedy.iter_mut().map(fill).collect();
        assert_eq!(opened[..2], [2048 + 256, 1024 + 256]);
        let counted = opened.iter().map(|open| open - UNCOUNTED_STREAMS).sum::<usize>();
        assert!(counted <= 4096, "{counted} streams of 2 KiB are open in 8 MiB");
        assert_eq!(opened.last(), Some(&UNCOUNTED_STREAMS), "the memory is used up");
        greedy[0].release(300);
        assert!(fill(&mut greedy[19]) > 1000, "the memory is returned");
        greedy[0].release(0);
        assert_eq!(greedy[0].counted, 0);
    }
}
