//! Computes, before a command is executed, an upper bound of the size of its effects in
//! the log.

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, TxnRequest};

use crate::access::STEP_KEYS;
use crate::branches::{BranchCursor, branch};
use crate::command::Command;
use crate::span::Span;
use crate::span_set::SpanSet;
use crate::store::Store;

/// Upper bound of the size of an effect in bytes, without its key and value.
const EFFECT_OVERHEAD_BYTES: usize = 64;

impl Store {
    /// Returns an upper bound of the size in bytes of the encoded effects of `command`,
    /// if it is executed on the current state.
    pub fn effect_bytes(&self, command: &Command) -> usize {
        self.effect_bytes_unless(command, usize::MAX, &|| false).expect("it is not cancelled")
    }

    /// Like [`Store::effect_bytes`]. `compare_keys` is the limit for the compares of the
    /// transaction that the execution has ([`crate::TxnLimits`]). `cancelled` is called
    /// between steps; `None` if it returns true.
    pub fn effect_bytes_unless(
        &self,
        command: &Command,
        compare_keys: usize,
        cancelled: &dyn Fn() -> bool,
    ) -> Option<usize> {
        Some(match command {
            Command::Put(request) => self.put_bytes(request),
            Command::DeleteRange(request) => {
                let span = Span::new(&request.key, &request.range_end);
                return self.delete_bytes(&span, cancelled);
            }
            Command::Txn(request) if deletes_span(request) => {
                let Some(branches) = self.branches(request, compare_keys, cancelled)? else {
                    return Some(EFFECT_OVERHEAD_BYTES);
                };
                let mut size = SelectedSize {
                    store: self,
                    branches: branches.into_iter(),
                    deleted: SpanSet::default(),
                    cancelled,
                };
                // Also if nothing is executed, an alarm may be raised.
                return size.of(request).map(|bytes| EFFECT_OVERHEAD_BYTES + bytes);
            }
            Command::Txn(request) => self.txn_bytes(request),
            Command::LeaseRevoke { id } => {
                let keys = self.leases.get(*id).into_iter().flat_map(|lease| &lease.keys);
                EFFECT_OVERHEAD_BYTES
                    + keys.map(|key| EFFECT_OVERHEAD_BYTES + key.as_bytes().len()).sum::<usize>()
            }
            Command::Auth(command) => {
                let change = command.evaluate(&self.auth).ok().flatten();
                EFFECT_OVERHEAD_BYTES + change.map_or(0, |change| change.kind.content_len())
            }
            Command::Compact { .. }
            | Command::LeaseGrant { .. }
            | Command::LeaseRenew { .. }
            | Command::Alarm { .. } => EFFECT_OVERHEAD_BYTES,
        })
    }

    /// Whether changes by other commands invalidate the bound of [`Store::effect_bytes`]:
    /// `command` copies the current value of a key (`ignore_value`) or a user or role, or it is a
    /// transaction that deletes spans, of which only the selected branches count.
    pub fn bound_needs_current_state(command: &Command) -> bool {
        match command {
            Command::Put(request) => request.ignore_value,
            Command::Auth(_) => true,
            Command::Txn(request) => any_op(request, &|op| match op {
                Request::RequestPut(put) => put.ignore_value,
                op => is_span_delete(op),
            }),
            _ => false,
        }
    }

    fn put_bytes(&self, request: &PutRequest) -> usize {
        let copied = match request.ignore_value {
            true => self.index.get(&request.key).map_or(0, |e| e.latest().value().len()),
            false => 0,
        };
        // Counted twice, for the put and for a deletion of the key by a later operation
        // of the same transaction: delete_bytes counts only keys that exist before the
        // command.
        2 * (EFFECT_OVERHEAD_BYTES + request.key.len()) + request.value.len().max(copied)
    }

