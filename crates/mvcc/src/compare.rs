//! Compares: the conditions of a transaction, evaluated in bounded steps.

use std::cmp::Ordering;

use etcdpb::rpc::Compare;
use etcdpb::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use etcdpb::{Key, Record};

use crate::span::Span;
use crate::store::Store;

/// The evaluation of the compares of one transaction.
pub(crate) struct CompareCursor<'r> {
    /// The compares that are left. The first one may have been evaluated in part.
    compares: &'r [Compare],
    /// The last visited key of the first compare.
    after: Option<Key>,
    /// Whether a visited key of the first compare exists.
    found: bool,
}

impl<'r> CompareCursor<'r> {
    pub(crate) fn new(compares: &'r [Compare]) -> Self {
        CompareCursor { compares, after: None, found: false }
    }

    /// Continues the evaluation at `revision`, and visits at most `keys_left` keys, which it
    /// subtracts. Returns whether all compares are true; `None` if keys are left to
    /// be visited.
    pub(crate) fn step(
        &mut self,
        store: &Store,
        revision: i64,
        keys_left: &mut usize,
    ) -> Option<bool> {
        while let [compare, rest @ ..] = self.compares {
            if !self.compare_holds(store, revision, compare, keys_left)? {
                return Some(false);
            }
            *self = CompareCursor::new(rest);
        }
        Some(true)
    }

    /// Whether `compare` is true for every key in its span. If no key exists in the span,
    /// one key that does not exist is compared, and counts as visited. `None` if keys are left
    /// to be visited.
    fn compare_holds(
        &mut self,
        store: &Store,
        revision: i64,
        compare: &Compare,
        keys_left: &mut usize,
    ) -> Option<bool> {
        let span = Span::new(&compare.key, &compare.range_end);
        if *keys_left == 0 {
            return None;
        }
        if let Some(key) = span.as_point() {
            *keys_left -= 1;
            let record = store.index.get(key).and_then(|e| e.live_at(revision));
            return Some(compare_record(compare, record));
        }
        let after = self.after.take();
        let mut last = None;
        for entry in store.index.range(&span, after.as_ref().map(Key::as_bytes)) {
            if *keys_left == 0 {
                self.after = last.map(Key::new);
                return None;
            }
            *keys_left -= 1;
            last = Some(entry.key());
            let Some(record) = entry.live_at(revision) else { continue };
            self.found = true;
            if !compare_record(compare, Some(record)) {
                return Some(false);
            }
        }
        if last.is_none() {
            *keys_left -= 1;
        }
        Some(self.found || compare_record(compare, None))
    }
}

/// Whether `compare` is true for one key. `record` is `None` for a key that does not
/// exist: its version, revisions and lease are then 0.
fn compare_record(compare: &Compare, record: Option<&Record>) -> bool {
    let number = |of: fn(&Record) -> i64| record.map_or(0, of);
    let union = compare.target_union.as_ref();
    // As in etcd, a missing operand counts as 0.
    let operand = |pick: fn(&TargetUnion) -> Option<i64>| union.and_then(pick).unwrap_or(0);
    let order = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => number(Record::version).cmp(&operand(|u| match u {
            TargetUnion::Version(n) => Some(*n),
            _ => None,
        })),
        Ok(CompareTarget::Create) => number(Record::create_revision).cmp(&operand(|u| match u {
            TargetUnion::CreateRevision(n) => Some(*n),
            _ => None,
        })),
        Ok(CompareTarget::Mod) => number(Record::mod_revision).cmp(&operand(|u| match u {
            TargetUnion::ModRevision(n) => Some(*n),
            _ => None,
        })),
        Ok(CompareTarget::Lease) => number(Record::lease).cmp(&operand(|u| match u {
            TargetUnion::Lease(n) => Some(*n),
            _ => None,
        })),
        Ok(CompareTarget::Value) => {
            // A key that does not exist has no value. As in etcd, a comparison of its
            // value is false.
            let Some(record) = record else { return false };
            let value: &[u8] = match union {
                Some(TargetUnion::Value(value)) => value,
                _ => &[],
            };
            record.value().cmp(value)
        }
        // As in etcd, an unknown target compares nothing: the result is "equal".
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => order == Ordering::Equal,
        Ok(CompareResult::NotEqual) => order != Ordering::Equal,
        Ok(CompareResult::Greater) => order == Ordering::Greater,
        Ok(CompareResult::Less) => order == Ordering::Less,
        // As in etcd, an unknown operator is always true.
        Err(_) => true,
    }
}
