//! The keys of a large publication, sorted to find out which spans contain one of them.

use mvcc::{Event, Span};

/// Keys in order, each once.
pub(crate) struct SortedKeys<'a>(Vec<&'a [u8]>);

impl<'a> SortedKeys<'a> {
    /// Returns the keys of `events`.
    pub(crate) fn new(events: &'a [Event]) -> Self {
        let mut keys: Vec<_> = events.iter().map(|event| event.record.key()).collect();
        // The stable sort is fast for keys that are in order already, as those of a deletion.
        keys.sort();
        keys.dedup();
        SortedKeys(keys)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().copied()
    }

    /// Whether `key` is one of the keys.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.0.binary_search(&key).is_ok()
    }

    /// Whether `span` contains one of the keys.
    pub(crate) fn any_in(&self, span: &Span) -> bool {
        let first = self.0.partition_point(|key| *key < span.start());
        self.0.get(first).is_some_and(|key| span.contains(key))
    }
}

#[cfg(test)]
mod tests {
    use etcdpb::Record;
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 1..4)
    }

    proptest! {
        #[test]
        fn a_lookup_finds_the_same_as_a_scan(
            keys in prop::collection::vec(key(), 0..20),
            start in key(),
            end in prop::collection::vec(0u8..4, 0..4),
        ) {
            let event = |key: &Vec<u8>| {
                Event { record: Record::tombstone(key, 2), previous: None }
            };
            let events: Vec<_> = keys.iter().map(event).collect();
            let sorted = SortedKeys::new(&events);
            let span = Span::new(&start, &end);
            prop_assume!(!span.is_empty());
            prop_assert_eq!(sorted.any_in(&span), keys.iter().any(|key| span.contains(key)));
            prop_assert_eq!(sorted.contains(&start), keys.contains(&start));
            let mut distinct = keys.clone();
            distinct.sort();
            distinct.dedup();
            prop_assert_eq!(sorted.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), distinct);
        }
    }
}
