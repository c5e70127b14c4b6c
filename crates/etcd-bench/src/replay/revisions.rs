//! Translates recorded revisions and lease IDs to those of the store under test.
//!
//! - Comparisons of a transaction use the mod revision of a key. If a write or read of
//!   the key returned mod revision R in the trace and T in the replay, then R is
//!   translated to T. A revision before R is translated to T−1, which the key does not
//!   have, so the comparison is false as recorded.
//! - Revisions of ranges, watches and compactions are translated with response headers:
//!   the newest recorded header revision up to the given one determines the translation.
//! - A recorded lease ID is translated to the ID that the store returned for the replayed
//!   grant.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

/// Maximum number of keys with known revisions. Further ones are not translated but
/// counted.
const MAX_KEYS: usize = 4 << 20;
/// Maximum number of remembered headers. The oldest ones are dropped.
const MAX_HEADERS: usize = 1 << 20;
/// Maximum number of remembered leases.
const MAX_LEASES: usize = 1 << 20;

/// A recorded revision and its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Translation {
    recorded: i64,
    replayed: i64,
}

/// All translations.
#[derive(Default)]
pub struct Revisions {
    keys: HashMap<u64, Translation>,
    headers: BTreeMap<i64, i64>,
    leases: HashMap<i64, i64>,
    /// Number of revisions and leases without a translation.
    pub unknown: u64,
}

/// The hash of a key.
pub fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl Revisions {
    /// Adds the recorded and the replayed mod revision of a key; 0 if the key does not
    /// exist.
    pub fn add_key(&mut self, key: &[u8], recorded: i64, replayed: i64) {
        let key = hash(key);
        let is_later = self.keys.get(&key).is_none_or(|known| known.recorded <= recorded);
        if recorded == 0 || replayed == 0 {
            self.keys.remove(&key);
        } else if is_later && (self.keys.len() < MAX_KEYS || self.keys.contains_key(&key)) {
            self.keys.insert(key, Translation { recorded, replayed });
        }
    }

    /// Adds the header revisions of a response.
    pub fn add_header(&mut self, recorded: i64, replayed: i64) {
        if recorded == 0 || replayed == 0 {
            return;
        }
        self.headers.insert(recorded, replayed);
        if self.headers.len() > MAX_HEADERS {
            self.headers.pop_first();
        }
    }

    /// Adds the IDs of a granted lease.
    pub fn add_lease(&mut self, recorded: i64, replayed: i64) {
        if self.leases.len() < MAX_LEASES {
            self.leases.insert(recorded, replayed);
        }
    }

    /// Removes a revoked lease.
    pub fn remove_lease(&mut self, recorded: i64) {
        self.leases.remove(&recorded);
    }

    /// Translates the revision with which a key is compared.
    pub fn translate_for_key(&mut self, key: &[u8], recorded: i64) -> i64 {
        if recorded == 0 {
            return 0;
        }
        match self.keys.get(&hash(key)) {
            Some(known) if known.recorded == recorded => known.replayed,
            // The key has changed since then: the comparison must be false.
            Some(known) if known.recorded > recorded => known.replayed - 1,
            // The trace does not contain a change of the key.
            Some(known) => {
                self.unknown += 1;
                known.replayed
            }
            None => {
                self.unknown += 1;
                recorded
            }
        }
    }

    /// Translates the revision of a read or a compaction.
    pub fn translate(&mut self, recorded: i64) -> i64 {
        self.floor(recorded).map_or(0, |(_, replayed)| replayed)
    }

    /// Translates the start revision of a watch.
    pub fn translate_start(&mut self, recorded: i64) -> i64 {
        match self.floor(recorded) {
            Some((known, replayed)) if known == recorded => replayed,
            Some((_, replayed)) => replayed + 1,
            None => 0,
        }
    }

    /// The latest header at or before `recorded`, with its translation.
    fn floor(&mut self, recorded: i64) -> Option<(i64, i64)> {
        if recorded == 0 {
            return None;
        }
        let floor = self
            .headers
            .range(..=recorded)
            .next_back()
            .map(|(known, replayed)| (*known, *replayed));
        self.unknown += u64::from(floor.is_none());
        floor
    }

    /// Translates a lease ID; 0 stays 0.
    pub fn translate_lease(&mut self, recorded: i64) -> i64 {
        let translated = self.leases.get(&recorded).copied();
        self.unknown += u64::from(translated.is_none() && recorded != 0);
        translated.unwrap_or(recorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mod_revisions_are_translated_by_key() {
        let mut revisions = Revisions::default();
        assert_eq!(revisions.translate_for_key(b"a", 0), 0);
        revisions.add_key(b"a", 10, 3);
        revisions.add_key(b"a", 12, 7);
        revisions.add_key(b"a", 11, 5);
        assert_eq!(revisions.translate_for_key(b"a", 12), 7);
        assert_eq!(revisions.translate_for_key(b"a", 10), 6, "an old revision stays old");
        assert_eq!(revisions.unknown, 0);
        assert_eq!(
            revisions.translate_for_key(b"a", 13),
            7,
            "the trace does not contain the write at 13"
        );
        revisions.add_key(b"a", 0, 9);
        assert_eq!(revisions.translate_for_key(b"a", 12), 12);
        assert_eq!(revisions.unknown, 2);
    }

    #[test]
    fn headers_and_leases_are_translated() {
        let mut revisions = Revisions::default();
        assert_eq!(revisions.translate_start(5), 0);
        revisions.add_header(10, 3);
        revisions.add_header(20, 6);
        assert_eq!(
            (revisions.translate(10), revisions.translate(15), revisions.translate(99)),
            (3, 3, 6)
        );
        assert_eq!(
            (
                revisions.translate_start(10),
                revisions.translate_start(11),
                revisions.translate_start(21)
            ),
            (3, 4, 7)
        );
        assert_eq!((revisions.translate(0), revisions.translate_start(0)), (0, 0));
        revisions.add_lease(1, 100);
        assert_eq!((revisions.translate_lease(0), revisions.translate_lease(1)), (0, 100));
        revisions.remove_lease(1);
        assert_eq!(revisions.translate_lease(1), 1);
    }
}
