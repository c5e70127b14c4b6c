//! What recorded revisions and leases are called in the store that is replayed to.
//!
//! - The revision that a Txn compares a key with is the one that this store gave for
//!   the same state of the key: when the recording says that a write of the key or a
//!   read of it came to revision R, and the same request here to T, then R is T. An
//!   older R is a revision that the key does not have here either.
//! - Revisions of ranges, watches and compactions go by the headers of answers: the
//!   latest recorded one that is not above.
//! - A lease is the one that was granted in its place.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

/// Keys whose revisions are known. Further ones are not translated, and counted.
const KEYS: usize = 4 << 20;
/// Headers that are remembered; the oldest go.
const HEADERS: usize = 1 << 20;
/// Leases that are remembered, as long as they are not revoked.
const LEASES: usize = 1 << 20;

/// The same moment in both worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    recorded: i64,
    here: i64,
}

/// Everything that has another name here.
#[derive(Default)]
pub struct Revisions {
    keys: HashMap<u64, Pair>,
    headers: BTreeMap<i64, i64>,
    leases: HashMap<i64, i64>,
    /// Revisions and leases of which nothing was known.
    pub unknown: u64,
}

/// Stands for a key.
pub fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl Revisions {
    /// A key came to be as it is at these revisions; 0 if it is not there.
    pub fn learn(&mut self, key: &[u8], recorded: i64, here: i64) {
        let key = hash(key);
        let is_later = self.keys.get(&key).is_none_or(|known| known.recorded <= recorded);
        if recorded == 0 || here == 0 {
            self.keys.remove(&key);
        } else if is_later && (self.keys.len() < KEYS || self.keys.contains_key(&key)) {
            self.keys.insert(key, Pair { recorded, here });
        }
    }

    /// The header of an answer in both worlds.
    pub fn learn_header(&mut self, recorded: i64, here: i64) {
        if recorded == 0 || here == 0 {
            return;
        }
        self.headers.insert(recorded, here);
        if self.headers.len() > HEADERS {
            self.headers.pop_first();
        }
    }

    pub fn learn_lease(&mut self, recorded: i64, here: i64) {
        if self.leases.len() < LEASES {
            self.leases.insert(recorded, here);
        }
    }

    pub fn forget_lease(&mut self, recorded: i64) {
        self.leases.remove(&recorded);
    }

    /// What a comparison with a recorded revision of a key is here.
    pub fn of_key(&mut self, key: &[u8], recorded: i64) -> i64 {
        if recorded == 0 {
            return 0;
        }
        match self.keys.get(&hash(key)) {
            Some(known) if known.recorded == recorded => known.here,
            // The key has changed since: it must not match.
            Some(known) if known.recorded > recorded => known.here - 1,
            // A change of the key is not in the recording.
            Some(known) => {
                self.unknown += 1;
                known.here
            }
            None => {
                self.unknown += 1;
                recorded
            }
        }
    }

    /// The revision here at which the store was as it was at a recorded one.
    pub fn at(&mut self, recorded: i64) -> i64 {
        self.floor(recorded).map_or(0, |(_, here)| here)
    }

    /// Where a watch begins here that began at a recorded revision.
    pub fn from(&mut self, recorded: i64) -> i64 {
        match self.floor(recorded) {
            Some((known, here)) if known == recorded => here,
            Some((_, here)) => here + 1,
            None => 0,
        }
    }

    fn floor(&mut self, recorded: i64) -> Option<(i64, i64)> {
        if recorded == 0 {
            return None;
        }
        let floor =
            self.headers.range(..=recorded).next_back().map(|(known, here)| (*known, *here));
        self.unknown += u64::from(floor.is_none());
        floor
    }

    /// The lease that stands for a recorded one; 0 stays 0.
    pub fn lease(&mut self, recorded: i64) -> i64 {
        let known = self.leases.get(&recorded).copied();
        self.unknown += u64::from(known.is_none() && recorded != 0);
        known.unwrap_or(recorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_revisions_of_their_own_world() {
        let mut revisions = Revisions::default();
        assert_eq!(revisions.of_key(b"a", 0), 0);
        revisions.learn(b"a", 10, 3);
        revisions.learn(b"a", 12, 7);
        revisions.learn(b"a", 11, 5);
        assert_eq!(revisions.of_key(b"a", 12), 7);
        assert_eq!(revisions.of_key(b"a", 10), 6, "stale stays stale");
        assert_eq!(revisions.unknown, 0);
        assert_eq!(revisions.of_key(b"a", 13), 7, "the write of 13 is missing");
        revisions.learn(b"a", 0, 9);
        assert_eq!(revisions.of_key(b"a", 12), 12);
        assert_eq!(revisions.unknown, 2);
    }

    #[test]
    fn headers_and_leases() {
        let mut revisions = Revisions::default();
        assert_eq!(revisions.from(5), 0);
        revisions.learn_header(10, 3);
        revisions.learn_header(20, 6);
        assert_eq!((revisions.at(10), revisions.at(15), revisions.at(99)), (3, 3, 6));
        assert_eq!((revisions.from(10), revisions.from(11), revisions.from(21)), (3, 4, 7));
        assert_eq!((revisions.at(0), revisions.from(0)), (0, 0));
        revisions.learn_lease(1, 100);
        assert_eq!((revisions.lease(0), revisions.lease(1)), (0, 100));
        revisions.forget_lease(1);
        assert_eq!(revisions.lease(1), 1);
    }
}
