//! Spans of keys. Requests specify them with `key` and `range_end`.

use std::sync::Arc;

/// A span of keys: one key, the keys in `[start, end)`, or all keys from `start` on. Clones
/// share the keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    start: Arc<[u8]>,
    end: End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum End {
    /// The span is the single key `start`.
    Point,
    /// The span ends before this key.
    Before(Arc<[u8]>),
    /// The span contains all keys from `start` on.
    Infinity,
}

impl Span {
    /// Creates a span in etcd's convention: an empty `range_end` means the single key
    /// `key`, `"\0"` means all keys from `key` on, and any other value is an exclusive
    /// end.
    pub fn new(key: &[u8], range_end: &[u8]) -> Self {
        let end = match range_end {
            [] => End::Point,
            [0] => End::Infinity,
            other => End::Before(other.into()),
        };
        Span { start: key.into(), end }
    }

    /// Creates the span from `start` to the exclusive `end`; without `end`, to the last key.
    pub(crate) fn between(start: Vec<u8>, end: Option<Vec<u8>>) -> Self {
        let end = end.map_or(End::Infinity, |end| End::Before(end.into()));
        Span { start: start.into(), end }
    }

    /// Returns the key if the span is a single key.
    pub fn as_point(&self) -> Option<&[u8]> {
        matches!(self.end, End::Point).then_some(&self.start[..])
    }

    /// Returns the inclusive start of the span.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Returns the exclusive end of the span; `None` if the span has no end. For a single
    /// key it is the next possible key.
    pub fn end(&self) -> Option<Vec<u8>> {
        match &self.end {
            End::Point => Some([&self.start[..], &[0]].concat()),
            End::Before(end) => Some(end.to_vec()),
            End::Infinity => None,
        }
    }

    /// Returns the inclusive start, which all clones of the span share.
    pub fn shared_start(&self) -> Arc<[u8]> {
        self.start.clone()
    }

    /// Returns the exclusive end of a span that is not a single key, which all its clones
    /// share; `None` if the span has no end.
    pub fn shared_range_end(&self) -> Option<Arc<[u8]>> {
        match &self.end {
            End::Before(end) => Some(end.clone()),
            End::Point | End::Infinity => None,
        }
    }

    /// Returns the size of the keys that the span consists of, in bytes.
    pub fn key_bytes(&self) -> usize {
        let end = match &self.end {
            End::Before(end) => end.len(),
            End::Point | End::Infinity => 0,
        };
        self.start.len() + end
    }

    /// Whether the span cannot contain a key.
    pub fn is_empty(&self) -> bool {
        matches!(&self.end, End::Before(end) if *end <= self.start)
    }

    /// Whether `key` is in the span.
    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            End::Point => key == &self.start[..],
            End::Before(end) => key >= &self.start[..] && key < &end[..],
            End::Infinity => key >= &self.start[..],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Span;

    #[test]
    fn new_follows_the_convention_of_etcd() {
        assert!(Span::new(b"a", b"").contains(b"a"));
        assert!(!Span::new(b"a", b"").contains(b"a\0"));
        assert!(Span::new(b"a", b"c").contains(b"bzz"));
        assert!(!Span::new(b"a", b"c").contains(b"c"));
        assert!(Span::new(b"b", b"\0").contains(b"\xff\xff"));
        assert!(!Span::new(b"b", b"\0").contains(b"a"));
        assert!(Span::new(b"b", b"b").is_empty() && Span::new(b"b", b"a").is_empty());
    }
}
