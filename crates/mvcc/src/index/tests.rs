//! Compares the index with an ordered map from keys to their records.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::leaf::{MAX_LEN, MIN_LEN};
use super::*;

/// The newest revision at which a key was changed, and whether it exists.
type State = (i64, bool);

type Model = BTreeMap<Vec<u8>, State>;

#[derive(Clone, Debug)]
enum Step {
    /// Puts or deletes a number of keys, each at its own revision.
    Write { first: u16, stride: u16, count: u16, delete: bool },
    /// Takes back up to this number of writes.
    Undo { count: usize },
    /// Removes the keys of a span that do not exist.
    Compact { first: u16, end: u16 },
    /// Removes the keys of a span.
    RemoveSpan { first: u16, end: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    let numbers = (0u16..2000, 1u16..50, 1u16..600, prop::bool::weighted(0.4));
    prop_oneof![
        4 => numbers
            .prop_map(|(first, stride, count, delete)| Step::Write { first, stride, count, delete }),
        3 => (0usize..1500).prop_map(|count| Step::Undo { count }),
        2 => (0u16..2000, 0u16..2000).prop_map(|(first, end)| Step::Compact { first, end }),
        1 => (0u16..2000, 0u16..300)
            .prop_map(|(first, len)| Step::RemoveSpan { first, end: first + len }),
    ]
}

/// Keys of different lengths, of which some are prefixes of others.
fn key(number: u16) -> Vec<u8> {
    let mut key = format!("/key/{:04}", number / 3).into_bytes();
    key.extend(std::iter::repeat_n(0, usize::from(number % 3)));
    key
}

fn span(first: u16, end: u16) -> Span {
    Span::new(&key(first), &key(end))
}

fn keys_in<'a>(model: &'a Model, span: &'a Span) -> impl Iterator<Item = &'a Vec<u8>> {
    model.keys().filter(|key| span.contains(key))
}

/// The index and the model after the same steps.
#[derive(Default)]
struct Run {
    index: Index,
    model: Model,
    revision: i64,
    /// The writes since records were removed, with the states of their keys before.
    writes: Vec<(Vec<u8>, Option<State>)>,
}

impl Run {
    fn execute(&mut self, step: &Step) {
        match *step {
            Step::Write { first, stride, count, delete } => {
                (0..count).for_each(|n| self.write(&key((first + n * stride) % 2000), delete));
            }
            Step::Undo { count } => (0..count).for_each(|_| self.undo()),
            Step::Compact { first, end } => {
                self.writes.clear();
                let span = span(first, end);
                let keys: Vec<_> = keys_in(&self.model, &span).cloned().collect();
                for key in keys {
                    self.index.compact(&key, self.revision, |_| {});
                    if !self.model[&key].1 {
                        self.model.remove(&key);
                    }
                }
            }
            Step::RemoveSpan { first, end } => {
                self.writes.clear();
                let span = span(first, end);
                let mut removed = Vec::new();
                self.index.remove_span(&span, |latest, _| removed.push(latest.key().to_vec()));
                assert!(keys_in(&self.model, &span).eq(&removed));
                self.model.retain(|key, _| !span.contains(key));
            }
        }
    }

    fn write(&mut self, key: &[u8], delete: bool) {
        self.revision += 1;
        let record = match delete {
            true => Record::tombstone(key, self.revision),
            false => Record::put(key, b"", self.revision, self.revision, 1, 0),
        };
        let replaced = self.index.push(record);
        let before = self.model.insert(key.to_vec(), (self.revision, !delete));
        let live = before.filter(|(_, live)| *live).map(|(revision, _)| revision);
        assert_eq!(replaced.live.map(|record| record.mod_revision()), live);
        self.writes.push((key.to_vec(), before));
    }

    /// Takes back the last write.
    fn undo(&mut self) {
        let Some((key, before)) = self.writes.pop() else { return };
        let (revision, live) = self.model.remove(&key).unwrap();
        assert!(self.index.pop(&key, revision + 1).is_none(), "another record is the newest");
        let popped = self.index.pop(&key, revision).unwrap();
        let state = |record: &Record| (record.mod_revision(), !record.is_tombstone());
        assert_eq!(state(&popped.removed), (revision, live));
        assert_eq!(popped.restored.as_ref().map(state), before);
        self.model.extend(before.map(|before| (key, before)));
    }

