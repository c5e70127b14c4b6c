//! What a command may add to the store at most, estimated as etcd does: by the
//! request alone. What only deletes or reads costs nothing and is never refused.

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{PutRequest, RequestOp, TxnRequest};

use crate::Command;

/// Beyond key and value.
const KEY_OVERHEAD_BYTES: usize = 256;
const LEASE_OVERHEAD_BYTES: usize = 64;

/// The estimate; 0 for what adds nothing.
pub(crate) fn cost_bytes(command: &Command) -> i64 {
    let bytes = match command {
        Command::Put(request) => put(request),
        Command::Txn(request) => txn(request),
        Command::LeaseGrant { .. } => LEASE_OVERHEAD_BYTES,
        Command::DeleteRange(_)
        | Command::Compact { .. }
        | Command::LeaseRenew { .. }
        | Command::LeaseRevoke { .. }
        | Command::Alarm { .. } => 0,
    };
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn put(request: &PutRequest) -> usize {
    KEY_OVERHEAD_BYTES + request.key.len() + request.value.len()
}

/// That of the dearer branch.
fn txn(request: &TxnRequest) -> usize {
    let branch = |ops: &[RequestOp]| -> usize {
        let cost = |op: &RequestOp| match &op.request {
            Some(Request::RequestPut(request)) => put(request),
            Some(Request::RequestTxn(nested)) => txn(nested),
            Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => 0,
        };
        ops.iter().map(cost).sum()
    };
    branch(&request.success).max(branch(&request.failure))
}
