//! Conversion of gRPC messages to the requests and responses of a trace.

use bytes::Bytes;
use etcdpb::mvccpb::KeyValue;
use etcdpb::rpc;
use prost::Message;
use rpc::compare::{CompareResult, TargetUnion};
use rpc::request_op::Request as Operation;
use rpc::response_op::Response as OperationResponse;
use rpc::watch_request::RequestUnion;

use crate::key::Key;
use crate::request::{Compare, Delete, Operand, Put, Range, Request, Txn, WatchCreate};
use crate::response::{Event, Lease, Response, WatchResponse};
use crate::value::{Value, Values};

/// Maximum nesting of decoded transactions. A transaction that is nested deeper is
/// [`Request::Undecoded`].
const MAX_DEPTH: usize = 16;

/// Whether calls of `method` stream messages in one or both directions. Returns true for a
/// method that is neither etcd's nor the health check's.
pub fn is_stream(method: &str) -> bool {
    match method.strip_prefix("/etcdserverpb.") {
        Some(known) => matches!(
            known,
            "KV/RangeStream" | "Watch/Watch" | "Lease/LeaseKeepAlive" | "Maintenance/Snapshot"
        ),
        None => method != "/grpc.health.v1.Health/Check",
    }
}

/// Decodes a request message of `method`. Returns `None` if traces contain no requests of
/// this method.
pub fn decode_request(method: &str, message: Bytes, values: Values) -> Option<Request> {
    let request = match method {
        "/etcdserverpb.KV/Range" | "/etcdserverpb.KV/RangeStream" => {
            rpc::RangeRequest::decode(message).map(|m| Request::Range(range(m)))
        }
        "/etcdserverpb.KV/Put" => {
            rpc::PutRequest::decode(message).map(|m| Request::Put(put(m, values)))
        }
        "/etcdserverpb.KV/DeleteRange" => {
            rpc::DeleteRangeRequest::decode(message).map(|m| Request::Delete(delete(m)))
        }
        "/etcdserverpb.KV/Txn" => {
            rpc::TxnRequest::decode(message).map(|m| Request::Txn(txn(m, values, 0)))
        }
        "/etcdserverpb.KV/Compact" => rpc::CompactionRequest::decode(message)
            .map(|m| Request::Compact { revision: m.revision, physical: m.physical }),
        "/etcdserverpb.Lease/LeaseGrant" => rpc::LeaseGrantRequest::decode(message)
            .map(|m| Request::LeaseGrant { id: m.id, ttl: m.ttl }),
        "/etcdserverpb.Lease/LeaseRevoke" => {
            rpc::LeaseRevokeRequest::decode(message).map(|m| Request::LeaseRevoke { id: m.id })
        }
        "/etcdserverpb.Lease/LeaseKeepAlive" => rpc::LeaseKeepAliveRequest::decode(message)
            .map(|m| Request::LeaseKeepAlive { id: m.id }),
        "/etcdserverpb.Lease/LeaseTimeToLive" => rpc::LeaseTimeToLiveRequest::decode(message)
            .map(|m| Request::LeaseTimeToLive { id: m.id, keys: m.keys }),
        "/etcdserverpb.Watch/Watch" => rpc::WatchRequest::decode(message).map(watch),
        _ => return None,
    };
    Some(request.unwrap_or(Request::Undecoded))
}

/// Decodes a response message of `method`. Returns `None` if traces contain no responses of
/// this method.
pub fn decode_response(method: &str, message: Bytes) -> Option<Response> {
    let response = match method {
        "/etcdserverpb.KV/Range" => rpc::RangeResponse::decode(message).map(|m| range_response(&m)),
        "/etcdserverpb.KV/RangeStream" => rpc::RangeStreamResponse::decode(message)
            .map(|m| range_response(&m.range_response.unwrap_or_default())),
        "/etcdserverpb.KV/Put" => rpc::PutResponse::decode(message).map(|m| header_only(m.header)),
        "/etcdserverpb.KV/DeleteRange" => rpc::DeleteRangeResponse::decode(message)
            .map(|m| Response { deleted: Some(m.deleted), ..header_only(m.header) }),
        "/etcdserverpb.KV/Txn" => rpc::TxnResponse::decode(message).map(|m| txn_response(&m)),
        "/etcdserverpb.KV/Compact" => {
            rpc::CompactionResponse::decode(message).map(|m| header_only(m.header))
        }
        "/etcdserverpb.Lease/LeaseGrant" => rpc::LeaseGrantResponse::decode(message)
            .map(|m| lease_response(m.header, Lease { id: m.id, ttl: m.ttl, keys: 0 })),
        "/etcdserverpb.Lease/LeaseRevoke" => {
            rpc::LeaseRevokeResponse::decode(message).map(|m| header_only(m.header))
        }
        "/etcdserverpb.Lease/LeaseKeepAlive" => rpc::LeaseKeepAliveResponse::decode(message)
            .map(|m| lease_response(m.header, Lease { id: m.id, ttl: m.ttl, keys: 0 })),
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            rpc::LeaseTimeToLiveResponse::decode(message).map(|m| {
                lease_response(m.header, Lease { id: m.id, ttl: m.ttl, keys: m.keys.len() as u64 })
            })
        }
        "/etcdserverpb.Watch/Watch" => rpc::WatchResponse::decode(message).map(watch_response),
        _ => return None,
    };
    Some(response.unwrap_or(Response { undecoded: true, ..Response::default() }))
}

