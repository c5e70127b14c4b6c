//! Finds transactions that could change a key twice, which etcd rejects.
//!
//! etcd visits the operations of a branch in this order: deletes, nested transactions, puts. A
//! put is a duplicate if an earlier put has the same key, or an earlier delete includes the key,
//! unless the two are in different branches of the same nested transaction: only one of these
//! is executed. Two deletes never conflict.
//!
//! One visit finds the duplicates in `O(n log n)` for `n` operations:
//!
//! - *Puts:* it is enough to compare a put with the last one of the same key. If no two
//!   successive puts of a key conflict, no others do.
//! - *Deletes:* a Fenwick tree counts for each key the deletes that include it. While the second
//!   branch of a nested transaction is visited, the deletes of the first one do not count. The
//!   branch with fewer deletes comes first, so each delete is taken out at most `log n` times.

use std::ops::Range;

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{RequestOp, TxnRequest};

/// Whether a branch of the transaction, or of a nested one, could change a key twice.
pub(super) fn has_duplicate_key(request: &TxnRequest) -> bool {
    // The transactions of Kubernetes have one operation in a branch.
    let is_single = |ops: &[RequestOp]| match ops {
        [] => true,
        [op] => !matches!(op.request, Some(Request::RequestTxn(_))),
        _ => false,
    };
    if is_single(&request.success) && is_single(&request.failure) {
        return false;
    }
    let mut puts = Vec::new();
    let branches = branches(request, &mut puts);
    Visit::new(puts).has_duplicate_in(&branches)
}

/// The changes of a branch.
struct Branch<'a> {
    /// Key and range end of each delete.
    deletes: Vec<(&'a [u8], &'a [u8])>,
    /// The branches of the nested transactions.
    nested: Vec<[Branch<'a>; 2]>,
    /// The positions of its puts among those of all branches.
    puts: Range<usize>,
    /// Number of deletes, with those of nested transactions.
    all_deletes: usize,
}

/// Returns the branches of a transaction; first the one with fewer deletes. Appends the keys of
/// their puts to `puts`.
fn branches<'a>(request: &'a TxnRequest, puts: &mut Vec<&'a [u8]>) -> [Branch<'a>; 2] {
    let mut branches = [&request.success, &request.failure].map(|ops| Branch::new(ops, puts));
    branches.sort_by_key(|branch| branch.all_deletes);
    branches
}

impl<'a> Branch<'a> {
    fn new(ops: &'a [RequestOp], puts: &mut Vec<&'a [u8]>) -> Self {
        let (mut deletes, mut nested) = (Vec::new(), Vec::new());
        for op in ops {
            match &op.request {
                Some(Request::RequestDeleteRange(delete)) => {
                    deletes.push((&delete.key[..], &delete.range_end[..]));
                }
                Some(Request::RequestTxn(txn)) => nested.push(branches(txn, puts)),
                _ => {}
            }
        }
        let first_put = puts.len();
        puts.extend(ops.iter().filter_map(|op| match &op.request {
            Some(Request::RequestPut(put)) => Some(&put.key[..]),
            _ => None,
        }));
        let nested_deletes = nested.iter().flatten().map(|branch: &Branch| branch.all_deletes);
        let all_deletes = deletes.len() + nested_deletes.sum::<usize>();
        Branch { deletes, nested, puts: first_put..puts.len(), all_deletes }
    }
}

/// The state of the visit. Times are numbers of visited puts.
struct Visit<'a> {
    /// The keys of all puts, in order, without duplicates.
    keys: Vec<&'a [u8]>,
    /// The position in `keys` of the key of each put.
    positions: Vec<usize>,
    /// The number of visited puts.
    now: usize,
    /// The time of the last put of each key.
    last_puts: Vec<Option<usize>>,
    /// The branches around the current operation; the outermost is the first.
    open: Vec<OpenBranch>,
    /// The keys that each visited delete includes.
    deletes: Vec<Range<usize>>,
    /// Counts the deletes of each key.
    deleted: Fenwick,
}

struct OpenBranch {
    /// The time when the visit of its transaction began.
    txn_start: usize,
    /// The time when its own visit began.
    start: usize,
}

