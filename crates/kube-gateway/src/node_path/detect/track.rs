//! The objects of one kind, as lists and a watch tell them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A watch may lie this far behind, which consistent lists show, and it may be interrupted for this long: Kubernetes
/// ends each watch from time to time.
pub const MAX_AGE: Duration = Duration::from_secs(5);

/// The objects of one kind. Lists and a watch run at the same time.
#[derive(Debug, Default)]
pub struct Track {
    objects: BTreeMap<String, Versioned>,
    /// Changes that the watch reported after the version of the last list.
    recent: Vec<Change>,
    /// When the list was started that is known: the last one of those that are complete.
    confirmed: Option<Instant>,
    /// Since when there is no watch.
    interrupted: Option<Instant>,
    /// Why the last list or watch failed.
    error: String,
}

#[derive(Clone, Debug)]
struct Versioned {
    version: u64,
    object: Value,
}

/// A change that a watch reports.
#[derive(Clone, Debug)]
pub struct Change {
    /// The name of the object.
    pub name: String,
    /// Its version after the change.
    pub version: u64,
    /// The object; `None` if it was deleted.
    pub object: Option<Value>,
}

/// A complete list.
#[derive(Clone, Debug)]
pub struct List {
    /// The version of the list.
    pub version: u64,
    /// The objects by name.
    pub objects: Vec<(String, Value)>,
}

impl Track {
    /// The list that was started at `started` is complete. It replaces everything except what the
    /// watch reported about later versions. One that was started before the known one says nothing.
    pub fn listed(&mut self, list: List, started: Instant) {
        if self.confirmed.is_some_and(|confirmed| started < confirmed) {
            return;
        }
        let List { version, objects } = list;
        let versioned = |(name, object)| (name, Versioned { version, object });
        self.objects = objects.into_iter().map(versioned).collect();
        self.recent.retain(|change| change.version > version);
        for change in self.recent.clone() {
            self.apply(change);
        }
        self.confirmed = Some(started);
        self.error.clear();
    }

    /// The watch reports a change.
    pub fn changed(&mut self, change: Change) {
        self.recent.push(change.clone());
        self.apply(change);
    }

    fn apply(&mut self, change: Change) {
        let Change { name, version, object } = change;
        if self.objects.get(&name).is_some_and(|known| known.version > version) {
            return;
        }
        match object {
            Some(object) => drop(self.objects.insert(name, Versioned { version, object })),
            None => drop(self.objects.remove(&name)),
        }
    }

    /// There is a watch again, from the version of the last list on.
    pub fn watching(&mut self) {
        self.interrupted = None;
    }

    /// There is no watch. The next list knows what the last one has reported.
    pub fn unwatched(&mut self, now: Instant) {
        self.recent.clear();
        self.interrupted.get_or_insert(now);
    }

    /// A list failed. The next one may succeed.
    pub fn not_listed(&mut self, error: impl Into<String>) {
        self.error = error.into();
    }

    /// The watch failed or ended.
    pub fn interrupted(&mut self, now: Instant, error: impl Into<String>) {
        self.unwatched(now);
        self.error = error.into();
    }

    /// Returns why the objects must not be relied on; `None` if they may.
    pub fn stale(&self, now: Instant) -> Option<String> {
        let error = match self.error.as_str() {
            "" => String::new(),
            error => format!(" ({error})"),
        };
        let since = |time: Instant| now.saturating_duration_since(time);
        match (self.confirmed, self.interrupted) {
            (None, _) => Some(format!("not listed yet{error}")),
            (Some(confirmed), _) if since(confirmed) > MAX_AGE => {
                Some(format!("not listed for {} s{error}", since(confirmed).as_secs()))
            }
            (_, Some(interrupted)) if since(interrupted) > MAX_AGE => {
                Some(format!("not watched{error}"))
            }
            _ => None,
        }
    }

    /// Returns the objects by name.
    pub fn objects(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.objects.iter().map(|(name, known)| (name.as_str(), &known.object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(version: u64, names: &[&str]) -> List {
        let objects = names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        List { version, objects }
    }

    fn change(name: &str, version: u64, exists: bool) -> Change {
        Change { name: name.into(), version, object: exists.then(|| json!({})) }
    }

    fn names(track: &Track) -> Vec<&str> {
        track.objects().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_list_does_not_hide_a_later_change() {
        let (mut track, now) = (Track::default(), Instant::now());
        track.listed(list(5, &["a", "b"]), now);
        track.changed(change("c", 12, true));
        track.changed(change("a", 11, false));
        track.changed(change("d", 8, true));
        assert_eq!(names(&track), ["b", "c", "d"]);
        // `d` was deleted at a version that the watch has not reported yet.
        track.listed(list(10, &["a", "b"]), now);
        assert_eq!(names(&track), ["b", "c"]);
        // A report that is older than the list.
        track.changed(change("b", 9, false));
        assert_eq!(names(&track), ["b", "c"]);
        // The next list still does not have `c`.
        track.listed(list(11, &["b"]), now);
        assert_eq!(names(&track), ["b", "c"]);
        track.listed(list(12, &["b", "c"]), now);
        assert!(track.recent.is_empty());
    }

    #[test]
    fn a_list_that_is_late_says_nothing() {
        let (mut track, start) = (Track::default(), Instant::now());
        let second = start + Duration::from_secs(1);
        track.watching();
        track.listed(list(6, &["b"]), second);
        track.listed(list(5, &["a"]), start);
        assert_eq!(names(&track), ["b"]);
        assert_eq!(track.stale(second + MAX_AGE), None);
        // A store that has gone back.
        track.changed(change("c", 7, true));
        track.unwatched(second);
        track.listed(list(3, &["a"]), second + MAX_AGE);
        assert_eq!(names(&track), ["a"]);
    }

    #[test]
    fn age_and_interruptions_are_bounded() {
        let (mut track, start) = (Track::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(track.stale(start).unwrap(), "not listed yet");
        track.interrupted(start, "status 403");
        assert_eq!(track.stale(start).unwrap(), "not listed yet (status 403)");
        track.listed(list(1, &[]), at(1));
        assert_eq!(track.stale(at(5001)).unwrap(), "not watched");
        track.watching();
        assert_eq!(track.stale(at(5001)), None);
        assert_eq!(track.stale(at(5002)).unwrap(), "not listed for 5 s");
        track.not_listed("no answer");
        assert_eq!(track.stale(at(5001)), None);
        assert_eq!(track.stale(at(5002)).unwrap(), "not listed for 5 s (no answer)");
        track.interrupted(at(3000), "ended");
        track.listed(list(1, &[]), at(6000));
        track.interrupted(at(6500), "refused");
        assert_eq!(track.stale(at(8000)), None);
        assert_eq!(track.stale(at(8001)).unwrap(), "not watched (refused)");
        track.watching();
        assert_eq!(track.stale(at(8001)), None);
    }
}