    fn delete_bytes(&self, span: &Span, cancelled: &dyn Fn() -> bool) -> Option<usize> {
        if let Some(key) = span.as_point() {
            return Some(EFFECT_OVERHEAD_BYTES + key.len());
        }
        let mut bytes = 0;
        for (visited, entry) in self.index.range(span, None).enumerate() {
            if visited % STEP_KEYS == STEP_KEYS - 1 && cancelled() {
                return None;
            }
            if !entry.latest().is_tombstone() {
                bytes += EFFECT_OVERHEAD_BYTES + entry.key().len();
            }
        }
        Some(bytes)
    }

    /// Returns the bound for a transaction that deletes no spans, over both branches.
    fn txn_bytes(&self, request: &TxnRequest) -> usize {
        let ops = request.success.iter().chain(&request.failure);
        ops.map(|op| match &op.request {
            Some(Request::RequestPut(put)) => self.put_bytes(put),
            Some(Request::RequestDeleteRange(delete)) => EFFECT_OVERHEAD_BYTES + delete.key.len(),
            Some(Request::RequestTxn(nested)) => self.txn_bytes(nested),
            Some(Request::RequestRange(_)) | None => 0,
        })
        .sum()
    }

    /// Returns the branches that the compares of `request` select. The inner value is `None`
    /// if the compares visit too many keys, so that the transaction will be rejected.
    fn branches(
        &self,
        request: &TxnRequest,
        mut compare_keys: usize,
        cancelled: &dyn Fn() -> bool,
    ) -> Option<Option<Vec<bool>>> {
        let mut cursor = BranchCursor::new(request, self.revision);
        loop {
            let step = STEP_KEYS.min(compare_keys);
            if cursor.step(self, step) {
                return Some(Some(cursor.finish()));
            }
            compare_keys -= step;
            if compare_keys == 0 {
                return Some(None);
            }
            if cancelled() {
                return None;
            }
        }
    }
}

/// Computes the bound for the selected branches of a transaction.
struct SelectedSize<'a> {
    store: &'a Store,
    /// The selected branches that are left.
    branches: std::vec::IntoIter<bool>,
    /// The spans that are deleted. Each key in them is counted once: to exist again, it has
    /// to be put, and each put counts for a deletion too.
    deleted: SpanSet,
    cancelled: &'a dyn Fn() -> bool,
}

impl SelectedSize<'_> {
    /// Returns the bound for a transaction, or `None` if it was cancelled.
    fn of(&mut self, request: &TxnRequest) -> Option<usize> {
        let succeeded = self.branches.next().expect("a branch was selected for each transaction");
        let mut bytes = 0;
        for op in branch(request, succeeded) {
            bytes += match &op.request {
                Some(Request::RequestPut(put)) => self.store.put_bytes(put),
                Some(Request::RequestDeleteRange(delete)) => self.of_delete(delete)?,
                Some(Request::RequestTxn(nested)) => self.of(nested)?,
                Some(Request::RequestRange(_)) | None => 0,
            };
        }
        Some(bytes)
    }

    fn of_delete(&mut self, request: &DeleteRangeRequest) -> Option<usize> {
        let span = Span::new(&request.key, &request.range_end);
        if span.as_point().is_some() {
            return self.store.delete_bytes(&span, self.cancelled);
        }
        let mut bytes = 0;
        for part in self.deleted.insert(&span) {
            bytes += self.store.delete_bytes(&part, self.cancelled)?;
        }
        Some(bytes)
    }
}

/// Whether a transaction, or a nested one, deletes a span of keys in any branch.
fn deletes_span(request: &TxnRequest) -> bool {
    any_op(request, &is_span_delete)
}

fn is_span_delete(op: &Request) -> bool {
    matches!(op, Request::RequestDeleteRange(delete) if !delete.range_end.is_empty())
}

/// Whether `test` is true for an operation of a transaction or of a nested one.
fn any_op(request: &TxnRequest, test: &dyn Fn(&Request) -> bool) -> bool {
    request.success.iter().chain(&request.failure).any(|op| match &op.request {
        Some(Request::RequestTxn(nested)) => any_op(nested, test),
        Some(op) => test(op),
        None => false,
    })
}