impl<'a> Visit<'a> {
    fn new(puts: Vec<&'a [u8]>) -> Self {
        let mut sorted: Vec<(&[u8], usize)> =
            puts.iter().enumerate().map(|(n, key)| (*key, n)).collect();
        sorted.sort_unstable();
        let (mut keys, mut positions) = (Vec::new(), vec![0; puts.len()]);
        for (key, put) in sorted {
            if keys.last() != Some(&key) {
                keys.push(key);
            }
            positions[put] = keys.len() - 1;
        }
        Visit {
            positions,
            now: 0,
            last_puts: vec![None; keys.len()],
            open: Vec::new(),
            deletes: Vec::new(),
            deleted: Fenwick::new(keys.len()),
            keys,
        }
    }

    fn has_duplicate_in(&mut self, [first, second]: &[Branch<'a>; 2]) -> bool {
        let (txn_start, from) = (self.now, self.deletes.len());
        if self.has_duplicate_in_branch(first, txn_start) {
            return true;
        }
        let of_first = from..self.deletes.len();
        of_first.clone().for_each(|delete| self.deleted.add(&self.deletes[delete], -1));
        if self.has_duplicate_in_branch(second, txn_start) {
            return true;
        }
        of_first.for_each(|delete| self.deleted.add(&self.deletes[delete], 1));
        false
    }

    fn has_duplicate_in_branch(&mut self, branch: &Branch<'a>, txn_start: usize) -> bool {
        self.open.push(OpenBranch { txn_start, start: self.now });
        for (key, end) in &branch.deletes {
            let keys = self.included_keys(key, end);
            self.deleted.add(&keys, 1);
            self.deletes.push(keys);
        }
        let duplicate = branch.nested.iter().any(|nested| self.has_duplicate_in(nested))
            || branch.puts.clone().any(|put| self.is_duplicate(put));
        self.open.pop();
        duplicate
    }

    /// Returns the positions of the keys that a delete includes. The range end `"\0"` means all
    /// keys from `key` on. As in etcd, it is compared as an ordinary key here, so such a delete
    /// conflicts with no put. If a put and such a delete change the same key, they are executed
    /// in order.
    fn included_keys(&self, key: &[u8], end: &[u8]) -> Range<usize> {
        let from = self.keys.partition_point(|found| *found < key);
        let to = match end {
            [] => self.keys.partition_point(|found| *found <= key),
            end => self.keys.partition_point(|found| *found < end),
        };
        from..to.max(from)
    }

    /// Visits a put.
    fn is_duplicate(&mut self, put: usize) -> bool {
        let key = self.positions[put];
        let before = self.last_puts[key].replace(self.now);
        self.now += 1;
        self.deleted.get(key) > 0 || before.is_some_and(|before| self.conflicts(before))
    }

    /// Whether a put that was visited at this time conflicts with another one of the same key in
    /// the current branch.
    fn conflicts(&self, before: usize) -> bool {
        // The innermost open transaction that contains both. If the earlier put is not in the
        // branch that is open, it is in the other one.
        let around = self.open.partition_point(|branch| branch.txn_start <= before);
        self.open[around - 1].start <= before
    }
}

/// Numbers that are changed by range, in logarithmic time.
struct Fenwick {
    /// The differences between neighbours, as a Fenwick tree.
    differences: Vec<isize>,
}

impl Fenwick {
    fn new(len: usize) -> Self {
        Fenwick { differences: vec![0; len + 2] }
    }

    fn add(&mut self, range: &Range<usize>, number: isize) {
        for (start, number) in [(range.start, number), (range.end, -number)] {
            let mut at = start + 1;
            while at < self.differences.len() {
                self.differences[at] += number;
                at += at & at.wrapping_neg();
            }
        }
    }

