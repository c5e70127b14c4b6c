//! The last changes of the objects of one kind.

use std::collections::VecDeque;
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
    /// The version of the last change that was removed, if any since the list was.
    cut: Option<u64>,
}

impl History {
    /// An empty history after a list.
    pub fn new(listed: u64) -> History {
        History { listed, events: VecDeque::new(), size: 0, cut: None }
    }

    /// Adds a change, and removes what is old.
    pub fn push(&mut self, event: Arc<Event>, now: Instant) {
        self.size += event.size();
        self.events.push_back((now, event));
        while self.events.len() > MIN_EVENTS
            && (self.events.len() > MAX_EVENTS || self.is_first_old(now))
        {
            let Some((_, first)) = self.events.pop_front() else { break };
            self.size -= first.size();
            self.cut = Some(first.version());
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
        match (self.events.front(), self.cut) {
            // The store can have several changes of one version.
            (Some((_, first)), Some(cut)) => cut.max(first.version() - 1),
            _ => self.listed,
        }
    }

    /// Whether all changes after a version are here. This also holds between the last change that was removed and
    /// the [oldest](History::oldest) version, where no watch begins.
    pub fn goes_on_after(&self, version: u64) -> bool {
        version >= self.cut.unwrap_or(self.listed)
    }

    /// The last change, if there was any since the list.
    pub fn last(&self) -> Option<&Event> {
        self.events.back().map(|(_, event)| &**event)
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
    fn a_version_of_which_a_change_was_removed_is_too_old() {
        let start = Instant::now();
        let object = |name: &str, version| {
            Arc::new(Object::parse(Kind::Pods, pod("ns", name, "n", version, "")).unwrap())
        };
        let mut history = History::new(5);
        for number in 0..=100 {
            let event = Event::changed(None, object(&number.to_string(), 10 + number / 2));
            history.push(Arc::new(event), start + Duration::from_secs(200 * number));
        }
        // The first one of two changes of version 10 is no more.
        assert_eq!(history.oldest(), 10);
        assert_eq!(history.since(10).count(), 99);
        assert!(history.goes_on_after(10) && !history.goes_on_after(9));
        let event = Event::changed(None, object("x", 70));
        history.push(Arc::new(event), start + Duration::from_secs(50_000));
        assert_eq!(history.oldest(), 10);
    }

    #[test]
    fn a_watch_goes_on_while_no_later_change_was_removed() {
        let start = Instant::now();
        let mut history = History::new(5);
        assert!(history.goes_on_after(5) && !history.goes_on_after(4));
        // Changes of other resources are between them.
        for number in 0..=100 {
            let object = Object::parse(Kind::Pods, pod("ns", "p", "n", 10 + 10 * number, ""));
            let event = Event::changed(None, Arc::new(object.unwrap()));
            history.push(Arc::new(event), start + Duration::from_secs(200 * number));
        }
        assert_eq!(history.oldest(), 19);
        assert!(history.goes_on_after(10) && !history.goes_on_after(9));
    }

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
