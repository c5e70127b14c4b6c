//! Reads a snapshot of etcd, to migrate from it.
//!
//! Three buckets of the file matter: `key` contains every change by its revision, `lease`
//! the leases, `meta` the revision of the last compaction. Users, roles and members are
//! not read.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use bolt::Db;
use etcdpb::{Key, KeyValue, Record};
use mvcc::{Effect, Store};
use prost::Message;
use prost::bytes::Buf;

const REVISION_BYTES: usize = 17;
/// Keys of the revisions of compactions: scheduled and finished.
const COMPACTIONS: [&[u8]; 2] = [b"scheduledCompactRev", b"finishedCompactRev"];

/// `leasepb.Lease`, as etcd stores it.
#[derive(Clone, PartialEq, Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl_seconds: i64,
}

/// Reads the store in the first `bytes` of the file at `path`.
pub(crate) fn read(path: &Path, bytes: u64) -> Result<Store, bolt::Error> {
    let db = Db::open(File::open(path)?, bytes)?;
    let mut import = EtcdImport { compacted: compacted(&db)?, ..EtcdImport::default() };
    import.leases(&db)?;
    if !db.for_each(b"key", |key, value| import.change(key, value))? {
        return Err(bolt::Error::Refused(
            "it has no bucket of keys, so it is not of etcd 3".into(),
        ));
    }
    import.finish().map_err(bolt::Error::Refused)
}

fn compacted(db: &Db) -> Result<i64, bolt::Error> {
    let mut compacted = -1;
    db.for_each(b"meta", |key, value| {
        if COMPACTIONS.contains(&key) {
            compacted = compacted.max(revision_of(value)?.0);
        }
        Ok(())
    })?;
    Ok(compacted)
}

/// A store under construction.
#[derive(Default)]
struct EtcdImport {
    store: Store,
    compacted: i64,
    /// Records before the compacted revision, until the first later change moves them
    /// to the store.
    base: Option<BTreeMap<Key, Record>>,
    events_begun: bool,
    revision: i64,
}

impl EtcdImport {
    fn leases(&mut self, db: &Db) -> Result<(), bolt::Error> {
        let store = &mut self.store;
        db.for_each(b"lease", |_, value| {
            let lease = StoredLease::decode(value).map_err(|error| format!("a lease: {error}"))?;
            let granted =
                Effect::LeaseGranted { id: lease.id, ttl_seconds: lease.ttl_seconds, at_ms: None };
            store.replay(granted).map_err(|error| error.to_string())
        })?;
        Ok(())
    }

    /// Adds a change. Changes come in the order of their revisions.
    fn change(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let (revision, deleted) = revision_of(key)?;
        self.revision = self.revision.max(revision);
        let pair = KeyValue::decode(value).map_err(|error| format!("a key-value pair: {error}"))?;
        if pair.key().is_empty() {
            // etcdutl writes an empty pair to raise the revision.
            return Ok(());
        }
        let record = match deleted {
            true => Record::tombstone(Key::new(pair.key()), revision),
            false => record_of(&pair, revision)?,
        };
        if revision < self.compacted {
            let base = self.base.get_or_insert_default();
            match deleted {
                true => base.remove(record.key()),
                false => base.insert(record.key().clone(), record),
            };
            return Ok(());
        }
        self.begin_events()?;
        self.replay(Effect::Write(record))
    }

    fn begin_events(&mut self) -> Result<(), String> {
        if self.events_begun {
            return Ok(());
        }
        self.events_begun = true;
        self.replay(Effect::Compacted { revision: self.compacted })?;
        let base = self.base.take().unwrap_or_default();
        base.into_values().try_for_each(|record| self.replay(Effect::Base(record)))
    }

    fn replay(&mut self, effect: Effect) -> Result<(), String> {
        self.store.replay(effect).map_err(|error| error.to_string())
    }

    fn finish(mut self) -> Result<Store, String> {
        self.begin_events()?;
        let revision = self.revision.max(self.compacted);
        self.replay(Effect::Revision(revision))?;
        while self.store.collect(i64::MAX, usize::MAX) {}
        Ok(self.store)
    }
}

/// Decodes the main part of a stored revision, and whether it marks a deletion.
fn revision_of(mut bytes: &[u8]) -> Result<(i64, bool), String> {
    let deleted = bytes.len() > REVISION_BYTES;
    if bytes.len() < REVISION_BYTES {
        return Err("a revision is too short".into());
    }
    match bytes.get_i64() {
        revision @ 0.. => Ok((revision, deleted)),
        _ => Err("a revision is negative".into()),
    }
}

fn record_of(pair: &KeyValue, revision: i64) -> Result<Record, String> {
    let (create, version) = (pair.create_revision(), pair.version());
    if version < 1 || create < 1 || create > revision || pair.mod_revision() != revision {
        return Err(format!(
            "the key-value pair of revision {revision} has inconsistent revisions"
        ));
    }
    let key = Key::new(pair.key());
    Ok(Record::put(key, pair.value(), create, revision, version, pair.lease()))
}
