//! The last changes of the objects of one kind.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::Event;

/// Changes that are kept whatever their age.
const MIN_EVENTS: usize = 100;
/// Changes that are kept at most, as in kube-apiserver.
const MAX_EVENTS: usize = 100 << 10;
/// How long further changes are kept. kube-apiserver keeps them for 75 s: a bookmark comes every minute.
const MAX_AGE: Duration = Duration::from_secs(150);

/// The last changes, in the order of their versions.
pub struct History {
    /// The version of the list with which it began.
    listed: u64,
    events: VecDeque<(Instant, Arc<Event>)>,
    /// The bytes of the events.
    size: usize,
    /// Whether changes since the list were removed.
    is_cut: bool,
}

impl History {
    /// An empty history after a list.
    pub fn new(listed: u64) -> History {
        History { listed, events: VecDeque::new(), size: 0, is_cut: false }
    }

    /// Adds a change, and removes what is old.
    pub fn push(&mut self, event: Arc<Event>, now: Instant) {
        self.size += event.size();
        self.events.push_back((now, event));
        while self.events.len() > MIN_EVENTS
            && (self.events.len() > MAX_EVENTS || self.is_first_old(now))
        {
            let first = self.events.pop_front();
            self.size -= first.map_or(0, |(_, event)| event.size());
            self.is_cut = true;
        }
    }

    /// The bytes that are kept for the changes alone.
    pub fn size(&self) -> usize {
        self.size
    }

    fn is_first_old(&self, now: Instant) -> bool {
        let first = self.events.front();
        first.is_some_and(|(time, _)| now.saturating_duration_since(*time) > MAX_AGE)
    }

    /// The lowest version from which a watch can begin: all later changes are here.
    pub fn oldest(&self) -> u64 {
        match self.events.front() {
            Some((_, first)) if self.is_cut => first.version() - 1,
            _ => self.listed,
        }
    }

    /// The changes after a version, as one for each object, in the order of their versions; `None` if not
    /// all of them are here.
    pub fn merged_since(&self, version: u64) -> Option<Vec<Event>> {
        if version < self.oldest() {
            return None;
        }
        let mut by_key: HashMap<_, (_, &Event)> = HashMap::new();
        for event in self.since(version) {
            let Some(object) = event.objects().next() else { continue };
            let first = by_key.entry(object.key()).or_insert((event.before().cloned(), event));
            first.1 = event;
        }
        let merged = by_key.into_values().map(|(before, last)| Event::merged(before, last));
        let mut merged: Vec<_> = merged.collect();
        merged.sort_unstable_by_key(Event::version);
        Some(merged)
    }

    /// The changes after a version.
    pub fn since(&self, version: u64) -> impl Iterator<Item = &Event> {
        let start = self.events.partition_point(|(_, event)| event.version() <= version);
        self.events.range(start..).map(|(_, event)| &**event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_path::watches::kind::Kind;
    use crate::node_path::watches::object::Object;
    use crate::node_path::watches::object::sample::pod;

    #[test]
    fn the_size_is_that_of_the_objects_that_are_no_more() {
        let start = Instant::now();
        let object = |version: u64, text: &str| {
            Arc::new(Object::parse(Kind::Pods, pod("ns", "p", "n", version, text)).unwrap())
        };
        let large = "x".repeat(1 << 20);
        let mut history = History::new(0);
        let mut push = |version, before: &str, seconds| {
            let event = Event::changed(Some(object(version - 1, before)), object(version, &large));
            history.push(Arc::new(event), start + Duration::from_secs(seconds));
            history.size()
        };
        // What an object is after a change is in the cache, or is what it was before the next one.
        assert!(push(11, "", 0) < 1000);
        assert!((1 << 20..2 << 20).contains(&push(12, &large, 0)));
        for version in 13..=112 {
            push(version, "", 200);
        }
        assert!(push(113, "", 200) < 200_000, "the large one is old");
    }
}
