//! Records: the immutable, shared state of a key at one revision.
//!
//! A record is one allocation behind a thin pointer. It contains the revisions, the
//! version, the lease, a pointer to the shared key, and the bytes of the value. The
//! index, the history and all responses share it. In a cluster with a million nodes,
//! millions of records use most of the store's memory, so a field must be worth its size.

use std::borrow::Borrow;
use std::cmp::Ordering;

use triomphe::ThinArc;

/// A key. All its records and the index share one allocation. Keys are ordered by their
/// bytes.
#[derive(Clone)]
pub struct Key(ThinArc<(), u8>);

impl Key {
    /// Copies `bytes` into a new shared key.
    pub fn new(bytes: &[u8]) -> Self {
        Key(ThinArc::from_header_and_slice((), bytes))
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.slice
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // `Borrow` requires that a key has the same hash as its bytes.
        self.as_bytes().hash(state);
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

#[derive(Clone)]
struct Meta {
    key: Key,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: i64,
}

/// The state of a key from one revision on: a value, or a *tombstone* if the key was
/// deleted.
#[derive(Clone)]
pub struct Record(ThinArc<Meta, u8>);

impl Record {
    /// Creates the record of a put at `mod_revision`. `version` is the number of puts
    /// since the key was created, including the one that created it. `lease` is 0 for
    /// none.
    pub fn put(
        key: Key,
        value: &[u8],
        create_revision: i64,
        mod_revision: i64,
        version: i64,
        lease: i64,
    ) -> Self {
        debug_assert!(version >= 1 && create_revision <= mod_revision);
        let meta = Meta { key, create_revision, mod_revision, version, lease };
        Record(ThinArc::from_header_and_slice(meta, value))
    }

    /// Creates the tombstone of a deletion of `key` at `mod_revision`.
    pub fn tombstone(key: Key, mod_revision: i64) -> Self {
        let meta = Meta { key, create_revision: 0, mod_revision, version: 0, lease: 0 };
        Record(ThinArc::from_header_and_slice(meta, &[]))
    }

    /// The shared key.
    pub fn key(&self) -> &Key {
        &self.0.header.header.key
    }

    /// The value's bytes; empty for a tombstone.
    pub fn value(&self) -> &[u8] {
        &self.0.slice
    }

    /// Revision at which the key was last created; 0 for a tombstone.
    pub fn create_revision(&self) -> i64 {
        self.0.header.header.create_revision
    }

    /// Revision of this change.
    pub fn mod_revision(&self) -> i64 {
        self.0.header.header.mod_revision
    }

    /// Number of puts since the key was last created, including that put; 0 for a
    /// tombstone.
    pub fn version(&self) -> i64 {
        self.0.header.header.version
    }

    /// ID of the lease to which the key is attached; 0 for none.
    pub fn lease(&self) -> i64 {
        self.0.header.header.lease
    }

    /// Whether the key is deleted.
    pub fn is_tombstone(&self) -> bool {
        self.version() == 0
    }

    /// Whether this change created the key.
    pub fn is_create(&self) -> bool {
        self.create_revision() == self.mod_revision()
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record")
            .field("key", self.key())
            .field("value", &self.value().escape_ascii().to_string())
            .field("create", &self.create_revision())
            .field("mod", &self.mod_revision())
            .field("version", &self.version())
            .field("lease", &self.lease())
            .finish()
    }
}