    fn get(&self, at: usize) -> isize {
        let (mut at, mut sum) = (at + 1, 0);
        while at > 0 {
            sum += self.differences[at];
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use etcdpb::rpc::{DeleteRangeRequest, PutRequest};
    use proptest::prelude::*;

    use super::*;

    type Delete = (Vec<u8>, Vec<u8>);

    /// Does what etcd's `checkIntervals` does. Returns the keys that a branch puts, and its
    /// deletes; `None` if there is a duplicate.
    fn check_as_etcd(ops: &[RequestOp]) -> Option<(Vec<Vec<u8>>, Vec<Delete>)> {
        fn add_put(puts: &mut Vec<Vec<u8>>, deletes: &[Delete], key: &[u8]) -> Option<()> {
            let deleted = deletes.iter().any(|(start, end)| match end.is_empty() {
                true => start == key,
                false => start[..] <= *key && *key < end[..],
            });
            if deleted || puts.iter().any(|put| put == key) {
                return None;
            }
            puts.push(key.to_vec());
            Some(())
        }
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        for op in ops {
            if let Some(Request::RequestDeleteRange(delete)) = &op.request {
                deletes.push((delete.key.to_vec(), delete.range_end.to_vec()));
            }
        }
        for op in ops {
            if let Some(Request::RequestTxn(txn)) = &op.request {
                let (then, then_deletes) = check_as_etcd(&txn.success)?;
                let (otherwise, other_deletes) = check_as_etcd(&txn.failure)?;
                for key in &then {
                    add_put(&mut puts, &deletes, key)?;
                }
                for key in otherwise.iter().filter(|key| !then.contains(key)) {
                    add_put(&mut puts, &deletes, key)?;
                }
                deletes.extend(then_deletes.into_iter().chain(other_deletes));
            }
        }
        for op in ops {
            if let Some(Request::RequestPut(put)) = &op.request {
                add_put(&mut puts, &deletes, &put.key)?;
            }
        }
        Some((puts, deletes))
    }

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put(key: Vec<u8>) -> RequestOp {
        op(Request::RequestPut(PutRequest { key: key.into(), ..Default::default() }))
    }

    /// Generates transactions with few keys, so that about half of them have duplicates.
    fn txns() -> impl Strategy<Value = TxnRequest> {
        let key = || (b'a'..=b'z').prop_map(|byte| vec![byte]);
        let end = prop_oneof![Just(vec![]), Just(vec![0]), key()];
        let delete = (key(), end).prop_map(|(key, range_end)| {
            let (key, range_end) = (key.into(), range_end.into());
            op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false }))
        });
        let leaf = prop_oneof![4 => key().prop_map(put), 1 => delete];
        let ops = leaf.prop_recursive(5, 40, 4, |inner| {
            let branch = || prop::collection::vec(inner.clone(), 0..4);
            (branch(), branch()).prop_map(|(success, failure)| {
                op(Request::RequestTxn(TxnRequest { compare: vec![], success, failure }))
            })
        });
        let branch = || prop::collection::vec(ops.clone(), 0..4);
        (branch(), branch()).prop_map(|(success, failure)| TxnRequest {
            compare: vec![],
            success,
            failure,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]
        #[test]
        fn duplicates_are_those_of_etcd(txn in txns()) {
            let branches = [&txn.success, &txn.failure];
            let expected = branches.iter().any(|ops| check_as_etcd(ops).is_none());
            prop_assert_eq!(has_duplicate_key(&txn), expected);
        }
    }

    /// At each of 100 levels, a branch with deletes and one with a put of its own are nested in
    /// the branch around them.
    #[test]
    fn deep_transactions_are_checked_quickly() {
        let key = |level: usize, n: usize| format!("{level}/{n}").into_bytes();
        let delete = |n: usize| {
            let key = format!("deleted/{n}").into_bytes().into();
            op(Request::RequestDeleteRange(DeleteRangeRequest { key, ..Default::default() }))
        };
        let mut success: Vec<_> = (0..20_000).map(|n| put(key(0, n))).collect();
        success.extend((0..20_000).map(delete));
        for level in 1..100 {
            let failure = vec![put(key(level, 0)), delete(level)];
            let txn = TxnRequest { compare: vec![], success, failure };
            success = vec![op(Request::RequestTxn(txn)), put(key(level, 1))];
        }
        let Some(Request::RequestTxn(nested)) = &success[0].request else { unreachable!() };
        let [first, second] = branches(nested, &mut Vec::new());
        assert_eq!((first.all_deletes, second.all_deletes), (1, 20_098), "deletes that are moved");
        let txn = TxnRequest { success, ..Default::default() };
        // It may take longer on a busy machine, but not each time.
        let is_quick = |_: i32| {
            let start = std::time::Instant::now();
            assert!(!has_duplicate_key(&txn));
            start.elapsed() < std::time::Duration::from_secs(1)
        };
        assert!((0..5).any(is_quick), "each of five attempts took a second or more");
    }
}
