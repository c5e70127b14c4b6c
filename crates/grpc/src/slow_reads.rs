//! The slots of slow reads. The reads take turns: one that has run for a while gives its
//! slot to another one that waits, and goes to the end of the queue.
//!
//! A read that waits for its next turn keeps its thread, its place in the work and the
//! revision that it reads. So both the reads that a connection has begun and the reads of
//! all connections that wait in the middle are limited. A connection may have as many of the
//! latter as it leaves to others, so connections with long reads always leave a place.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::budget::{Account, Budget, Share};

/// The bytes of responses for which a slow read counts while it runs: its result is not known yet.
pub(crate) const SLOW_READ_BYTES: usize = 4 << 20;
/// The memory of a result counts in steps of this size, so that a read seldom touches the counter
/// that all connections share.
const GATHERED_STEP_BYTES: usize = 64 << 10;
/// How long a slow read may run while others wait.
const TURN: Duration = Duration::from_millis(100);
/// Limit on the reads that wait for another turn, of which a connection may have as many as it
/// leaves free, and a guaranteed part (see [`Budget`]). A read that would have to wait beyond that
/// fails. With the guaranteed parts, up to 532 reads wait; each has a thread of Tokio.
const MAX_PAUSED: usize = 256;

/// The slots that all connections share.
#[derive(Debug)]
pub(crate) struct SlowReads {
    slots: Arc<Semaphore>,
    /// Number of slots.
    count: usize,
    /// Number of reads that wait for a slot.
    waiting: AtomicUsize,
    /// Places of reads that wait for another turn.
    paused: Arc<Budget>,
}

impl SlowReads {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(SlowReads {
            slots: Arc::new(Semaphore::new(count)),
            count,
            waiting: AtomicUsize::new(0),
            paused: Budget::new(MAX_PAUSED),
        })
    }
}

/// What one connection may use of the slots.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSlots {
    shared: Arc<SlowReads>,
    /// The connection may hold half of the slots. So a single connection never keeps another
    /// one waiting, and several do so for at most a few turns.
    own: Arc<Semaphore>,
    /// The connection may have begun as many reads as there are slots.
    begun: Arc<Semaphore>,
    paused: Arc<Account>,
}

/// A slot of a read that is running.
#[derive(Debug)]
struct Slot {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

impl ConnectionSlots {
    pub(crate) fn new(shared: &Arc<SlowReads>) -> Self {
        ConnectionSlots {
            shared: shared.clone(),
            own: Arc::new(Semaphore::new((shared.count / 2).max(1))),
            begun: Arc::new(Semaphore::new(shared.count)),
            paused: Arc::new(Account::new(shared.paused.clone())),
        }
    }

    /// Waits for the first turn of a read. `gathered` counts the memory of its result.
    pub(crate) async fn begin(
        &self,
        cancelled: CancellationToken,
        gathered: Share,
    ) -> Result<SlowRead, AcquireError> {
        let begun = self.begun.clone().acquire_owned().await?;
        let slot = RefCell::new(Some(self.acquire().await?));
        let (slots, since, refused) = (self.clone(), Cell::new(Instant::now()), Cell::new(false));
        let gathered = RefCell::new(gathered);
        Ok(SlowRead { slots, _begun: begun, slot, since, gathered, cancelled, refused })
    }

    /// Takes a place to wait for another turn; `None` if the connection may not have more.
    fn pause(&self) -> Option<Share> {
        let mut place = Share::new(self.paused.clone());
        place.grow(1).is_ok().then_some(place)
    }

    async fn acquire(&self) -> Result<Slot, AcquireError> {
        let _waiting = Waiting::new(&self.shared.waiting);
        let own = self.own.clone().acquire_owned().await?;
        let shared = self.shared.slots.clone().acquire_owned().await?;
        Ok(Slot { _own: own, _shared: shared })
    }
}

/// Counts a read that waits until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Waiting(counter)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A slow read that has begun. Its slot is free when it is dropped.
#[derive(Debug)]
pub struct SlowRead {
    slots: ConnectionSlots,
    _begun: OwnedSemaphorePermit,
    slot: RefCell<Option<Slot>>,
    /// The start of the current turn.
    since: Cell<Instant>,
    /// The memory of the result so far, in steps of [`GATHERED_STEP_BYTES`].
    gathered: RefCell<Share>,
    cancelled: CancellationToken,
    refused: Cell<bool>,
}

impl SlowRead {
    /// Lets other slow reads run if they wait and this one has run for a while: blocks until
    /// its next turn. Returns whether the read should end, because nobody waits for its
    /// result any more, or because too many reads wait. Call it between two steps of the
    /// read, without a lock.
    ///
    /// Nobody waits if the client has reset the call, its deadline has passed, or the
    /// connection is closed.
    pub fn give_way(&self) -> bool {
        let others_wait = self.slots.shared.waiting.load(Ordering::Relaxed) > 0;
        if others_wait && self.since.get().elapsed() >= TURN {
            self.wait_for_next_turn();
        }
        self.refused.get() || self.cancelled.is_cancelled()
    }

    /// Does the same for a read whose result occupies `held_bytes` bytes of memory so far. If
    /// this is more than the connection may hold, the read should end too.
    pub fn give_way_holding(&self, held_bytes: usize) -> bool {
        let counted = held_bytes / GATHERED_STEP_BYTES * GATHERED_STEP_BYTES;
        if self.gathered.borrow_mut().resize(counted).is_err() {
            self.refused.set(true);
        }
        self.give_way()
    }

    /// Whether the read had to end because too many reads wait, or because there is no memory
    /// for its result.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused.get()
    }

    fn wait_for_next_turn(&self) {
        let Some(_place) = self.slots.pause() else { return self.refused.set(true) };
        self.slot.replace(None);
        let next = self.cancelled.run_until_cancelled(self.slots.acquire());
        let slot = Handle::current().block_on(next).and_then(Result::ok);
        self.slot.replace(slot);
        self.since.set(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many connections with reads that never end do not take all places to wait for a turn.
    #[test]
    fn a_further_connection_finds_a_place() {
        let shared = SlowReads::new(4);
        let connections: Vec<_> = (0..200).map(|_| ConnectionSlots::new(&shared)).collect();
        let mut places: Vec<Share> = Vec::new();
        for _ in 0..4 {
            places.extend(connections.iter().filter_map(ConnectionSlots::pause));
        }
        assert!((200..MAX_PAUSED).contains(&places.len()), "{} places", places.len());
        let further = ConnectionSlots::new(&shared);
        let place = further.pause().expect("the others have left a place");
        drop(place);
        places.truncate(100);
        assert!(connections[0].pause().is_some(), "places are returned");
    }

    /// The same for fewer connections, each of which takes every place that it gets.
    #[test]
    fn a_connection_beside_greedy_ones_has_a_place() {
        let shared = SlowReads::new(4);
        let greedy: Vec<_> = (0..40).map(|_| ConnectionSlots::new(&shared)).collect();
        let mut places: Vec<Share> = Vec::new();
        for connection in &greedy {
            places.extend(std::iter::from_fn(|| connection.pause()));
        }
        assert!(ConnectionSlots::new(&shared).pause().is_some(), "{} are taken", places.len());
        assert!(places.len() <= 532, "{} places", places.len());
    }
}
