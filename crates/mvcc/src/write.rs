//! The key changes of one command, all with the same revision.

use etcdpb::rpc::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, ResponseHeader,
};
use etcdpb::{Key, KeyValue, Record};

use crate::access::{STEP_KEYS, StoreAccess};
use crate::effect::{Effect, Effects};
use crate::error::Error;
use crate::span::Span;
use crate::span_set::SpanSet;
use crate::store::Store;
use crate::txn_cursor::OpenRanges;

/// Fails if `request` cannot be executed on the state at `revision`.
pub(crate) fn check_put(store: &Store, revision: i64, request: &PutRequest) -> Result<(), Error> {
    if request.lease != 0 && store.leases.get(request.lease).is_none() {
        return Err(Error::LeaseNotFound);
    }
    let needs_previous = request.ignore_value || request.ignore_lease;
    let exists = || store.index.get(&request.key).and_then(|e| e.live_at(revision)).is_some();
    if needs_previous && !exists() {
        return Err(Error::KeyNotFound);
    }
    Ok(())
}

/// The key changes of one command. If there is at least one, the revision of the store
/// grows by one.
pub(crate) struct Write<'a, A> {
    pub(crate) store: &'a mut A,
    effects: &'a mut Effects,
    /// The revision of the changes.
    pub(crate) next_revision: i64,
    changed: bool,
    /// The spans that were deleted, without the keys that were put again. Another deletion
    /// need not visit their keys.
    emptied: SpanSet,
    /// The ranges of a transaction that are not complete.
    pub(crate) open_ranges: OpenRanges,
}

impl<'a, A: StoreAccess> Write<'a, A> {
    pub(crate) fn new(store: &'a mut A, effects: &'a mut Effects) -> Self {
        let next_revision = store.revision + 1;
        let open_ranges = OpenRanges::new(next_revision);
        let (changed, emptied) = (false, SpanSet::default());
        Write { store, effects, next_revision, changed, emptied, open_ranges }
    }

    /// Returns the revision that a read at this point of the command uses.
    pub(crate) fn revision(&self) -> i64 {
        if self.changed { self.next_revision } else { self.store.revision }
    }

    /// Advances the revision of the store if there are changes. Returns the revision.
    pub(crate) fn finish(self) -> i64 {
        self.finish_txn().0
    }

    /// Like [`Write::finish`]. Also returns the ranges that are not complete.
    pub(crate) fn finish_txn(self) -> (i64, OpenRanges) {
        let revision = self.revision();
        self.store.revision = revision;
        (revision, self.open_ranges)
    }

    /// Adds the change that makes `record` the newest record of its key.
    pub(crate) fn add(&mut self, record: Record) {
        self.changed = true;
        self.effects.push(Effect::Write(record.clone()));
        let recorded = self.open_ranges.is_recording().then(|| record.clone());
        let before = self.store.install(record);
        if let Some(record) = recorded {
            self.open_ranges.record(record, before);
        }
    }

    /// Writes one key. The caller must have called [`check_put`].
    pub(crate) fn put(&mut self, request: &PutRequest) -> PutResponse {
        let entry = self.store.index.get(&request.key);
        let previous = entry.map(|e| e.latest()).filter(|r| !r.is_tombstone()).cloned();
        let (create, version) = match &previous {
            Some(p) => (p.create_revision(), p.version() + 1),
            None => (self.next_revision, 1),
        };
        let value = match &previous {
            Some(p) if request.ignore_value => p.value(),
            _ => &request.value,
        };
        let lease = match &previous {
            Some(p) if request.ignore_lease => p.lease(),
            _ => request.lease,
        };
        self.add(Record::put(&request.key, value, create, self.next_revision, version, lease));
        self.emptied.remove(&request.key);
        PutResponse {
            header: header(self.revision()),
            prev_kv: previous.filter(|_| request.prev_kv).map(KeyValue::from),
        }
    }

    /// Deletes the keys of a span, in steps.
    pub(crate) fn delete_range(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let span = Span::new(&request.key, &request.range_end);
        let parts = match span.as_point() {
            Some(_) => vec![span],
            None => self.emptied.insert(&span),
        };
        let (mut deleted, mut prev_kvs) = (0, Vec::new());
        for part in parts {
            self.delete_part(&part, |records| {
                deleted += records.len() as i64;
                let previous = records.drain(..).filter(|_| request.prev_kv);
                prev_kvs.extend(previous.map(KeyValue::from));
            });
        }
        DeleteRangeResponse { header: header(self.revision()), deleted, prev_kvs }
    }

    /// Deletes the keys of a span, and passes their records to `deleted`, which removes them
    /// from the vector.
    fn delete_part(&mut self, span: &Span, mut deleted: impl FnMut(&mut Vec<Record>)) {
        let (mut live, mut after) = (Vec::new(), None);
        loop {
            let (visited, last) = gather_live(self.store, span, after.as_ref(), &mut live);
            for record in &live {
                self.add(Record::tombstone(record.key(), self.next_revision));
            }
            deleted(&mut live);
            self.store.visited(visited);
            after = last;
            if after.is_none() {
                return;
            }
        }
    }

    /// Deletes the keys of a lease, in steps.
    pub(crate) fn delete_lease_keys(&mut self, id: i64) {
        loop {
            let keys = self.store.leases.get(id).map(|lease| &lease.keys);
            let keys: Vec<_> = keys.into_iter().flatten().take(STEP_KEYS).cloned().collect();
            let visited = keys.len();
            for key in keys {
                self.add(Record::tombstone(key.as_bytes(), self.next_revision));
            }
            if visited < STEP_KEYS {
                return;
            }
            self.store.visited(visited);
        }
    }
}

/// Visits at most [`STEP_KEYS`] keys of `span` after `after`, and appends the newest records
/// of those that exist to `live`. Returns the number of visited keys and the last one; `None`
/// if no key is left.
fn gather_live(
    store: &Store,
    span: &Span,
    after: Option<&Key>,
    live: &mut Vec<Record>,
) -> (usize, Option<Key>) {
    let (mut visited, mut last) = (0, None);
    for entry in store.index.range(span, after.map(Key::as_bytes)) {
        if visited == STEP_KEYS {
            return (visited, last.map(Key::new));
        }
        visited += 1;
        last = Some(entry.key());
        live.extend(Some(entry.latest()).filter(|record| !record.is_tombstone()).cloned());
    }
    (visited, None)
}

/// Returns a response header with only the revision set.
pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..Default::default() })
}