fn range(m: rpc::RangeRequest) -> Range {
    let bounds =
        [m.min_mod_revision, m.max_mod_revision, m.min_create_revision, m.max_create_revision];
    Range {
        key: Key(m.key),
        range_end: Key(m.range_end),
        limit: m.limit,
        revision: m.revision,
        serializable: m.serializable,
        keys_only: m.keys_only,
        count_only: m.count_only,
        sort: (m.sort_order != 0 || m.sort_target != 0).then_some((m.sort_order, m.sort_target)),
        bounds: (bounds != [0; 4]).then_some(bounds),
    }
}

fn put(m: rpc::PutRequest, values: Values) -> Put {
    Put {
        value: Value::record(&m.value, values),
        key: Key(m.key),
        lease: m.lease,
        prev_kv: m.prev_kv,
        ignore_value: m.ignore_value,
        ignore_lease: m.ignore_lease,
    }
}

fn delete(m: rpc::DeleteRangeRequest) -> Delete {
    Delete { key: Key(m.key), range_end: Key(m.range_end), prev_kv: m.prev_kv }
}

fn txn(m: rpc::TxnRequest, values: Values, depth: usize) -> Txn {
    let operations =
        |list: Vec<rpc::RequestOp>| list.into_iter().map(|m| operation(m, values, depth)).collect();
    Txn {
        compare: m.compare.into_iter().map(|m| compare(m, values)).collect(),
        success: operations(m.success),
        failure: operations(m.failure),
    }
}

fn operation(m: rpc::RequestOp, values: Values, depth: usize) -> Request {
    match m.request {
        Some(Operation::RequestRange(m)) => Request::Range(range(m)),
        Some(Operation::RequestPut(m)) => Request::Put(put(m, values)),
        Some(Operation::RequestDeleteRange(m)) => Request::Delete(delete(m)),
        Some(Operation::RequestTxn(m)) if depth < MAX_DEPTH => {
            Request::Txn(txn(m, values, depth + 1))
        }
        _ => Request::Undecoded,
    }
}

fn compare(m: rpc::Compare, values: Values) -> Compare {
    let result = match m.result() {
        CompareResult::Equal => "=",
        CompareResult::Greater => ">",
        CompareResult::Less => "<",
        CompareResult::NotEqual => "!=",
    };
    // An encoder may omit an operand that is 0 or empty.
    let with = match (m.target(), m.target_union) {
        (_, Some(TargetUnion::Version(number))) => Operand::Version(number),
        (_, Some(TargetUnion::CreateRevision(number))) => Operand::Create(number),
        (_, Some(TargetUnion::ModRevision(number))) => Operand::Mod(number),
        (_, Some(TargetUnion::Lease(number))) => Operand::Lease(number),
        (_, Some(TargetUnion::Value(value))) => Operand::Value(Value::record(&value, values)),
        (rpc::compare::CompareTarget::Version, None) => Operand::Version(0),
        (rpc::compare::CompareTarget::Create, None) => Operand::Create(0),
        (rpc::compare::CompareTarget::Mod, None) => Operand::Mod(0),
        (rpc::compare::CompareTarget::Lease, None) => Operand::Lease(0),
        (rpc::compare::CompareTarget::Value, None) => Operand::Value(Value::record(&[], values)),
    };
    Compare { key: Key(m.key), range_end: Key(m.range_end), result: result.into(), with }
}

fn watch(m: rpc::WatchRequest) -> Request {
    match m.request_union {
        Some(RequestUnion::CreateRequest(m)) => Request::WatchCreate(WatchCreate {
            key: Key(m.key),
            range_end: Key(m.range_end),
            start_revision: m.start_revision,
            progress_notify: m.progress_notify,
            prev_kv: m.prev_kv,
            fragment: m.fragment,
            filters: m.filters,
            watch_id: m.watch_id,
        }),
        Some(RequestUnion::CancelRequest(m)) => Request::WatchCancel { watch_id: m.watch_id },
        Some(RequestUnion::ProgressRequest(_)) => Request::WatchProgress,
        None => Request::Undecoded,
    }
}

/// A response that contains only the revision of its header.
fn header_only(header: Option<rpc::ResponseHeader>) -> Response {
    Response { revision: header.map_or(0, |header| header.revision), ..Response::default() }
}

