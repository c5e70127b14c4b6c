//! The first pass of a transaction: its compares, and those of nested transactions, select
//! the branches that are executed.

use std::slice;

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{RequestOp, TxnRequest};

use crate::compare::CompareCursor;
use crate::store::Store;

/// Evaluates all compares at one revision, in bounded steps.
pub struct BranchCursor<'r> {
    /// The revision to read.
    revision: i64,
    /// The transaction whose compares are evaluated; `None` at the end.
    current: Option<(&'r TxnRequest, CompareCursor<'r>)>,
    /// The operations that are left of the selected branches around it.
    parents: Vec<slice::Iter<'r, RequestOp>>,
    selected: Vec<bool>,
}

impl<'r> BranchCursor<'r> {
    /// Starts the evaluation at `revision`. The store must not collect the history of this
    /// revision until it is complete.
    pub fn new(request: &'r TxnRequest, revision: i64) -> Self {
        let current = Some((request, CompareCursor::new(&request.compare)));
        BranchCursor { revision, current, parents: Vec::new(), selected: Vec::with_capacity(1) }
    }

    /// Visits at most `max_keys` keys. Returns whether all branches are selected.
    pub fn step(&mut self, store: &Store, max_keys: usize) -> bool {
        let mut keys_left = max_keys;
        while let Some((txn, compares)) = &mut self.current {
            let txn: &'r TxnRequest = txn;
            let Some(succeeded) = compares.step(store, self.revision, &mut keys_left) else {
                return false;
            };
            self.selected.push(succeeded);
            let ops = branch(txn, succeeded);
            if ops.iter().any(|op| nested(op).is_some()) {
                self.parents.push(ops.iter());
            }
            self.current = self.next_nested().map(|txn| (txn, CompareCursor::new(&txn.compare)));
        }
        true
    }

    /// Returns the next nested transaction in the selected branches.
    fn next_nested(&mut self) -> Option<&'r TxnRequest> {
        while let Some(ops) = self.parents.last_mut() {
            match ops.find_map(nested) {
                None => drop(self.parents.pop()),
                found => return found,
            }
        }
        None
    }

    /// Returns the selected branches of the transaction and its nested transactions, parents
    /// before children; true stands for the success branch. [`BranchCursor::step`] must have
    /// returned true.
    pub(crate) fn finish(self) -> Vec<bool> {
        self.selected
    }
}

fn nested(op: &RequestOp) -> Option<&TxnRequest> {
    match &op.request {
        Some(Request::RequestTxn(nested)) => Some(nested),
        _ => None,
    }
}

/// Returns the operations of a branch.
pub(crate) fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

#[cfg(test)]
mod tests {
    use etcdpb::rpc::Compare;

    use super::*;

    /// Compares of single keys, and of ranges without keys, count as well: nested transactions
    /// may have very many.
    #[test]
    fn a_step_ends_after_a_number_of_compares() {
        let key = || b"key".to_vec().into();
        let single = Compare { key: key(), ..Compare::default() };
        let empty = Compare { range_end: b"kez".to_vec().into(), ..single.clone() };
        let compare = [vec![single; 50], vec![empty; 50]].concat();
        let nested = TxnRequest { compare, ..TxnRequest::default() };
        let op = RequestOp { request: Some(Request::RequestTxn(nested)) };
        let request = TxnRequest { success: vec![op; 20], ..TxnRequest::default() };
        let store = Store::default();
        let mut cursor = BranchCursor::new(&request, store.revision());
        let mut steps = 1;
        while !cursor.step(&store, 128) {
            steps += 1;
        }
        assert_eq!(steps, 2000_usize.div_ceil(128));
        assert_eq!(cursor.finish(), [true; 21]);
    }
}
