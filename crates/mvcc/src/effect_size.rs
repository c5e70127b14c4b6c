//! Computes, before a command is executed, an upper bound of the size of its effects in
//! the log.

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, TxnRequest};

use crate::command::Command;
use crate::span::Span;
use crate::store::Store;

/// Upper bound of the size of an effect in bytes, without its key and value.
const EFFECT_OVERHEAD_BYTES: usize = 64;

impl Store {
    /// Returns an upper bound of the size in bytes of the encoded effects of `command`,
    /// if it is executed on the current state.
    pub fn effect_bytes(&self, command: &Command) -> usize {
        match command {
            Command::Put(request) => self.put_bytes(request),
            Command::DeleteRange(request) => self.delete_bytes(request),
            Command::Txn(request) => self.txn_bytes(request),
            Command::LeaseRevoke { id } => {
                let keys = self.leases.get(*id).into_iter().flat_map(|lease| &lease.keys);
                EFFECT_OVERHEAD_BYTES
                    + keys.map(|key| EFFECT_OVERHEAD_BYTES + key.as_bytes().len()).sum::<usize>()
            }
            Command::Compact { .. }
            | Command::LeaseGrant { .. }
            | Command::LeaseRenew { .. }
            | Command::Alarm { .. } => EFFECT_OVERHEAD_BYTES,
        }
    }

    /// Whether `command` copies the current value of a key (`ignore_value`). A change of
    /// this value invalidates the bound of [`Store::effect_bytes`].
    pub fn copies_value(command: &Command) -> bool {
        match command {
            Command::Put(request) => request.ignore_value,
            Command::Txn(request) => txn_copies_value(request),
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

    fn delete_bytes(&self, request: &DeleteRangeRequest) -> usize {
        let span = Span::new(&request.key, &request.range_end);
        if let Some(key) = span.as_point() {
            return EFFECT_OVERHEAD_BYTES + key.len();
        }
        let live = self.index.range(&span, None).filter(|(_, e)| !e.latest().is_tombstone());
        live.map(|(key, _)| EFFECT_OVERHEAD_BYTES + key.as_bytes().len()).sum()
    }

    fn txn_bytes(&self, request: &TxnRequest) -> usize {
        let ops = request.success.iter().chain(&request.failure);
        ops.map(|op| match &op.request {
            Some(Request::RequestPut(put)) => self.put_bytes(put),
            Some(Request::RequestDeleteRange(delete)) => self.delete_bytes(delete),
            Some(Request::RequestTxn(nested)) => self.txn_bytes(nested),
            Some(Request::RequestRange(_)) | None => 0,
        })
        .sum()
    }
}

/// Whether an operation of a transaction, or of a nested one, copies the current value of a key.
fn txn_copies_value(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).any(|op| match &op.request {
        Some(Request::RequestPut(put)) => put.ignore_value,
        Some(Request::RequestTxn(nested)) => txn_copies_value(nested),
        _ => false,
    })
}