fn lease_response(header: Option<rpc::ResponseHeader>, lease: Lease) -> Response {
    Response { lease: Some(lease), ..header_only(header) }
}

fn range_response(m: &rpc::RangeResponse) -> Response {
    let mod_revision = match &m.kvs[..] {
        [only] => only.mod_revision(),
        _ => 0,
    };
    Response {
        count: Some(m.count),
        kvs: m.kvs.len() as u64,
        value_bytes: m.kvs.iter().map(|kv| kv.value().len() as u64).sum(),
        more: m.more,
        mod_revision,
        ..header_only(m.header)
    }
}

fn txn_response(m: &rpc::TxnResponse) -> Response {
    let mut response = Response { succeeded: Some(m.succeeded), ..header_only(m.header) };
    let mut ranges = 0;
    for operation in &m.responses {
        match &operation.response {
            Some(OperationResponse::ResponseRange(m)) => {
                let part = range_response(m);
                ranges += 1;
                response.count = Some(response.count.unwrap_or(0) + m.count);
                response.kvs += part.kvs;
                response.value_bytes += part.value_bytes;
                response.mod_revision = part.mod_revision;
            }
            Some(OperationResponse::ResponseDeleteRange(m)) => {
                response.deleted = Some(response.deleted.unwrap_or(0) + m.deleted);
            }
            _ => {}
        }
    }
    if ranges > 1 {
        response.mod_revision = 0;
    }
    response
}

fn watch_response(m: rpc::WatchResponse) -> Response {
    let event = |event: etcdpb::mvccpb::Event| {
        let delete = event.r#type() == etcdpb::mvccpb::event::EventType::Delete;
        let kv = event.kv.unwrap_or_default();
        Event {
            key: Key(Bytes::copy_from_slice(kv.key())),
            mod_revision: kv.mod_revision(),
            delete,
            create: !delete && kv.create_revision() == kv.mod_revision(),
            value_bytes: kv.value().len() as u64,
            prev_kv: event.prev_kv.as_ref().is_some_and(|kv: &KeyValue| !kv.key().is_empty()),
        }
    };
    let watch = WatchResponse {
        watch_id: m.watch_id,
        created: m.created,
        canceled: m.canceled,
        fragment: m.fragment,
        compact_revision: m.compact_revision,
        reason: m.cancel_reason,
        events: m.events.into_iter().map(event).collect(),
    };
    Response { watch: Some(watch), ..header_only(m.header) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const METHODS: [&str; 6] = ["Range", "RangeStream", "Put", "DeleteRange", "Txn", "Compact"];

    #[test]
    fn decodes_as_much_of_each_value_as_requested() {
        let put = rpc::PutRequest { key: "/a".into(), value: "abc".into(), ..Default::default() };
        let txn = rpc::TxnRequest {
            compare: vec![rpc::Compare {
                target: rpc::compare::CompareTarget::Mod as i32,
                key: "/a".into(),
                target_union: Some(TargetUnion::ModRevision(7)),
                ..Default::default()
            }],
            success: vec![rpc::RequestOp { request: Some(Operation::RequestPut(put)) }],
            failure: vec![],
        };
        let message = Bytes::from(txn.encode_to_vec());
        let decoded = |values| decode_request("/etcdserverpb.KV/Txn", message.clone(), values);
        let Some(Request::Txn(txn)) = decoded(Values::Full) else { panic!("not a Txn") };
        assert_eq!(txn.compare[0].with, Operand::Mod(7));
        let [Request::Put(put)] = &txn.success[..] else { panic!("not a put") };
        assert_eq!(put.value.for_replay(), "abc");
        let sizes = serde_json::to_string(&decoded(Values::Sizes)).unwrap();
        assert!(sizes.contains(r#""value":{"bytes":3}"#), "{sizes}");
        let none = serde_json::to_string(&decoded(Values::None)).unwrap();
        assert!(none.contains(r#""value":{}"#), "{none}");
    }

    #[test]
    fn invalid_messages_are_marked_undecoded() {
        let garbage = Bytes::from_static(b"\xff\xff\xff");
        let put = "/etcdserverpb.KV/Put";
        assert_eq!(decode_request(put, garbage.clone(), Values::Full), Some(Request::Undecoded));
        assert!(decode_response(put, garbage.clone()).unwrap().undecoded);
        assert_eq!(decode_request("/x.Y/Z", garbage, Values::Full), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), method in 0..METHODS.len()) {
            let path = format!("/etcdserverpb.KV/{}", METHODS[method]);
            if let Some(request) = decode_request(&path, bytes.clone().into(), Values::Full) {
                let text = crate::shape(&path, Some(&request)).text;
                prop_assert!(!text.is_empty());
            }
            decode_response(&path, bytes.into());
        }
    }
}
