//! The part of a transaction that reads: its ranges, and for a read-only transaction also
//! its compares. It runs in steps, and writers run between the steps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcdpb::rpc::{TxnRequest, TxnResponse};
use mvcc::{BranchCursor, ReadPoint, TxnCursor};

use crate::Error;
use crate::pace::{self, STEP_ENTRIES};
use crate::pins::Pin;
use crate::shared_store::SharedStore;

/// How long the history for the ranges of a transaction that was executed stays readable
/// until [`LargeTxn::finish_unless`] is called. After that, a compaction can make it fail.
const EXECUTED_LIFETIME: Duration = Duration::from_secs(60);

/// A transaction whose ranges have to be read.
pub struct LargeTxn {
    shared: Arc<SharedStore>,
    rest: Rest,
}

/// What is left to be done.
enum Rest {
    /// All of a read-only transaction. It reads the store when it is finished, and keeps no
    /// history until then.
    All(TxnRequest),
    /// The large ranges of a transaction that was executed, and the pin of the history that
    /// they need.
    Ranges(Box<TxnCursor>, Pin),
}

impl LargeTxn {
    pub(crate) fn read_only(shared: &Arc<SharedStore>, request: TxnRequest) -> Self {
        LargeTxn { shared: shared.clone(), rest: Rest::All(request) }
    }

    /// Creates the rest of a transaction that was executed. The caller must prevent the
    /// collection of history meanwhile.
    pub(crate) fn executed(shared: &Arc<SharedStore>, ranges: Box<TxnCursor>) -> Self {
        let expiry = Instant::now() + EXECUTED_LIFETIME;
        let pin = Pin::new(&shared.pins, ranges.oldest_needed_revision(), Some(expiry));
        LargeTxn { shared: shared.clone(), rest: Rest::Ranges(ranges, pin) }
    }

    /// Returns the approximate memory in bytes that the transaction needs until it is
    /// finished, without its request.
    pub fn waiting_bytes(&self) -> usize {
        match &self.rest {
            Rest::All(_) => 0,
            Rest::Ranges(ranges, _) => ranges.memory_bytes(),
        }
    }

    /// Reads the rest of the transaction in steps. Writers can run between the steps.
    /// `cancelled` is called between the steps.
    ///
    /// # Errors
    /// Fails if a range of a read-only transaction requests a revision that is compacted or
    /// in the future, if the history for a transaction that was executed is no longer kept,
    /// if the response is too large, if `cancelled` returns true, or if the store is stopping.
    pub fn finish_unless(self, cancelled: &dyn Fn() -> bool) -> Result<TxnResponse, Error> {
        let LargeTxn { shared, rest } = self;
        match rest {
            Rest::All(request) => read_all(&shared, &request, cancelled),
            // Without this, the history could be collected while the ranges are read.
            Rest::Ranges(ranges, pin) if pin.keep() => read_ranges(&shared, *ranges, cancelled),
            Rest::Ranges(..) => Err(mvcc::Error::Compacted.into()),
        }
    }
}

/// Executes a read-only transaction at the published revision.
fn read_all(
    shared: &Arc<SharedStore>,
    request: &TxnRequest,
    cancelled: &dyn Fn() -> bool,
) -> Result<TxnResponse, Error> {
    let store = shared.store.read();
    let point = ReadPoint::new(&store, shared.published.load(Ordering::Acquire));
    let _pin = Pin::new(&shared.pins, point.oldest_needed_revision(request), None);
    drop(store);
    let mut branches = BranchCursor::new(request, point.revision());
    while !branches.step(&shared.store.read(), STEP_ENTRIES) {
        pause(shared, cancelled)?;
    }
    read_ranges(shared, TxnCursor::read(request, point, branches)?, cancelled)
}

fn read_ranges(
    shared: &SharedStore,
    mut cursor: TxnCursor,
    cancelled: &dyn Fn() -> bool,
) -> Result<TxnResponse, Error> {
    loop {
        let range_complete = cursor.gather(&shared.store.read(), STEP_ENTRIES);
        if cursor.digest()? {
            return Ok(cursor.finish());
        }
        if !range_complete {
            pause(shared, cancelled)?;
        }
    }
}

/// Lets other threads run. Fails if the caller has cancelled the read, or if the store is
/// stopping.
fn pause(shared: &SharedStore, cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
    pace::pause(cancelled)?;
    match shared.stopping.load(Ordering::Relaxed) {
        true => Err(Error::Stopped),
        false => Ok(()),
    }
}
