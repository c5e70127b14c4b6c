//! The large ranges of a transaction. They are read after its other operations, in bounded
//! steps, while other threads use the store.
//!
//! A range must see the changes that its transaction makes before it, and none of the
//! changes after it. But all changes of a transaction have the same revision, so a read at
//! this revision sees all of them. Therefore the changes after a range are recorded, with
//! the record that each key had before. The range reads that record instead.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{RangeResponse, TxnResponse};
use etcdpb::{KeyValue, Record};
use prost::Message;

use crate::error::Error;
use crate::range::RangeCursor;
use crate::store::Store;

/// Maximum size of the ranges of a response in bytes: the largest message that etcd sends.
const MAX_RESPONSE_BYTES: usize = i32::MAX as usize;

/// The ranges of a transaction that are not complete.
pub(crate) struct OpenRanges {
    /// The revision of the transaction's changes.
    changes_revision: i64,
    /// The ranges in the order of the transaction.
    ranges: Vec<OpenRange>,
    /// Whether a range reads `changes_revision`. It must not see further changes.
    recording: bool,
    /// The changes after the first such range, in order.
    changes: Vec<Change>,
}

struct OpenRange {
    /// Its position among all ranges of the transaction.
    position: usize,
    cursor: RangeCursor,
    /// Number of recorded changes before the range.
    changes_before: usize,
}

/// The key of a record. A copy of the key would need more memory than the record, which the
/// store has as well.
struct RecordKey(Record);

impl Borrow<[u8]> for RecordKey {
    fn borrow(&self) -> &[u8] {
        self.0.key()
    }
}

impl PartialEq for RecordKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for RecordKey {}

impl Hash for RecordKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

/// A change of a key.
struct Change {
    key: RecordKey,
    /// The record before the change, if the key existed.
    before: Option<Record>,
}

impl OpenRanges {
    pub(crate) fn new(changes_revision: i64) -> Self {
        OpenRanges { changes_revision, ranges: Vec::new(), recording: false, changes: Vec::new() }
    }

    /// Adds a range. `position` is its position among all ranges of the transaction.
    pub(crate) fn push(&mut self, position: usize, cursor: RangeCursor) {
        self.recording |= cursor.revision() == self.changes_revision;
        let changes_before = self.changes.len();
        self.ranges.push(OpenRange { position, cursor, changes_before });
    }

    /// Whether the transaction's next changes must be recorded.
    pub(crate) fn is_recording(&self) -> bool {
        self.recording
    }

    /// Records a change of a key to `record`. `before` is the record before the change, if
    /// the key existed.
    pub(crate) fn record(&mut self, record: Record, before: Option<Record>) {
        self.changes.push(Change { key: RecordKey(record), before });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// A transaction of which only large ranges have to be read. The last range is read first:
/// then the recorded changes that the other ranges need are added step by step.
pub struct TxnCursor {
    /// The response. The ranges in `open` and `complete` are empty in it.
    response: TxnResponse,
    open: OpenRanges,
    /// The records that keys had before the changes after the last open range.
    before: HashMap<RecordKey, Option<Record>>,
    /// Whether the last open range has visited all its keys.
    gathered: bool,
    /// Complete ranges with their positions; the last of the transaction is the first here.
    complete: Vec<(usize, RangeResponse)>,
    /// Number of pairs in `complete`.
    complete_pairs: usize,
    /// The size in bytes that the other ranges of the response may still have.
    bytes_left: usize,
}

impl TxnCursor {
    pub(crate) fn new(response: TxnResponse, open: OpenRanges) -> Self {
        TxnCursor {
            response,
            open,
            before: HashMap::new(),
            gathered: false,
            complete: Vec::new(),
            complete_pairs: 0,
            bytes_left: MAX_RESPONSE_BYTES,
        }
    }

    /// Returns the first revision whose history the ranges need. The store must not collect
    /// it until they are complete.
    pub fn oldest_needed_revision(&self) -> i64 {
        // A collection at the revision of the changes removes the keys that the transaction
        // has deleted. An earlier range needs them.
        let before_changes = self.open.changes_revision - 1;
        self.open.ranges.iter().map(|range| range.cursor.revision()).fold(before_changes, i64::min)
    }

    /// Returns the approximate memory of the ranges in bytes, without keys and values.
    pub fn memory_bytes(&self) -> usize {
        let OpenRanges { ranges, changes, .. } = &self.open;
        let gathered = ranges.iter().map(|range| range.cursor.memory_bytes()).sum::<usize>();
        let complete = self.complete_pairs * size_of::<KeyValue>();
        size_of_val(&ranges[..]) + size_of_val(&changes[..]) + gathered + complete
    }

    /// Visits at most `max_keys` keys of one range. Returns whether this range is complete.
    /// Call [`TxnCursor::digest`] after each call.
    pub fn gather(&mut self, store: &Store, max_keys: usize) -> bool {
        let OpenRanges { ranges, changes, changes_revision, .. } = &mut self.open;
        let Some(range) = ranges.last_mut() else { return true };
        let revision = range.cursor.revision();
        if revision < *changes_revision {
            self.gathered = range.cursor.step(store, max_keys);
        } else if changes.len() == range.changes_before {
            let before = &self.before;
            self.gathered = range.cursor.step_with(store, max_keys, |entry| {
                before.get(entry.key()).map_or_else(|| entry.live_at(revision), Option::as_ref)
            });
        }
        self.gathered
    }

    /// Returns the number of bytes of values that the next [`TxnCursor::digest`] sorts.
    pub fn bytes_to_sort(&self) -> usize {
        let gathered = self.open.ranges.last().filter(|_| self.gathered);
        gathered.map_or(0, |range| range.cursor.bytes_to_sort())
    }

    /// Processes what the last [`TxnCursor::gather`] found. It does not need the store, and
    /// may take long. Returns whether all ranges are complete.
    ///
    /// # Errors
    /// Fails if the response is too large.
    pub fn digest(&mut self) -> Result<bool, Error> {
        if std::mem::take(&mut self.gathered)
            && let Some(OpenRange { position, cursor, .. }) = self.open.ranges.pop()
        {
            let response = cursor.finish();
            let left = self.bytes_left.checked_sub(response.encoded_len());
            self.bytes_left = left.ok_or(Error::ResponseTooLarge)?;
            self.complete_pairs += response.kvs.len();
            self.complete.push((position, response));
        }
        let Some(next) = self.open.ranges.last() else { return Ok(true) };
        // An earlier change of a key replaces a later one.
        for change in self.open.changes.drain(next.changes_before..).rev() {
            self.before.insert(change.key, change.before);
        }
        Ok(false)
    }

    /// Returns the response. [`TxnCursor::digest`] must have returned true.
    pub fn finish(mut self) -> TxnResponse {
        fill_in(&mut self.response, &mut 0, &mut self.complete);
        self.response
    }
}

/// Moves complete ranges into the response of a transaction. `position` is the number of
/// ranges before it.
fn fill_in(
    response: &mut TxnResponse,
    position: &mut usize,
    complete: &mut Vec<(usize, RangeResponse)>,
) {
    for op in &mut response.responses {
        match &mut op.response {
            Some(Response::ResponseRange(range)) => {
                if let Some((_, found)) = complete.pop_if(|(at, _)| at == position) {
                    *range = found;
                }
                *position += 1;
            }
            Some(Response::ResponseTxn(nested)) => fill_in(nested, position, complete),
            _ => {}
        }
    }
}

impl std::fmt::Debug for TxnCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TxnCursor")
            .field("open_ranges", &self.open.ranges.len())
            .finish_non_exhaustive()
    }
}
