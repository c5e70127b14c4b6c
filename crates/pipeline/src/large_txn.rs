//! The part of a transaction that reads: its ranges, and for a read-only transaction also
//! its compares. It runs in steps, and writers run between the steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{TxnRequest, TxnResponse};
use mvcc::{BranchCursor, ReadPoint, Store, TxnCursor};

use crate::Error;
use crate::pace::{self, SMALL_SORT_BYTES, STEP_ENTRIES};
use crate::pins::Pin;
use crate::shared_store::SharedStore;

/// Maximum number of compares and operations of a small transaction. Each may visit
/// [`STEP_ENTRIES`] keys, so it visits about as many as a small range.
const SMALL_TXN_OPERATIONS: usize = 8;
/// How long the history for the ranges of a transaction that was executed stays readable
/// until [`LargeTxn::finish_unless`] is called. After that, a compaction can make it fail.
const EXECUTED_LIFETIME: Duration = Duration::from_secs(60);

/// A transaction whose ranges have to be read.
pub struct LargeTxn {
    shared: Arc<SharedStore>,
    rest: Rest,
    held_bytes: Arc<AtomicUsize>,
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
        LargeTxn { shared: shared.clone(), rest: Rest::All(request), held_bytes: Arc::default() }
    }

    /// Creates the rest of a transaction that was executed. The caller must prevent the
    /// collection of history meanwhile.
    pub(crate) fn executed(shared: &Arc<SharedStore>, ranges: Box<TxnCursor>) -> Self {
        let expiry = Instant::now() + EXECUTED_LIFETIME;
        let pin = Pin::new(&shared.pins, ranges.oldest_needed_revision(), Some(expiry));
        let rest = Rest::Ranges(ranges, pin);
        LargeTxn { shared: shared.clone(), rest, held_bytes: Arc::default() }
    }

    /// Whether the transaction was executed, and only its ranges are left. An error then does
    /// not mean that nothing was changed.
    pub fn is_executed(&self) -> bool {
        matches!(self.rest, Rest::Ranges(..))
    }

    /// Returns the approximate memory in bytes that the transaction needs until it is
    /// finished, without its request.
    pub fn waiting_bytes(&self) -> usize {
        match &self.rest {
            Rest::All(_) => 0,
            Rest::Ranges(ranges, _) => ranges.memory_bytes(),
        }
    }

    /// Returns the counter of the memory in bytes that the ranges occupy, without keys and
    /// values. [`LargeTxn::finish_unless`] updates it before it calls `cancelled`.
    pub fn held_bytes(&self) -> Arc<AtomicUsize> {
        self.held_bytes.clone()
    }

    /// Reads the rest of the transaction in steps. Writers can run between the steps.
    /// `cancelled` is called between the steps.
    ///
    /// # Errors
    /// Fails if a range of a read-only transaction requests a revision that is compacted or
    /// in the future, if the history for a transaction that was executed is no longer kept,
    /// if the response is too large, if `cancelled` returns true, or if the store is stopping.
    pub fn finish_unless(self, cancelled: &dyn Fn() -> bool) -> Result<TxnResponse, Error> {
        let LargeTxn { shared, rest, held_bytes } = self;
        match rest {
            Rest::All(request) => read_all(&shared, &request, &held_bytes, cancelled),
            Rest::Ranges(ranges, pin) => {
                let kept = keep(&shared, pin)?;
                read_ranges(&shared, *ranges, &kept, &held_bytes, cancelled)
            }
        }
    }
}

/// Returns a pin of the same history that does not expire, so that the history is not
/// collected while the ranges are read. Fails if it may have been collected already.
fn keep(shared: &SharedStore, pin: Pin) -> Result<Pin, Error> {
    if pin.keep() {
        return Ok(pin);
    }
    let store = shared.store.read();
    if pin.revision() < store.compacted() {
        return Err(mvcc::Error::Compacted.into());
    }
    Ok(Pin::new(&shared.pins, pin.revision(), None))
}

/// Executes a read-only transaction on the calling thread, if it has few operations that
/// visit few keys; `None` if it has more.
pub(crate) fn read_small(
    shared: &SharedStore,
    request: &TxnRequest,
) -> Result<Option<TxnResponse>, Error> {
    if operations(request) > SMALL_TXN_OPERATIONS {
        return Ok(None);
    }
    let store = shared.store.read();
    let point = ReadPoint::new(&store, shared.published.load(Ordering::Acquire));
    let mut branches = BranchCursor::new(request, point.revision());
    if !branches.step(&store, STEP_ENTRIES) {
        return Ok(None);
    }
    let mut cursor = TxnCursor::read(request, point, branches)?;
    loop {
        let range_complete = cursor.gather(&store, STEP_ENTRIES);
        if cursor.bytes_to_sort() > SMALL_SORT_BYTES {
            return Ok(None);
        }
        match cursor.digest()? {
            true => return Ok(Some(cursor.finish())),
            false if range_complete => {}
            false => return Ok(None),
        }
    }
}

