//! Translates recorded revisions and lease IDs to those of the server of the replay.
//!
//! - The mod revision with which a transaction compares a key: if the last write or read of the
//!   key returned mod revision R in the trace and T in the replay, R is translated to T. A
//!   revision before R is translated to T−1. The key does not have this mod revision, so the
//!   comparison is false, as recorded.
//! - The revision of a range, a watch or a compaction: it is translated to the replayed revision
//!   of the newest response header whose recorded revision is not above it.
//! - A lease ID: it is translated to the ID that the server returned for the replayed grant.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

/// Maximum number of keys with known mod revisions. The mod revisions of further keys are not
/// translated.
const MAX_KEYS: usize = 4 << 20;
/// Maximum number of remembered header revisions. If there are more, the lowest is dropped.
const MAX_HEADERS: usize = 1 << 20;
/// Maximum number of remembered leases. The IDs of further leases are not translated.
const MAX_LEASES: usize = 1 << 20;

/// A recorded revision and its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Translation {
    recorded: i64,
    replayed: i64,
}

/// All translations of revisions and lease IDs.
#[derive(Default)]
pub struct Revisions {
    /// The last known mod revision, by hash of the key.
    keys: HashMap<u64, Translation>,
    /// The replayed header revision, by recorded header revision.
    headers: BTreeMap<i64, i64>,
    /// The replayed lease ID, by recorded lease ID.
    leases: HashMap<i64, i64>,
    /// How many times a revision or lease ID had no translation.
    pub untranslated: u64,
}

/// The hash of a key.
pub fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl Revisions {
    /// Adds the recorded and the replayed mod revision of a key. A revision of 0 means that the
    /// key does not exist.
    pub fn add_mod_revision(&mut self, key: &[u8], recorded: i64, replayed: i64) {
        let key = hash(key);
        let is_later = self.keys.get(&key).is_none_or(|known| known.recorded <= recorded);
        if recorded == 0 || replayed == 0 {
            self.keys.remove(&key);
        } else if is_later && (self.keys.len() < MAX_KEYS || self.keys.contains_key(&key)) {
            self.keys.insert(key, Translation { recorded, replayed });
        }
    }

    /// Adds the recorded and the replayed header revision of a response.
    pub fn add_header_revision(&mut self, recorded: i64, replayed: i64) {
        if recorded == 0 || replayed == 0 {
            return;
        }
        self.headers.insert(recorded, replayed);
        if self.headers.len() > MAX_HEADERS {
            self.headers.pop_first();
        }
    }

    /// Adds the recorded and the replayed ID of a granted lease.
    pub fn add_lease(&mut self, recorded: i64, replayed: i64) {
        if self.leases.len() < MAX_LEASES {
            self.leases.insert(recorded, replayed);
        }
    }

    /// Removes a revoked lease.
    pub fn remove_lease(&mut self, recorded: i64) {
        self.leases.remove(&recorded);
    }

    /// Translates the mod revision with which a transaction compares `key`.
    pub fn translate_mod_revision(&mut self, key: &[u8], recorded: i64) -> i64 {
        if recorded == 0 {
            return 0;
        }
        match self.keys.get(&hash(key)) {
            Some(known) if known.recorded == recorded => known.replayed,
            // The key has changed since `recorded`, so the comparison must be false.
            Some(known) if known.recorded > recorded => known.replayed - 1,
            // The trace lacks the write at `recorded`.
            Some(known) => {
                self.untranslated += 1;
                known.replayed
            }
            None => {
                self.untranslated += 1;
                recorded
            }
        }
    }

    /// Translates the revision of a read or a compaction.
    pub fn translate_revision(&mut self, recorded: i64) -> i64 {
        self.newest_header_up_to(recorded).map_or(0, |(_, replayed)| replayed)
    }

    /// Translates the start revision of a watch.
    pub fn translate_start_revision(&mut self, recorded: i64) -> i64 {
        match self.newest_header_up_to(recorded) {
            Some((known, replayed)) if known == recorded => replayed,
            Some((_, replayed)) => replayed + 1,
            None => 0,
        }
    }

    /// The newest recorded header revision that is not above `recorded`, with its translation.
    fn newest_header_up_to(&mut self, recorded: i64) -> Option<(i64, i64)> {
        if recorded == 0 {
            return None;
        }
        let newest = self
            .headers
            .range(..=recorded)
            .next_back()
            .map(|(known, replayed)| (*known, *replayed));
        self.untranslated += u64::from(newest.is_none());
        newest
    }

    /// Translates a lease ID; 0 stays 0.
    pub fn translate_lease(&mut self, recorded: i64) -> i64 {
        let translated = self.leases.get(&recorded).copied();
        self.untranslated += u64::from(translated.is_none() && recorded != 0);
        translated.unwrap_or(recorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mod_revisions_are_translated_by_key() {
        let mut revisions = Revisions::default();
        assert_eq!(revisions.translate_mod_revision(b"a", 0), 0);
        revisions.add_mod_revision(b"a", 10, 3);
        revisions.add_mod_revision(b"a", 12, 7);
        revisions.add_mod_revision(b"a", 11, 5);
        assert_eq!(revisions.translate_mod_revision(b"a", 12), 7);
        assert_eq!(revisions.translate_mod_revision(b"a", 10), 6, "an old revision stays old");
        assert_eq!(revisions.untranslated, 0);
        assert_eq!(
            revisions.translate_mod_revision(b"a", 13),
            7,
            "the trace does not contain the write at 13"
        );
        revisions.add_mod_revision(b"a", 0, 9);
        assert_eq!(revisions.translate_mod_revision(b"a", 12), 12);
        assert_eq!(revisions.untranslated, 2);
    }

    #[test]
    fn headers_and_leases_are_translated() {
        let mut revisions = Revisions::default();
        assert_eq!(revisions.translate_start_revision(5), 0);
        revisions.add_header_revision(10, 3);
        revisions.add_header_revision(20, 6);
        assert_eq!(
            (
                revisions.translate_revision(10),
                revisions.translate_revision(15),
                revisions.translate_revision(99)
            ),
            (3, 3, 6)
        );
        assert_eq!(
            (
                revisions.translate_start_revision(10),
                revisions.translate_start_revision(11),
                revisions.translate_start_revision(21)
            ),
            (3, 4, 7)
        );
        assert_eq!(
            (revisions.translate_revision(0), revisions.translate_start_revision(0)),
            (0, 0)
        );
        revisions.add_lease(1, 100);
        assert_eq!((revisions.translate_lease(0), revisions.translate_lease(1)), (0, 100));
        revisions.remove_lease(1);
        assert_eq!(revisions.translate_lease(1), 1);
    }
}
