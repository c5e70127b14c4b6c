//! Sets of keys that consist of spans.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::span::Span;

/// A set of keys, as spans that neither overlap nor touch. An insertion takes O(log n) for
/// each span that it merges.
#[derive(Debug, Default)]
pub(crate) struct SpanSet {
    /// The exclusive end of each span by its start; `None` if the span has no end.
    spans: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl SpanSet {
    /// Adds the keys of a span. Returns the parts of the span that the set did not contain,
    /// in key order.
    pub(crate) fn insert(&mut self, span: &Span) -> Vec<Span> {
        if span.is_empty() {
            return Vec::new();
        }
        let (mut start, mut end) = (span.start().to_vec(), span.end());
        // The parts are found from the last to the first.
        let (mut new, mut until) = (Vec::new(), end.clone());
        while let Some((before, before_end)) = self.last_up_to(end.as_deref()) {
            if before_end.as_deref().is_some_and(|before_end| before_end < &start[..]) {
                break;
            }
            if let Some(gap) = before_end.as_ref()
                && until.as_ref().is_none_or(|until| gap < until)
            {
                new.push(Span::between(gap.clone(), until.take()));
            }
            self.spans.remove(&before);
            end = match (end, before_end) {
                (Some(end), Some(before_end)) => Some(end.max(before_end)),
                _ => None,
            };
            until = Some(before.clone());
            if before <= start {
                start = before;
                break;
            }
        }
        if until.as_ref().is_none_or(|until| start < *until) {
            new.push(Span::between(start.clone(), until));
        }
        self.spans.insert(start, end);
        new.reverse();
        new
    }

    /// Returns the last span that starts at or before `end`; the last of all without `end`.
    fn last_up_to(&self, end: Option<&[u8]>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let last = match end {
            Some(end) => {
                let up_to_end = (Bound::Unbounded, Bound::Included(end));
                self.spans.range::<[u8], _>(up_to_end).next_back()
            }
            None => self.spans.last_key_value(),
        };
        last.map(|(start, end)| (start.clone(), end.clone()))
    }

    /// Removes one key.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        let Some((start, end)) = self.last_up_to(Some(key)) else { return };
        if end.as_deref().is_some_and(|end| end <= key) {
            return;
        }
        let next = [key, &[0]].concat();
        match start == key {
            true => drop(self.spans.remove(&start)),
            false => drop(self.spans.insert(start, Some(key.to_vec()))),
        }
        if end.as_ref().is_none_or(|end| next < *end) {
            self.spans.insert(next, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_keys() -> impl Iterator<Item = [u8; 1]> {
        (b'a'..=b'z').map(|key| [key])
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Span),
        Remove([u8; 1]),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = || (b'a'..=b'z').prop_map(|key| [key]);
        let end = prop_oneof![
            6 => key().prop_map(|key| key.to_vec()),
            1 => Just(vec![0]),
            1 => Just(vec![])
        ];
        prop_oneof![
            3 => (key(), end).prop_map(|(key, end)| Step::Insert(Span::new(&key, &end))),
            1 => key().prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn the_new_parts_are_the_keys_that_were_missing(
            steps in prop::collection::vec(step(), 1..40)
        ) {
            let mut set = SpanSet::default();
            let mut contained = std::collections::BTreeSet::new();
            for step in steps {
                match step {
                    Step::Remove(key) => {
                        set.remove(&key);
                        contained.remove(&key);
                    }
                    Step::Insert(span) => {
                        let parts = set.insert(&span);
                        let new: Vec<_> = parts
                            .iter()
                            .flat_map(|part| all_keys().filter(|key| part.contains(key)))
                            .collect();
                        let missing: Vec<_> = all_keys()
                            .filter(|key| span.contains(key) && !contained.contains(key))
                            .collect();
                        prop_assert_eq!(&new, &missing);
                        contained.extend(missing);
                    }
                }
                let spans: Vec<_> = set.spans.iter().collect();
                for pair in spans.windows(2) {
                    let end = pair[0].1.as_ref();
                    prop_assert!(end.is_some_and(|end| end < pair[1].0), "{:?}", spans);
                }
            }
        }
    }
}
