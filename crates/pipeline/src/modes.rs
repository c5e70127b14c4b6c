//! The WAL mode of each key: a default mode, and other modes by key prefix.

use mvcc::{Effect, Span};

use crate::WalMode;

/// The WAL mode of every key. If several prefixes match, the longest applies.
#[derive(Clone, Debug)]
pub struct Modes {
    default: WalMode,
    /// The prefixes with their modes, longest prefix first.
    prefixes: Vec<(Vec<u8>, WalMode)>,
}

/// The error of invalid WAL modes by prefix. Its message has one line.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ModesError {
    /// The default mode is [`WalMode::None`]: then no prefix can have another mode.
    #[error(
        "WAL mode none has no log, so no prefix can have another mode: remove the modes by prefix"
    )]
    NoLog,
    /// A prefix is empty.
    #[error("an empty prefix matches every key: set the default mode instead")]
    EmptyPrefix,
    /// A prefix is given twice.
    #[error("the prefix {0} is given twice")]
    Duplicate(String),
}

impl Modes {
    /// Returns the modes in which `default` applies to every key without one of the
    /// `prefixes`.
    pub fn new(default: WalMode, prefixes: &[(Vec<u8>, WalMode)]) -> Result<Self, ModesError> {
        let mut prefixes = prefixes.to_vec();
        prefixes.sort_unstable_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.0.cmp(&b.0)));
        if let Some(pair) = prefixes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(ModesError::Duplicate(pair[0].0.escape_ascii().to_string()));
        }
        match prefixes.last() {
            Some(_) if default == WalMode::None => Err(ModesError::NoLog),
            Some((shortest, _)) if shortest.is_empty() => Err(ModesError::EmptyPrefix),
            _ => Ok(Modes { default, prefixes }),
        }
    }

    /// Returns the WAL mode of `key`.
    pub fn mode_of(&self, key: &[u8]) -> WalMode {
        let matching = self.prefixes.iter().find(|(prefix, _)| key.starts_with(prefix));
        matching.map_or(self.default, |(_, mode)| *mode)
    }

    /// Returns the WAL mode of the key of `effect`; the default mode if the effect has no
    /// key.
    pub(crate) fn of_effect(&self, effect: &Effect) -> WalMode {
        match effect {
            Effect::Write(record) | Effect::Base(record) if !self.prefixes.is_empty() => {
                self.mode_of(record.key())
            }
            _ => self.default,
        }
    }

    /// Whether a key can have this mode.
    pub(crate) fn contains(&self, mode: WalMode) -> bool {
        self.default == mode || self.prefixes.iter().any(|(_, other)| *other == mode)
    }

    /// Returns the spans of keys whose writes are not logged. They are disjoint. Each is
    /// a first key and a range end in the convention of etcd's `range_end`.
    pub(crate) fn unlogged(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut bounds: Vec<Vec<u8>> = Vec::new();
        for (prefix, _) in &self.prefixes {
            bounds.push(prefix.clone());
            bounds.extend(prefix_end(prefix));
        }
        bounds.sort_unstable();
        bounds.dedup();
        // The keys of a prefix start and end at bounds. So all keys between two adjacent
        // bounds have the same mode.
        let ends = bounds.iter().skip(1).cloned().chain([vec![0]]);
        let spans = bounds.iter().cloned().zip(ends);
        spans.filter(|(first, _)| self.mode_of(first) == WalMode::None).collect()
    }
}

/// Whether the index of the store has a key in a span of [`Modes::unlogged`], including
/// deleted keys that are not yet collected.
pub(crate) fn contains_keys(store: &mvcc::Store, (first, end): &(Vec<u8>, Vec<u8>)) -> bool {
    store.has_keys_in(&Span::new(first, end))
}

/// Returns the first key after all keys with `prefix`, if there is one.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(prefixes: &[(&str, WalMode)]) -> Result<Modes, ModesError> {
        let prefixes: Vec<_> =
            prefixes.iter().map(|(prefix, mode)| (prefix.as_bytes().to_vec(), *mode)).collect();
        Modes::new(WalMode::Buffered, &prefixes)
    }

    #[test]
    fn the_longest_matching_prefix_applies() {
        let modes = modes(&[
            ("/registry/leases/", WalMode::None),
            ("/registry/", WalMode::Fsync),
            ("/registry/leases/kube-system/", WalMode::Buffered),
        ])
        .unwrap();
        assert_eq!(modes.mode_of(b"/registry/leases/a"), WalMode::None);
        assert_eq!(modes.mode_of(b"/registry/leases/kube-system/b"), WalMode::Buffered);
        assert_eq!(modes.mode_of(b"/registry/pods/"), WalMode::Fsync);
        assert_eq!(modes.mode_of(b"other"), WalMode::Buffered);
        let expected = [
            ("/registry/leases/", "/registry/leases/kube-system/"),
            ("/registry/leases/kube-system0", "/registry/leases0"),
        ];
        let expected = expected.map(|(a, b)| (a.as_bytes().to_vec(), b.as_bytes().to_vec()));
        assert_eq!(modes.unlogged(), expected);
    }

    #[test]
    fn a_prefix_may_reach_to_the_end_of_all_keys() {
        let prefixes = [(vec![0xff, 0xff], WalMode::None)];
        let modes = Modes::new(WalMode::Fsync, &prefixes).unwrap();
        assert_eq!(modes.unlogged(), [(vec![0xff, 0xff], vec![0])]);
    }

    #[test]
    fn invalid_modes_are_refused() {
        let twice = modes(&[("a", WalMode::None), ("b", WalMode::None), ("a", WalMode::Fsync)]);
        assert_eq!(twice.unwrap_err(), ModesError::Duplicate("a".into()));
        assert_eq!(modes(&[("", WalMode::None)]).unwrap_err(), ModesError::EmptyPrefix);
        let no_log = Modes::new(WalMode::None, &[(b"a".to_vec(), WalMode::Fsync)]);
        assert_eq!(no_log.unwrap_err(), ModesError::NoLog);
        assert!(Modes::new(WalMode::None, &[]).is_ok());
    }
}
