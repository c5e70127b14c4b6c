//! Spans of keys, as requests give them with `key` and `range_end`.

use std::ops::Bound;

/// A contiguous set of keys: one key, `[start, end)`, or all keys from `start` on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    start: Vec<u8>,
    end: End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum End {
    /// The span is the single key `start`.
    Point,
    Before(Vec<u8>),
    Infinity,
}

impl Span {
    /// Converts from etcd's convention: an empty `range_end` means the single key,
    /// `"\0"` means every key from `key` on, any other value is an exclusive end.
    pub fn new(key: &[u8], range_end: &[u8]) -> Self {
        let end = match range_end {
            [] => End::Point,
            [0] => End::Infinity,
            other => End::Before(other.to_vec()),
        };
        Span { start: key.to_vec(), end }
    }

    /// The key, if the span is a single key.
    pub fn as_point(&self) -> Option<&[u8]> {
        matches!(self.end, End::Point).then_some(&self.start[..])
    }

    /// The start of the span (inclusive).
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// The end of the span (exclusive); `None` if the span has no end. For a single
    /// key it is the key's successor.
    pub fn end(&self) -> Option<Vec<u8>> {
        match &self.end {
            End::Point => Some([&self.start[..], &[0]].concat()),
            End::Before(end) => Some(end.clone()),
            End::Infinity => None,
        }
    }

    /// Whether no key can be in the span.
    pub fn is_empty(&self) -> bool {
        matches!(&self.end, End::Before(end) if *end <= self.start)
    }

    /// Whether `key` is in the span.
    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            End::Point => key == self.start,
            End::Before(end) => key >= &self.start[..] && key < &end[..],
            End::Infinity => key >= &self.start[..],
        }
    }

    /// The bounds for an ordered map; from `after` (exclusive) if given. The span
    /// must not be empty, and `after` must be in it.
    pub(crate) fn bounds<'a>(
        &'a self,
        after: Option<&'a [u8]>,
    ) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
        let lower = match after {
            Some(key) => Bound::Excluded(key),
            None => Bound::Included(&self.start[..]),
        };
        let upper = match &self.end {
            End::Point => Bound::Included(&self.start[..]),
            End::Before(end) => Bound::Excluded(&end[..]),
            End::Infinity => Bound::Unbounded,
        };
        (lower, upper)
    }
}

#[cfg(test)]
mod tests {
    use super::Span;

    #[test]
    fn follows_etcds_convention() {
        assert!(Span::new(b"a", b"").contains(b"a"));
        assert!(!Span::new(b"a", b"").contains(b"a\0"));
        assert!(Span::new(b"a", b"c").contains(b"bzz"));
        assert!(!Span::new(b"a", b"c").contains(b"c"));
        assert!(Span::new(b"b", b"\0").contains(b"\xff\xff"));
        assert!(!Span::new(b"b", b"\0").contains(b"a"));
        assert!(Span::new(b"b", b"b").is_empty() && Span::new(b"b", b"a").is_empty());
    }
}
