//! Estimates, before a command is executed, how much work it is.

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{RequestOp, TxnRequest};

use crate::command::Command;
use crate::span::Span;
use crate::store::Store;

/// Maximum number of compares and operations of a small transaction. Those of Kubernetes have
/// three.
const SMALL_TXN_OPS: usize = 16;

impl Command {
    /// Whether the command visits only a few keys, whatever the store contains.
    pub fn is_small(&self) -> bool {
        match self {
            Command::Put(_)
            | Command::Compact { .. }
            | Command::LeaseGrant { .. }
            | Command::LeaseRenew { .. }
            | Command::Alarm { .. } => true,
            Command::DeleteRange(request) => request.range_end.is_empty(),
            Command::Txn(request) => is_small_txn(request),
            // A lease may have many keys, a role many users.
            Command::LeaseRevoke { .. } | Command::Auth(_) => false,
        }
    }
}

/// Whether a transaction has few operations, all of them on single keys.
fn is_small_txn(request: &TxnRequest) -> bool {
    let on_single_key = |op: &RequestOp| match &op.request {
        Some(Request::RequestRange(range)) => range.range_end.is_empty(),
        Some(Request::RequestPut(_)) | None => true,
        Some(Request::RequestDeleteRange(delete)) => delete.range_end.is_empty(),
        Some(Request::RequestTxn(_)) => false,
    };
    request.compare.len() + request.success.len() + request.failure.len() <= SMALL_TXN_OPS
        && request.compare.iter().all(|compare| compare.range_end.is_empty())
        && request.success.iter().all(on_single_key)
        && request.failure.iter().all(on_single_key)
}

impl Store {
    /// Returns the approximate number of keys that `command` visits, or at least `limit` if it
    /// visits more. It visits `limit` keys at most.
    pub fn visited_keys(&self, command: &Command, limit: usize) -> usize {
        match command {
            Command::DeleteRange(request) => self.keys_in(&request.key, &request.range_end, limit),
            Command::Txn(request) => self.txn_keys(request, limit),
            Command::LeaseRevoke { id } => 1 + self.lease(*id).map_or(0, |lease| lease.keys.len()),
            Command::Put(_)
            | Command::Compact { .. }
            | Command::LeaseGrant { .. }
            | Command::LeaseRenew { .. }
            | Command::Alarm { .. } => 1,
            Command::Auth(_) => 1 + self.auth.users().count(),
        }
    }

    /// Counts the keys of a span up to `limit`; an empty span counts as one.
    fn keys_in(&self, key: &[u8], range_end: &[u8], limit: usize) -> usize {
        let span = Span::new(key, range_end);
        match span.as_point().is_some() || span.is_empty() {
            true => 1,
            false => self.index.range(&span, None).take(limit).count().max(1),
        }
    }

    /// Counts the keys of the compares and of the operations in both branches.
    fn txn_keys(&self, request: &TxnRequest, limit: usize) -> usize {
        let mut keys = 0;
        for compare in &request.compare {
            if keys >= limit {
                return keys;
            }
            keys += self.keys_in(&compare.key, &compare.range_end, limit - keys);
        }
        for op in request.success.iter().chain(&request.failure) {
            if keys >= limit {
                return keys;
            }
            keys += self.op_keys(op, limit - keys);
        }
        keys
    }

    fn op_keys(&self, op: &RequestOp, limit: usize) -> usize {
        match &op.request {
            Some(Request::RequestRange(range)) => self.keys_in(&range.key, &range.range_end, limit),
            Some(Request::RequestDeleteRange(delete)) => {
                self.keys_in(&delete.key, &delete.range_end, limit)
            }
            Some(Request::RequestTxn(nested)) => self.txn_keys(nested, limit),
            Some(Request::RequestPut(_)) | None => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use etcdpb::rpc::{Compare, DeleteRangeRequest, PutRequest, RangeRequest};

    use super::*;
    use crate::effect::Effects;

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put(key: &str) -> PutRequest {
        PutRequest { key: key.as_bytes().to_vec().into(), ..Default::default() }
    }

    #[test]
    fn commands_on_single_keys_are_small() {
        let point = DeleteRangeRequest { key: "a".into(), ..Default::default() };
        let span = DeleteRangeRequest { range_end: "b".into(), ..point.clone() };
        let txn = |compare: Compare, op: Request| TxnRequest {
            compare: vec![compare],
            success: vec![self::op(op)],
            ..Default::default()
        };
        let compare = Compare { key: "a".into(), ..Default::default() };
        let wide = Compare { range_end: "b".into(), ..compare.clone() };
        let range = RangeRequest { key: "a".into(), range_end: "b".into(), ..Default::default() };
        let put = || Request::RequestPut(put("a"));
        assert!(Command::DeleteRange(point).is_small());
        assert!(!Command::DeleteRange(span.clone()).is_small());
        assert!(Command::Txn(txn(compare.clone(), put())).is_small());
        assert!(!Command::Txn(txn(wide, put())).is_small());
        for request in [Request::RequestDeleteRange(span), Request::RequestRange(range)] {
            assert!(!Command::Txn(txn(compare.clone(), request)).is_small());
        }
        let mut many = txn(compare, put());
        many.failure = vec![op(put()); SMALL_TXN_OPS];
        assert!(!Command::Txn(many.clone()).is_small());
        let nested =
            TxnRequest { success: vec![op(Request::RequestTxn(many))], ..Default::default() };
        assert!(!Command::Txn(nested).is_small());
        assert!(!Command::LeaseRevoke { id: 1 }.is_small());
    }

    #[test]
    fn keys_are_counted_up_to_the_limit() {
        let mut store = Store::default();
        for n in 0..50 {
            store.apply(&Command::Put(put(&format!("a{n}"))), &mut Effects::new()).unwrap();
        }
        let (key, range_end) = ("a".into(), "b".into());
        let delete = DeleteRangeRequest { key, range_end, prev_kv: false };
        let deletion = Request::RequestDeleteRange(delete.clone());
        assert_eq!(store.visited_keys(&Command::DeleteRange(delete), 1000), 50);
        let nested = TxnRequest { success: vec![op(deletion); 2], ..Default::default() };
        let nested = op(Request::RequestTxn(nested));
        let put = op(Request::RequestPut(put("a")));
        let txn = TxnRequest { success: vec![put, nested], ..Default::default() };
        assert_eq!(store.visited_keys(&Command::Txn(txn.clone()), 1000), 101);
        assert_eq!(store.visited_keys(&Command::Txn(txn), 70), 70);
    }
}
