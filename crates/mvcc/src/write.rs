//! The key changes of one command, all with the same revision.

use etcdpb::rpc::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, ResponseHeader,
};
use etcdpb::{Key, KeyValue, Record};

use crate::effect::{Effect, Effects};
use crate::error::Error;
use crate::span::Span;
use crate::store::Store;

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
pub(crate) struct Write<'a> {
    pub(crate) store: &'a mut Store,
    effects: &'a mut Effects,
    /// The revision of the changes.
    pub(crate) next_revision: i64,
    changed: bool,
}

impl<'a> Write<'a> {
    pub(crate) fn new(store: &'a mut Store, effects: &'a mut Effects) -> Self {
        let next_revision = store.revision + 1;
        Write { store, effects, next_revision, changed: false }
    }

    /// Returns the revision that a read at this point of the command uses.
    pub(crate) fn revision(&self) -> i64 {
        if self.changed { self.next_revision } else { self.store.revision }
    }

    /// Advances the revision of the store if there are changes. Returns the revision.
    pub(crate) fn finish(self) -> i64 {
        self.store.revision = self.revision();
        self.store.revision
    }

    /// Adds the change that makes `record` the newest record of its key.
    pub(crate) fn add(&mut self, record: Record) {
        self.changed = true;
        self.effects.push(Effect::Write(record.clone()));
        self.store.install(record);
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
        let key = match entry {
            Some(entry) => entry.latest().key().clone(),
            None => Key::new(&request.key),
        };
        self.add(Record::put(key, value, create, self.next_revision, version, lease));
        PutResponse {
            header: header(self.revision()),
            prev_kv: previous.filter(|_| request.prev_kv).map(KeyValue::from),
        }
    }

    /// Deletes the keys of a span.
    pub(crate) fn delete_range(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let span = Span::new(&request.key, &request.range_end);
        let live: Vec<Record> = self
            .store
            .index
            .range(&span, None)
            .map(|(_, entry)| entry.latest())
            .filter(|record| !record.is_tombstone())
            .cloned()
            .collect();
        for record in &live {
            self.add(Record::tombstone(record.key().clone(), self.next_revision));
        }
        let deleted = live.len() as i64;
        let previous = if request.prev_kv { live } else { Vec::new() };
        DeleteRangeResponse {
            header: header(self.revision()),
            deleted,
            prev_kvs: previous.into_iter().map(KeyValue::from).collect(),
        }
    }
}

/// Returns a response header with only the revision set.
pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..Default::default() })
}
