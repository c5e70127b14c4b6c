//! Sets of keys as ordered, disjoint spans.

use std::ops::Bound;

/// A set of keys: ordered spans that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<KeySpan>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct KeySpan {
    start: Vec<u8>,
    /// The first key after the span; `None` if it has no end.
    end: Option<Vec<u8>>,
}

impl Spans {
    /// Creates the set of the keys of several ranges. As in all requests, an empty `range_end`
    /// means the single key, and `"\0"` means all keys from `key` on.
    pub(crate) fn union<'a>(ranges: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut spans: Vec<_> = ranges.filter_map(|(key, end)| KeySpan::new(key, end)).collect();
        spans.sort_by(|a, b| a.start.cmp(&b.start));
        let mut merged: Vec<KeySpan> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(last) if last.reaches(&span.start) => last.extend_to(span.end),
                _ => merged.push(span),
            }
        }
        merged.shrink_to_fit();
        Spans(merged)
    }

    /// Whether the set has all keys of a range, with `range_end` as in requests. A range that ends
    /// before its first key counts as this key, as in etcd.
    pub fn covers(&self, key: &[u8], range_end: &[u8]) -> bool {
        let after = self.0.partition_point(|span| &span.start[..] <= key);
        let Some(span) = after.checked_sub(1).map(|position| &self.0[position]) else {
            return false;
        };
        let Some(end) = &span.end else { return true };
        key < &end[..]
            && match range_end {
                [] => true,
                [0] => false,
                last => last <= &end[..],
            }
    }

    /// Returns the ranges of keys that the set does not have, in order.
    pub fn gaps(&self) -> impl Iterator<Item = (Bound<&[u8]>, Bound<&[u8]>)> {
        let starts = self.0.iter().map(|span| Bound::Excluded(&span.start[..]));
        let ends = self.0.iter().map(|span| span.end.as_deref());
        let lower = std::iter::once(Some(&[][..])).chain(ends);
        let upper = starts.chain([Bound::Unbounded]);
        lower.zip(upper).filter_map(|(lower, upper)| Some((Bound::Included(lower?), upper)))
    }
}

impl KeySpan {
    /// Creates the span of a range; `None` if it is empty.
    fn new(key: &[u8], range_end: &[u8]) -> Option<Self> {
        let start = key.to_vec();
        let end = match range_end {
            [] => Some([key, &[0]].concat()),
            [0] => None,
            end => Some(end.to_vec()),
        };
        let empty = end.as_ref().is_some_and(|end| *end <= start);
        (!empty).then_some(KeySpan { start, end })
    }

    /// Whether the span contains `key` or ends just before it.
    fn reaches(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| &end[..] >= key)
    }

    /// Extends the span to `end`, unless it has more already.
    fn extend_to(&mut self, end: Option<Vec<u8>>) {
        match (&self.end, &end) {
            (None, _) => {}
            (Some(own), Some(other)) if own >= other => {}
            _ => self.end = end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(ranges: &[(&str, &str)]) -> Spans {
        Spans::union(ranges.iter().map(|(key, end)| (key.as_bytes(), end.as_bytes())))
    }

    fn covers(spans: &Spans, key: &str, end: &str) -> bool {
        spans.covers(key.as_bytes(), end.as_bytes())
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let set = spans(&[("c", "e"), ("a", "c"), ("x", ""), ("b", "d")]);
        assert_eq!(set.0.len(), 2);
        assert!(covers(&set, "a", "e"));
        assert!(!covers(&set, "a", "f"));
        assert!(covers(&set, "x", ""));
        assert!(covers(&set, "x", "x\0"));
        assert!(!covers(&set, "x", "y"));
        let points = spans(&[("a", ""), ("a\0", "b")]);
        assert!(covers(&points, "a", "b"));
    }

    #[test]
    fn a_range_without_end_needs_a_span_without_end() {
        let set = spans(&[("m", "\0"), ("p", "q"), ("a", "b")]);
        assert_eq!(set.0.len(), 2);
        for (key, end, expected) in [
            ("m", "\0", true),
            ("z", "\0", true),
            ("m", "zz", true),
            ("l", "\0", false),
            ("a", "\0", false),
            ("a", "b", true),
            ("b", "", false),
        ] {
            assert_eq!(covers(&set, key, end), expected, "{key:?} {end:?}");
        }
        assert!(covers(&spans(&[("\0", "\0")]), "\0", "\0"));
    }

    #[test]
    fn a_range_that_ends_before_its_key_counts_as_the_key() {
        let set = spans(&[("b", "d")]);
        assert!(covers(&set, "c", "a"));
        assert!(covers(&set, "c", "c"));
        assert!(!covers(&set, "d", "a"));
        assert!(!covers(&set, "a", "a"));
        assert_eq!(spans(&[("d", "b")]), Spans::default());
    }

    #[test]
    fn gaps_are_what_is_left() {
        let gaps = |set: &Spans| -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
            set.gaps()
                .map(|(lower, upper)| match (lower, upper) {
                    (Bound::Included(l), Bound::Excluded(u)) => (l.to_vec(), Some(u.to_vec())),
                    (Bound::Included(l), Bound::Unbounded) => (l.to_vec(), None),
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        let text = |text: &str| text.as_bytes().to_vec();
        assert_eq!(gaps(&Spans::default()), [(text(""), None)]);
        let set = spans(&[("b", "d"), ("x", "")]);
        let expected =
            [(text(""), Some(text("b"))), (text("d"), Some(text("x"))), (text("x\0"), None)];
        assert_eq!(gaps(&set), expected);
        assert_eq!(gaps(&spans(&[("b", "\0")])), [(text(""), Some(text("b")))]);
    }
}
