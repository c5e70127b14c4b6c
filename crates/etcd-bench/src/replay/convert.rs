//! Converts recorded requests to the messages that the replay sends.

use bytes::{Buf, BufMut, Bytes};
use etcdpb::rpc;
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use rpc::request_op::Request as Operation;
use rpc::watch_request::RequestUnion;
use trace::{Compare, Delete, Operand, Put, Range, Request, Txn};

use super::revisions::Revisions;

/// An encoded protobuf message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Raw(pub Bytes);

impl Message for Raw {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        _tag: u32,
        _wire_type: WireType,
        _buffer: &mut impl Buf,
        _context: DecodeContext,
    ) -> Result<(), DecodeError> {
        unreachable!("Raw::decode does not parse fields")
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn decode(mut buffer: impl Buf) -> Result<Self, DecodeError> {
        Ok(Raw(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Encodes `request` with translated revisions and lease IDs. Returns `None` if the request, or
/// an operation in its transaction, is not decoded in the trace.
pub fn encode_request(request: &Request, revisions: &mut Revisions) -> Option<Raw> {
    let bytes = match request {
        Request::Range(m) => range(m, revisions).encode_to_vec(),
        Request::Put(m) => put(m, revisions).encode_to_vec(),
        Request::Delete(m) => delete(m).encode_to_vec(),
        Request::Txn(m) => txn(m, revisions)?.encode_to_vec(),
        Request::Compact { revision, physical } => {
            let revision = revisions.translate_revision(*revision);
            rpc::CompactionRequest { revision, physical: *physical }.encode_to_vec()
        }
        // The server chooses the ID.
        Request::LeaseGrant { ttl, .. } => {
            rpc::LeaseGrantRequest { ttl: *ttl, id: 0 }.encode_to_vec()
        }
        Request::LeaseRevoke { id } => {
            rpc::LeaseRevokeRequest { id: revisions.translate_lease(*id) }.encode_to_vec()
        }
        Request::LeaseKeepAlive { id } => {
            rpc::LeaseKeepAliveRequest { id: revisions.translate_lease(*id) }.encode_to_vec()
        }
        Request::LeaseTimeToLive { id, keys } => {
            rpc::LeaseTimeToLiveRequest { id: revisions.translate_lease(*id), keys: *keys }
                .encode_to_vec()
        }
        Request::WatchCreate(m) => {
            let create = rpc::WatchCreateRequest {
                key: m.key.0.clone(),
                range_end: m.range_end.0.clone(),
                start_revision: revisions.translate_start_revision(m.start_revision),
                progress_notify: m.progress_notify,
                prev_kv: m.prev_kv,
                fragment: m.fragment,
                filters: m.filters.clone(),
                watch_id: m.watch_id,
            };
            encode_watch_request(RequestUnion::CreateRequest(create))
        }
        // Watch IDs need no translation: every server numbers the watches of a stream in the
        // order of their requests.
        Request::WatchCancel { watch_id } => {
            let cancel = rpc::WatchCancelRequest { watch_id: *watch_id };
            encode_watch_request(RequestUnion::CancelRequest(cancel))
        }
        Request::WatchProgress => {
            encode_watch_request(RequestUnion::ProgressRequest(rpc::WatchProgressRequest {}))
        }
        Request::Undecoded => return None,
    };
    Some(Raw(bytes.into()))
}

fn encode_watch_request(union: RequestUnion) -> Vec<u8> {
    rpc::WatchRequest { request_union: Some(union) }.encode_to_vec()
}

fn range(m: &Range, revisions: &mut Revisions) -> rpc::RangeRequest {
    let (sort_order, sort_target) = m.sort.unwrap_or_default();
    let [min_mod, max_mod, min_create, max_create] = m.bounds.unwrap_or_default();
    rpc::RangeRequest {
        key: m.key.0.clone(),
        range_end: m.range_end.0.clone(),
        limit: m.limit,
        revision: revisions.translate_revision(m.revision),
        sort_order,
        sort_target,
        serializable: m.serializable,
        keys_only: m.keys_only,
        count_only: m.count_only,
        min_mod_revision: revisions.translate_revision(min_mod),
        max_mod_revision: revisions.translate_revision(max_mod),
        min_create_revision: revisions.translate_revision(min_create),
        max_create_revision: revisions.translate_revision(max_create),
    }
}

fn put(m: &Put, revisions: &mut Revisions) -> rpc::PutRequest {
    rpc::PutRequest {
        key: m.key.0.clone(),
        value: m.value.for_replay(),
        lease: revisions.translate_lease(m.lease),
        prev_kv: m.prev_kv,
        ignore_value: m.ignore_value,
        ignore_lease: m.ignore_lease,
    }
}

fn delete(m: &Delete) -> rpc::DeleteRangeRequest {
    rpc::DeleteRangeRequest {
        key: m.key.0.clone(),
        range_end: m.range_end.0.clone(),
        prev_kv: m.prev_kv,
    }
}

fn txn(m: &Txn, revisions: &mut Revisions) -> Option<rpc::TxnRequest> {
    let mut operations =
        |list: &[Request]| list.iter().map(|m| operation(m, revisions)).collect::<Option<Vec<_>>>();
    let (success, failure) = (operations(&m.success)?, operations(&m.failure)?);
    let compare = m.compare.iter().map(|m| compare(m, revisions)).collect();
    Some(rpc::TxnRequest { compare, success, failure })
}

fn operation(m: &Request, revisions: &mut Revisions) -> Option<rpc::RequestOp> {
    let request = match m {
        Request::Range(m) => Operation::RequestRange(range(m, revisions)),
        Request::Put(m) => Operation::RequestPut(put(m, revisions)),
        Request::Delete(m) => Operation::RequestDeleteRange(delete(m)),
        Request::Txn(m) => Operation::RequestTxn(txn(m, revisions)?),
        _ => return None,
    };
    Some(rpc::RequestOp { request: Some(request) })
}

fn compare(m: &Compare, revisions: &mut Revisions) -> rpc::Compare {
    let result = match &*m.result {
        ">" => CompareResult::Greater,
        "<" => CompareResult::Less,
        "!=" => CompareResult::NotEqual,
        _ => CompareResult::Equal,
    };
    let (target, with) = match &m.with {
        Operand::Version(number) => (CompareTarget::Version, TargetUnion::Version(*number)),
        Operand::Create(number) => (
            CompareTarget::Create,
            TargetUnion::CreateRevision(revisions.translate_revision(*number)),
        ),
        Operand::Mod(number) => {
            let number = revisions.translate_mod_revision(&m.key.0, *number);
            (CompareTarget::Mod, TargetUnion::ModRevision(number))
        }
        Operand::Lease(number) => {
            (CompareTarget::Lease, TargetUnion::Lease(revisions.translate_lease(*number)))
        }
        Operand::Value(value) => (CompareTarget::Value, TargetUnion::Value(value.for_replay())),
    };
    rpc::Compare {
        result: result as i32,
        target: target as i32,
        key: m.key.0.clone(),
        target_union: Some(with),
        range_end: m.range_end.0.clone(),
    }
}

#[cfg(test)]
mod tests {
    use trace::{Key, Value, Values};

    use super::*;

    #[test]
    fn a_transaction_is_unchanged_except_for_its_revisions() {
        let put =
            Put { key: "/a".into(), value: Value::record(b"v", Values::Full), ..Put::default() };
        let compare = Compare {
            key: "/a".into(),
            range_end: Key::default(),
            result: "=".into(),
            with: Operand::Mod(100),
        };
        let recorded = Request::Txn(Txn {
            compare: vec![compare],
            success: vec![Request::Put(put)],
            failure: vec![Request::Range(Range { key: "/a".into(), ..Range::default() })],
        });
        let mut revisions = Revisions::default();
        revisions.add_mod_revision(b"/a", 100, 7);
        let sent = encode_request(&recorded, &mut revisions).unwrap();
        let path = "/etcdserverpb.KV/Txn";
        let Some(Request::Txn(txn)) = trace::decode_request(path, sent.0, Values::Full) else {
            panic!("not a Txn")
        };
        assert_eq!(txn.compare[0].with, Operand::Mod(7));
        let Request::Txn(recorded) = recorded else { unreachable!() };
        assert_eq!((txn.success, txn.failure), (recorded.success, recorded.failure));
        assert!(encode_request(&Request::Undecoded, &mut revisions).is_none());
    }
}
