//! Commands, and the one door through which they change the state.

use etcdpb::rpc::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, ResponseHeader, TxnRequest,
    TxnResponse,
};
use etcdpb::{Key, KeyValue, Record};

use crate::effect::{Effect, Effects};
use crate::{Alarm, Error, Span, Store, txn};

/// A change that somebody asks for. The request inside is well-formed: keys
/// are not empty, flags do not contradict each other.
#[derive(Clone, Debug)]
pub enum Command {
    /// Write one key.
    Put(PutRequest),
    /// Delete the keys of a span.
    DeleteRange(DeleteRangeRequest),
    /// Compare, then do one list of operations or the other, atomically.
    Txn(TxnRequest),
    /// Give up history before a revision.
    Compact {
        /// The first revision that must stay readable.
        revision: i64,
    },
    /// Create a lease.
    LeaseGrant {
        /// Its identity, chosen by the caller or drawn by the pipeline.
        id: i64,
        /// Its TTL in seconds, already raised to the minimum.
        ttl_seconds: i64,
    },
    /// Give a lease its full TTL again, as of the store time.
    LeaseRenew {
        /// Its identity.
        id: i64,
    },
    /// End a lease and delete its keys.
    LeaseRevoke {
        /// Its identity.
        id: i64,
    },
    /// Raise or clear an alarm.
    Alarm {
        /// Which one.
        alarm: Alarm,
        /// Whether it is to be raised.
        raised: bool,
    },
}

/// The answer to a [`Command`]. Headers carry the revision and nothing else.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To [`Command::Put`].
    Put(PutResponse),
    /// To [`Command::DeleteRange`].
    DeleteRange(DeleteRangeResponse),
    /// To [`Command::Txn`].
    Txn(TxnResponse),
    /// To the commands whose answer is that they were done, with the revision
    /// after them.
    Done {
        /// The store's revision.
        revision: i64,
    },
    /// To [`Command::Alarm`].
    Alarm {
        /// Whether there was anything to raise or to clear.
        changed: bool,
        /// The store's revision.
        revision: i64,
    },
}

impl Store {
    /// Carries out `command`, or refuses it and changes nothing (but for an alarm
    /// that says that the quota is used up). What must survive is appended to
    /// `effects`.
    pub fn apply(&mut self, command: &Command, effects: &mut Effects) -> Result<Reply, Error> {
        self.admit(command, effects)?;
        match command {
            Command::Put(request) => {
                check_put(self, self.revision, request)?;
                let mut write = Write::new(self, effects);
                let response = write.put(request);
                write.finish();
                Ok(Reply::Put(response))
            }
            Command::DeleteRange(request) => {
                let mut write = Write::new(self, effects);
                let response = write.delete_range(request);
                write.finish();
                Ok(Reply::DeleteRange(response))
            }
            Command::Txn(request) => txn::apply(self, request, effects).map(Reply::Txn),
            Command::Compact { revision } => self.compact(*revision, effects),
            Command::LeaseGrant { id, ttl_seconds } => {
                self.leases.check_grant(*id, *ttl_seconds)?;
                let (id, ttl_seconds, at_ms) = (*id, *ttl_seconds, self.clock_ms);
                self.leases.insert(id, ttl_seconds, at_ms);
                effects.push(Effect::LeaseGranted { id, ttl_seconds, at_ms: Some(at_ms) });
                Ok(self.done())
            }
            Command::LeaseRenew { id } => {
                self.leases.renew(*id, self.clock_ms)?;
                effects.push(Effect::LeaseRenewed { id: *id, at_ms: self.clock_ms });
                Ok(self.done())
            }
            Command::LeaseRevoke { id } => self.revoke(*id, effects),
            Command::Alarm { alarm, raised } => {
                let changed = self.set_alarm(*alarm, *raised, effects);
                Ok(Reply::Alarm { changed, revision: self.revision })
            }
        }
    }

    fn done(&self) -> Reply {
        Reply::Done { revision: self.revision }
    }

    fn compact(&mut self, revision: i64, effects: &mut Effects) -> Result<Reply, Error> {
        if revision <= self.compacted {
            return Err(Error::Compacted);
        }
        if revision > self.revision {
            return Err(Error::FutureRevision);
        }
        self.compacted = revision;
        effects.push(Effect::Compacted { revision });
        Ok(self.done())
    }

    fn revoke(&mut self, id: i64, effects: &mut Effects) -> Result<Reply, Error> {
        let lease = self.leases.get(id).ok_or(Error::LeaseNotFound)?;
        let keys: Vec<_> = lease.keys.iter().cloned().collect();
        let mut write = Write::new(self, effects);
        for key in keys {
            write.record(Record::tombstone(key, write.next));
        }
        write.finish();
        self.leases.remove(id);
        effects.push(Effect::LeaseRevoked { id });
        Ok(self.done())
    }
}

/// Whether `request` can be carried out on the state as of `revision`.
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

/// The changes of one command, all in one revision, which is used up only if
/// there are any.
pub(crate) struct Write<'a> {
    pub(crate) store: &'a mut Store,
    effects: &'a mut Effects,
    /// The revision of the changes.
    next: i64,
    changed: bool,
}

impl<'a> Write<'a> {
    pub(crate) fn new(store: &'a mut Store, effects: &'a mut Effects) -> Self {
        let next = store.revision + 1;
        Write { store, effects, next, changed: false }
    }

    /// The revision that a reader inside the command sees.
    pub(crate) fn revision(&self) -> i64 {
        if self.changed { self.next } else { self.store.revision }
    }

    /// Ends the command; from here on everybody may see its changes.
    pub(crate) fn finish(self) -> i64 {
        self.store.revision = self.revision();
        self.store.revision
    }

    fn record(&mut self, record: Record) {
        self.changed = true;
        self.effects.push(Effect::Write(record.clone()));
        self.store.install(record);
    }

    /// Writes one key; [`check_put`] has passed.
    pub(crate) fn put(&mut self, request: &PutRequest) -> PutResponse {
        let entry = self.store.index.get(&request.key);
        let previous = entry.map(|e| e.latest()).filter(|r| !r.is_tombstone()).cloned();
        let (create, version) = match &previous {
            Some(p) => (p.create_revision(), p.version() + 1),
            None => (self.next, 1),
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
        self.record(Record::put(key, value, create, self.next, version, lease));
        PutResponse {
            header: header(self.revision()),
            prev_kv: previous.filter(|_| request.prev_kv).map(KeyValue::from),
        }
    }

    /// Deletes the keys of a span.
    pub(crate) fn delete_range(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let span = Span::new(&request.key, &request.range_end);
        let gone: Vec<Record> = self
            .store
            .index
            .range(&span, None)
            .map(|(_, entry)| entry.latest())
            .filter(|record| !record.is_tombstone())
            .cloned()
            .collect();
        for record in &gone {
            self.record(Record::tombstone(record.key().clone(), self.next));
        }
        let deleted = gone.len() as i64;
        let previous = if request.prev_kv { gone } else { Vec::new() };
        DeleteRangeResponse {
            header: header(self.revision()),
            deleted,
            prev_kvs: previous.into_iter().map(KeyValue::from).collect(),
        }
    }
}

pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..Default::default() })
}