/// Returns the number of compares and operations of a transaction and of nested ones.
fn operations(request: &TxnRequest) -> usize {
    let ops = request.success.iter().chain(&request.failure);
    let nested = ops.map(|op| match &op.request {
        Some(Request::RequestTxn(nested)) => 1 + operations(nested),
        _ => 1,
    });
    request.compare.len() + nested.sum::<usize>()
}

/// Executes a read-only transaction at the published revision.
fn read_all(
    shared: &Arc<SharedStore>,
    request: &TxnRequest,
    held_bytes: &AtomicUsize,
    cancelled: &dyn Fn() -> bool,
) -> Result<TxnResponse, Error> {
    let store = shared.store.read();
    let point = ReadPoint::new(&store, shared.published.load(Ordering::Acquire));
    let pin = Pin::new(&shared.pins, point.oldest_needed_revision(request), None);
    drop(store);
    let mut branches = BranchCursor::new(request, point.revision());
    while !step(shared, &pin, |store| branches.step(store, STEP_ENTRIES))? {
        pause(shared, cancelled)?;
    }
    let cursor = TxnCursor::read(request, point, branches)?;
    read_ranges(shared, cursor, &pin, held_bytes, cancelled)
}

fn read_ranges(
    shared: &SharedStore,
    mut cursor: TxnCursor,
    pin: &Pin,
    held_bytes: &AtomicUsize,
    cancelled: &dyn Fn() -> bool,
) -> Result<TxnResponse, Error> {
    let mut ranges_since_pause = 0;
    loop {
        let range_complete = step(shared, pin, |store| cursor.gather(store, STEP_ENTRIES))?;
        if cursor.digest()? {
            return Ok(cursor.finish());
        }
        ranges_since_pause += 1;
        // A transaction may have thousands of small ranges.
        if !range_complete || ranges_since_pause == STEP_ENTRIES {
            ranges_since_pause = 0;
            held_bytes.store(cursor.memory_bytes(), Ordering::Relaxed);
            pause(shared, cancelled)?;
        }
    }
}

/// Makes a step of a read. Fails if the history that it needs does not exist any more.
fn step<T>(shared: &SharedStore, pin: &Pin, step: impl FnOnce(&Store) -> T) -> Result<T, Error> {
    let store = shared.store.read();
    pin.check(&store)?;
    Ok(step(&store))
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

#[cfg(test)]
mod tests {
    use data_dir::Identity;
    use etcdpb::rpc::{PutRequest, RangeRequest, RequestOp};
    use futures_executor::block_on;
    use mvcc::Command;

    use super::*;
    use crate::{ClientId, Pipeline, PipelineOptions, TxnRead, WalMode};

    fn put(key: &str) -> PutRequest {
        PutRequest { key: key.as_bytes().to_vec().into(), ..Default::default() }
    }

    /// A transaction that has put a key and still has to read a large range.
    fn executed(store: &Pipeline) -> TxnRead {
        let all = RangeRequest {
            key: b"key".to_vec().into(),
            range_end: b"kez".to_vec().into(),
            ..Default::default()
        };
        let ops = [Request::RequestPut(put("a")), Request::RequestRange(all)];
        let success = ops.map(|op| RequestOp { request: Some(op) }).to_vec();
        block_on(store.txn(ClientId(0), TxnRequest { success, ..Default::default() }, 0)).unwrap()
    }

    /// Lets all pins expire.
    fn expire_pins(store: &Pipeline) {
        store.shared().pins.lock().oldest(Instant::now() + 2 * EXECUTED_LIFETIME);
    }

    #[test]
    fn an_expired_pin_matters_only_after_a_compaction() {
        let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
        let store = Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap();
        for n in 0..3000 {
            block_on(store.propose(ClientId(0), Command::Put(put(&format!("key{n}"))), 0)).unwrap();
        }
        let txn = executed(&store);
        assert!(matches!(&txn, TxnRead::Large(txn) if txn.is_executed()));
        expire_pins(&store);
        txn.finish().expect("nothing was compacted");

        let txn = executed(&store);
        expire_pins(&store);
        let revision = store.revision();
        block_on(store.propose(ClientId(0), Command::Compact { revision }, 0)).unwrap();
        let error = txn.finish().unwrap_err();
        assert!(matches!(error, Error::Refused(mvcc::Error::Compacted)), "{error}");
    }
}
