//! Reads a snapshot of etcd, to migrate from etcd.
//!
//! These buckets of the file are read: `key` contains every change by its revision, `lease` the
//! leases, `meta` the revision of the last compaction, `authRoles` and `authUsers` the roles and
//! users, `auth` whether authentication is enabled. Members are not read.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use auth::{Change, ChangeKind, MalformedChange};
use bolt::Db;
use etcdpb::{Key, KeyValue, Record};
use mvcc::{Effect, Store};
use prost::Message;
use prost::bytes::Buf;

/// Size of a key of the bucket `key`: revision, `_`, sub-revision. A deletion has one byte
/// more.
const REVISION_BYTES: usize = 17;
/// Keys of the bucket `meta`: the revisions of the last scheduled and the last finished
/// compaction.
const COMPACTIONS: [&[u8]; 2] = [b"scheduledCompactRev", b"finishedCompactRev"];

/// The protobuf message `leasepb.Lease`, as etcd stores it.
#[derive(Clone, PartialEq, Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl_seconds: i64,
}

/// Reads a snapshot, which is the first `bytes` bytes of the file at `path`.
pub(crate) fn read(path: &Path, bytes: u64) -> Result<Store, bolt::Error> {
    let db = Db::open(File::open(path)?, bytes)?;
    let mut import = EtcdImport { compacted: read_compacted(&db)?, ..EtcdImport::default() };
    import.read_leases(&db)?;
    import.read_auth(&db)?;
    if !db.for_each(b"key", |key, value| import.add_change(key, value))? {
        return Err(bolt::Error::Refused(
            "it has no bucket of keys, so it is not a snapshot of etcd 3".into(),
        ));
    }
    import.finish().map_err(bolt::Error::Refused)
}

/// Returns the revision of the last compaction; -1 if there was none.
fn read_compacted(db: &Db) -> Result<i64, bolt::Error> {
    let mut compacted = -1;
    db.for_each(b"meta", |key, value| {
        if COMPACTIONS.contains(&key) {
            compacted = compacted.max(decode_revision(value)?.0);
        }
        Ok(())
    })?;
    Ok(compacted)
}

/// A store that is built from a snapshot of etcd.
#[derive(Default)]
struct EtcdImport {
    store: Store,
    compacted: i64,
    /// The newest record of each key before the compacted revision. The first change at
    /// or after that revision moves them to the store.
    base: Option<BTreeMap<Key, Record>>,
    base_added: bool,
    /// The highest revision in the file.
    revision: i64,
}

impl EtcdImport {
    /// Adds the leases, with their full TTL.
    fn read_leases(&mut self, db: &Db) -> Result<(), bolt::Error> {
        let store = &mut self.store;
        db.for_each(b"lease", |_, value| {
            let lease = StoredLease::decode(value)
                .map_err(|error| format!("a lease cannot be decoded: {error}"))?;
            let granted =
                Effect::LeaseGranted { id: lease.id, ttl_seconds: lease.ttl_seconds, at_ms: None };
            store.replay(granted).map_err(|error| error.to_string())
        })?;
        Ok(())
    }

    /// Adds roles and users.
    fn read_auth(&mut self, db: &Db) -> Result<(), bolt::Error> {
        let (mut enabled, mut revision) = (false, 0);
        db.for_each(b"auth", |key, value| {
            match key {
                b"authEnabled" => enabled = value == [1],
                b"authRevision" => {
                    let bytes = value.try_into().map_err(|_| "the auth revision is malformed")?;
                    revision = u64::from_be_bytes(bytes);
                }
                _ => {}
            }
            Ok(())
        })?;
        if revision == 0 {
            // Before its first start, a server has no users and roles.
            return Ok(());
        }
        let mut add = |kind: Result<ChangeKind, MalformedChange>| {
            let kind = kind.map_err(|error| error.to_string())?;
            self.replay(Effect::Auth(Change { revision, kind }))
        };
        db.for_each(b"authRoles", |_, value| add(ChangeKind::decode_role(value)))?;
        db.for_each(b"authUsers", |_, value| add(ChangeKind::decode_user(value)))?;
        let kind = if enabled { ChangeKind::Enabled } else { ChangeKind::Disabled };
        add(Ok(kind)).map_err(bolt::Error::Refused)
    }

    /// Adds a change. Changes must be added in the order of their revisions.
    fn add_change(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let (revision, deleted) = decode_revision(key)?;
        self.revision = self.revision.max(revision);
        let pair = KeyValue::decode(value)
            .map_err(|error| format!("a key-value pair cannot be decoded: {error}"))?;
        if pair.key().is_empty() {
            // etcdutl writes an empty pair to raise the revision.
            return Ok(());
        }
        let record = match deleted {
            true => Record::tombstone(pair.key(), revision),
            false => to_record(&pair, revision)?,
        };
        if revision < self.compacted {
            let base = self.base.get_or_insert_default();
            match deleted {
                true => base.remove(record.key()),
                false => base.insert(Key::new(record.key()), record),
            };
            return Ok(());
        }
        self.add_base()?;
        self.replay(Effect::Write(record))
    }

    /// Moves the base records to the store, once, before the first change that stays in the
    /// history.
    fn add_base(&mut self) -> Result<(), String> {
        if self.base_added {
            return Ok(());
        }
        self.base_added = true;
        self.replay(Effect::Compacted { revision: self.compacted })?;
        let base = self.base.take().unwrap_or_default();
        base.into_values().try_for_each(|record| self.replay(Effect::Base(record)))
    }

    fn replay(&mut self, effect: Effect) -> Result<(), String> {
        self.store.replay(effect).map_err(|error| error.to_string())
    }

    /// Returns the store without unreadable history.
    fn finish(mut self) -> Result<Store, String> {
        self.add_base()?;
        let revision = self.revision.max(self.compacted);
        self.replay(Effect::Revision(revision))?;
        while self.store.collect(i64::MAX, usize::MAX) {}
        Ok(self.store)
    }
}

/// Decodes the main part of a key of the bucket `key`. Also returns whether the key marks
/// a deletion.
fn decode_revision(mut bytes: &[u8]) -> Result<(i64, bool), String> {
    let deleted = bytes.len() > REVISION_BYTES;
    if bytes.len() < REVISION_BYTES {
        return Err("a revision is too short".into());
    }
    match bytes.get_i64() {
        revision @ 0.. => Ok((revision, deleted)),
        _ => Err("a revision is negative".into()),
    }
}

/// Converts a stored pair to a record. Fails if its revisions are inconsistent.
fn to_record(pair: &KeyValue, revision: i64) -> Result<Record, String> {
    let (create, version) = (pair.create_revision(), pair.version());
    if version < 1 || create < 1 || create > revision || pair.mod_revision() != revision {
        return Err(format!(
            "the key-value pair of revision {revision} has inconsistent revisions"
        ));
    }
    Ok(Record::put(pair.key(), pair.value(), create, revision, version, pair.lease()))
}