    fn check(&self, first: u16, end: u16) {
        assert_eq!(self.index.len(), self.model.len());
        let spans = [span(first, end), Span::new(&key(first), &[]), Span::new(&key(first), &[0])];
        for span in spans {
            let expected: Vec<_> =
                self.model.iter().filter(|(key, _)| span.contains(key)).collect();
            let entry = |entry: Entry<'_>| {
                let latest = entry.latest();
                (entry.key().to_vec(), (latest.mod_revision(), !latest.is_tombstone()))
            };
            let found: Vec<_> = self.index.range(&span, None).map(entry).collect();
            assert!(found.iter().map(|(key, state)| (key, state)).eq(expected.iter().copied()));
            let live = expected.iter().filter(|(_, (_, live))| *live).count();
            assert_eq!(self.index.count_live(&span), live as i64);
            if let Some((after, _)) = found.get(found.len() / 2) {
                let rest: Vec<_> = self.index.range(&span, Some(after)).map(entry).collect();
                assert_eq!(rest, found[found.len() / 2 + 1..]);
            }
        }
        for number in [first, end] {
            let found = self.index.get(&key(number)).map(|entry| entry.latest().mod_revision());
            assert_eq!(found, self.model.get(&key(number)).map(|(revision, _)| *revision));
        }
    }

    /// Checks the sizes, the bounds and the counts of all nodes.
    fn check_nodes(&self) {
        check_node(&self.index.root, true, None, None);
    }
}

/// Checks that all keys of a node are in its bounds. Returns its height.
fn check_node(node: &Node, is_root: bool, lower: Option<&[u8]>, upper: Option<&[u8]>) -> usize {
    match node {
        Node::Leaf(leaf) => {
            assert!(leaf.len() <= MAX_LEN && (is_root || leaf.len() >= MIN_LEN));
            if leaf.len() > 0 {
                assert!(lower.is_none_or(|lower| lower <= leaf.first_key()));
                assert!(upper.is_none_or(|upper| leaf.last_key() < upper));
            }
            0
        }
        Node::Inner(children) => {
            assert!(children.len() <= MAX_LEN);
            assert!(children.len() >= if is_root { 2 } else { MIN_LEN });
            let heights = children.as_slice().iter().enumerate().map(|(at, child)| {
                assert_eq!(child.live, child.node.live());
                let lower = if at == 0 { lower } else { Some(&*child.lower) };
                let upper = children.as_slice().get(at + 1).map(|next| &*next.lower).or(upper);
                check_node(&child.node, false, lower, upper)
            });
            let heights: Vec<_> = heights.collect();
            assert!(heights.iter().all(|height| *height == heights[0]));
            heights[0] + 1
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_equals_an_ordered_map(
        steps in prop::collection::vec((step(), 0u16..2000, 0u16..2000), 1..40),
    ) {
        let mut run = Run::default();
        for (step, first, end) in &steps {
            run.execute(step);
            run.check(*first, *end);
            run.check_nodes();
        }
    }
}

/// A tree with three levels of inner nodes shrinks to an empty leaf.
#[test]
fn a_large_index_grows_and_shrinks() {
    let mut run = Run::default();
    let key = |number: u32| format!("/key/{number:06}").into_bytes();
    // 100,003 is a prime number, so the order looks random and every key occurs once.
    let numbers = (0..100_003u32).map(|n| (u64::from(n) * 54_321 % 100_003) as u32);
    numbers.clone().for_each(|number| run.write(&key(number), false));
    run.check_nodes();
    let all = Span::new(&[0], &[0]);
    assert_eq!((run.index.len(), run.index.count_live(&all)), (100_003, 100_003));
    assert!(run.index.range(&all, None).map(|e| e.key()).is_sorted());
    for (removed, number) in numbers.enumerate() {
        run.write(&key(number), true);
        assert_eq!(run.index.count_live(&all), 100_002 - removed as i64);
        run.index.compact(&key(number), run.revision, |_| {});
        if removed % 9973 == 0 {
            run.check_nodes();
        }
    }
    assert_eq!(run.index.len(), 0);
    assert!(run.index.range(&all, None).next().is_none());
}
