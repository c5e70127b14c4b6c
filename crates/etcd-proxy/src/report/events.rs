//! Detects events that were already delivered to another watch.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};

/// Maximum number of remembered events. An event that is delivered again after this many
/// other new events counts as new.
const MAX_EVENTS: usize = 1 << 20;

/// The last [`MAX_EVENTS`] distinct events, as hashes of key and revision.
#[derive(Default)]
pub struct RecentEvents {
    hashes: HashSet<u64>,
    /// The hashes, oldest first.
    order: VecDeque<u64>,
}

impl RecentEvents {
    /// Adds the event of `key` at `revision`. Returns false if it is already remembered.
    pub fn insert(&mut self, key: &[u8], revision: i64) -> bool {
        let mut hasher = DefaultHasher::new();
        (key, revision).hash(&mut hasher);
        let hash = hasher.finish();
        if !self.hashes.insert(hash) {
            return false;
        }
        self.order.push_back(hash);
        if self.order.len() > MAX_EVENTS {
            self.order.pop_front().map(|oldest| self.hashes.remove(&oldest));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_new_once() {
        let mut events = RecentEvents::default();
        assert!(events.insert(b"a", 1) && events.insert(b"a", 2) && events.insert(b"b", 2));
        assert!(!events.insert(b"a", 1));
        for revision in 0..=MAX_EVENTS as i64 {
            events.insert(b"c", revision);
        }
        assert_eq!(events.order.len(), MAX_EVENTS);
        assert!(events.insert(b"a", 1), "the oldest event was not forgotten");
    }
}
