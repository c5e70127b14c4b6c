//! Detects events that were already delivered to another watcher.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};

/// Number of remembered events. An event that is delivered again after this many others
/// counts as new.
const REMEMBERED: usize = 1 << 20;

/// The most recent distinct events.
#[derive(Default)]
pub struct RecentEvents {
    hashes: HashSet<u64>,
    order: VecDeque<u64>,
}

impl RecentEvents {
    /// Remembers the event of `key` at `revision`. Returns whether it is new.
    pub fn is_new(&mut self, key: &[u8], revision: i64) -> bool {
        let mut hasher = DefaultHasher::new();
        (key, revision).hash(&mut hasher);
        let hash = hasher.finish();
        if !self.hashes.insert(hash) {
            return false;
        }
        self.order.push_back(hash);
        if self.order.len() > REMEMBERED {
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
        assert!(events.is_new(b"a", 1) && events.is_new(b"a", 2) && events.is_new(b"b", 2));
        assert!(!events.is_new(b"a", 1));
        for revision in 0..=REMEMBERED as i64 {
            events.is_new(b"c", revision);
        }
        assert_eq!(events.order.len(), REMEMBERED);
        assert!(events.is_new(b"a", 1), "the event is no longer remembered");
    }
}
