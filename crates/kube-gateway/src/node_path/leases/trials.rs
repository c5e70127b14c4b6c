//! Decides by comparisons whether renewals may be served.

use std::collections::HashMap;

/// Versions of API servers whose comparisons are counted. Renewals are not served beside a further one.
const MAX_VERSIONS: usize = 32;

/// Whether renewals are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No: a comparison found a difference. Only a restart changes that.
    Off,
    /// Not yet: they are forwarded and compared.
    Shadow,
    /// Yes.
    On,
}

/// Counts the comparisons of what an API server did with what was predicted.
pub struct Trials {
    /// Whether renewals are to be served at all.
    serves: bool,
    required: u64,
    equal: HashMap<String, u64>,
    has_differed: bool,
}

impl Trials {
    /// Starts without any comparison. Renewals are served after `required` equal ones for each
    /// version, if `serves`.
    pub fn new(serves: bool, required: u64) -> Trials {
        Trials { serves, required, equal: HashMap::new(), has_differed: false }
    }

    /// Notes a comparison without a difference.
    pub fn equal(&mut self, version: &str) {
        if let Some(count) = self.equal.get_mut(version) {
            *count += 1;
        } else if self.equal.len() < MAX_VERSIONS {
            self.equal.insert(version.to_owned(), 1);
        }
    }

    /// Notes a comparison that found a difference. Returns whether it is the first one.
    pub fn different(&mut self) -> bool {
        !std::mem::replace(&mut self.has_differed, true)
    }

    /// Returns the state if these are the versions of the API servers in use; `None` is one that is
    /// not known.
    pub fn state<'a>(&self, versions: impl IntoIterator<Item = Option<&'a str>>) -> State {
        if self.has_differed {
            return State::Off;
        }
        let is_proven = |version: Option<&str>| {
            version.and_then(|it| self.equal.get(it)).is_some_and(|count| *count >= self.required)
        };
        // Without an API server in use, nobody knows with which version the next one comes.
        let mut versions = versions.into_iter().peekable();
        let are_proven = versions.peek().is_some() && versions.all(is_proven);
        if self.serves && are_proven { State::On } else { State::Shadow }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Option<&str> = Some("v1.37.1");
    const NEW: Option<&str> = Some("v1.38.0");

    #[test]
    fn each_version_needs_its_own_comparisons() {
        let mut trials = Trials::new(true, 3);
        assert_eq!(trials.state([]), State::Shadow);
        for _ in 0..2 {
            trials.equal("v1.37.1");
            assert_eq!(trials.state([OLD]), State::Shadow);
        }
        trials.equal("v1.37.1");
        assert_eq!(trials.state([OLD, OLD]), State::On);
        assert_eq!(trials.state([]), State::Shadow);
        assert_eq!(trials.state([OLD, NEW]), State::Shadow);
        assert_eq!(trials.state([OLD, None]), State::Shadow);
        (0..3).for_each(|_| trials.equal("v1.38.0"));
        assert_eq!(trials.state([OLD, NEW]), State::On);
    }

    #[test]
    fn one_difference_is_enough_for_ever() {
        let mut trials = Trials::new(true, 1);
        trials.equal("v1.37.1");
        assert!(trials.different() && !trials.different());
        trials.equal("v1.37.1");
        assert_eq!(trials.state([OLD]), State::Off);
    }

    #[test]
    fn in_shadow_mode_nothing_is_served() {
        let mut trials = Trials::new(false, 1);
        trials.equal("v1.37.1");
        assert_eq!(trials.state([OLD]), State::Shadow);
    }

    #[test]
    fn the_number_of_versions_is_bounded() {
        let mut trials = Trials::new(true, 1);
        (0..100).for_each(|number| trials.equal(&number.to_string()));
        assert_eq!(trials.equal.len(), MAX_VERSIONS);
    }
}
