//! The connections that nodes share.

use std::cell::Cell;
use std::rc::Rc;

use crate::client::Link;
use crate::time::Ticks;

use super::tag::Tag;

/// Requests that are put into one connection before the next one has its turn.
const BATCH: u32 = 64;

/// Connections that nodes share. The requests of a tick go to as few of them as possible: each connection
/// then needs one system call to send all of its requests, and the answers come together.
pub struct SharedLinks {
    links: Vec<Rc<Link<Tag>>>,
    /// The tick of the last request, and the number of requests until then.
    last: Cell<(Ticks, u32)>,
}

impl SharedLinks {
    /// Connections without requests.
    pub fn new(links: impl Iterator<Item = Rc<Link<Tag>>>) -> SharedLinks {
        SharedLinks { links: links.collect(), last: Cell::default() }
    }

    /// All connections.
    pub fn all(&self) -> impl Iterator<Item = &Rc<Link<Tag>>> {
        self.links.iter()
    }

    /// The connection for the next request.
    pub fn next(&self, tick: Ticks) -> Option<Rc<Link<Tag>>> {
        let (last, count) = self.last.get();
        let count = next_in_batch(tick == last, count);
        self.last.set((tick, count));
        self.links.get((count / BATCH) as usize % self.links.len()).cloned()
    }
}

/// The number of the next request. The first one of a tick begins another batch.
fn next_in_batch(is_same_tick: bool, count: u32) -> u32 {
    match is_same_tick {
        true => count.wrapping_add(1),
        false => (count / BATCH).wrapping_add(1).wrapping_mul(BATCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_tick_share_a_connection() {
        let mut count = next_in_batch(false, 3);
        let batches: Vec<u32> = (0..BATCH + 2)
            .map(|_| {
                let batch = count / BATCH;
                count = next_in_batch(true, count);
                batch
            })
            .collect();
        let first = batches[0];
        assert!(batches[..BATCH as usize].iter().all(|it| *it == first));
        assert_eq!(batches[BATCH as usize..], [first + 1, first + 1], "a batch is full");
        assert_eq!(next_in_batch(false, count) / BATCH, first + 2, "another tick");
        assert_eq!(next_in_batch(false, u32::MAX), 0);
    }
}
