//! Which events were told before.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};

/// Events that are remembered. One that is told again after so many others counts as a
/// new one.
const REMEMBERED: usize = 1 << 20;

/// The events of late.
#[derive(Default)]
pub struct Events {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Events {
    /// Whether the event of `key` at `revision` was not told before.
    pub fn is_new(&mut self, key: &[u8], revision: i64) -> bool {
        let mut hasher = DefaultHasher::new();
        (key, revision).hash(&mut hasher);
        let hash = hasher.finish();
        if !self.known.insert(hash) {
            return false;
        }
        self.order.push_back(hash);
        if self.order.len() > REMEMBERED {
            self.order.pop_front().map(|oldest| self.known.remove(&oldest));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_new_once() {
        let mut events = Events::default();
        assert!(events.is_new(b"a", 1) && events.is_new(b"a", 2) && events.is_new(b"b", 2));
        assert!(!events.is_new(b"a", 1));
        for revision in 0..=REMEMBERED as i64 {
            events.is_new(b"c", revision);
        }
        assert_eq!(events.order.len(), REMEMBERED);
        assert!(events.is_new(b"a", 1), "forgotten by now");
    }
}
