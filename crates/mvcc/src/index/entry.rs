//! The records of one key.

use etcdpb::Record;

/// All records of one key in the index. A record is one version of the key: a value or a
/// tombstone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    latest: &'a Record,
    /// The records older than `latest`, oldest first.
    older: &'a [Record],
}

impl<'a> Entry<'a> {
    pub(super) fn new(latest: &'a Record, older: &'a [Record]) -> Self {
        Entry { latest, older }
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> &'a [u8] {
        self.latest.key()
    }

    /// Returns the newest record, which may be a tombstone.
    pub(crate) fn latest(&self) -> &'a Record {
        self.latest
    }

    /// Returns the records older than the newest one, oldest first.
    pub(super) fn older(&self) -> &'a [Record] {
        self.older
    }

    /// Returns the newest record at or before `revision`, which may be a tombstone;
    /// `None` if there is none.
    fn at(&self, revision: i64) -> Option<&'a Record> {
        if self.latest.mod_revision() <= revision {
            return Some(self.latest);
        }
        let visible = self.older.partition_point(|record| record.mod_revision() <= revision);
        self.older[..visible].last()
    }

    /// Returns the newest record at or before `revision` if the key existed at that
    /// revision.
    pub(crate) fn live_at(&self, revision: i64) -> Option<&'a Record> {
        self.at(revision).filter(|record| !record.is_tombstone())
    }
}
