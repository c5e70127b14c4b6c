//! Encodes responses with pairs or keys as late as possible, and large ones in pieces, while
//! they are sent.
//!
//! A pair in a response is a reference to a record of the store, and so is a key of a lease.
//! Encoding all of them at once would copy all keys and values. But the store cannot free what a
//! response refers to. So a large response can be discarded: see [`Pipeline::hold_response`].

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use etcdpb::rpc::response_op::Response;
use etcdpb::rpc::{
    DeleteRangeResponse, LeaseTimeToLiveResponse, PutResponse, RangeResponse, ResponseOp,
    TxnResponse,
};
use etcdpb::{Key, KeyValue};
use grpc::{Encoded, ExpectedReply, Payload, Reply};
use parking_lot::Mutex;
use pipeline::{Discard, HeldResponse, Pipeline, ReadStart};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// Responses with more pairs, more keys or more bytes than this are encoded in pieces.
const MAX_SINGLE_PIECE_PAIRS: usize = 1000;
const MAX_SINGLE_PIECE_BYTES: usize = 1 << 20;
/// Responses to writes that keep more bytes of keys and values than this in memory can be discarded.
/// Thousands of smaller ones may wait until they are encoded.
const MAX_UNCOUNTED_BYTES: usize = 16 << 10;
/// A piece ends with the first pair or key that brings it to at least this size in bytes.
const MIN_PIECE_BYTES: usize = 128 << 10;

/// Field numbers in etcd's messages.
mod field {
    /// `RangeResponse.kvs`.
    pub(super) const KVS: u32 = 2;
    /// `PutResponse.prev_kv`.
    pub(super) const PREV_KV: u32 = 2;
    /// `DeleteRangeResponse.prev_kvs`.
    pub(super) const PREV_KVS: u32 = 3;
    /// `TxnResponse.responses`.
    pub(super) const RESPONSES: u32 = 3;
    /// `ResponseOp.response_range`.
    pub(super) const RESPONSE_RANGE: u32 = 1;
    /// `ResponseOp.response_put`.
    pub(super) const RESPONSE_PUT: u32 = 2;
    /// `ResponseOp.response_delete_range`.
    pub(super) const RESPONSE_DELETE_RANGE: u32 = 3;
    /// `ResponseOp.response_txn`.
    pub(super) const RESPONSE_TXN: u32 = 4;
    /// `LeaseTimeToLiveResponse.keys`.
    pub(super) const LEASE_KEYS: u32 = 5;
}

/// The response to a write.
pub(super) enum WriteResponse<M> {
    /// A response that is encoded when the connection may hold it, and refers to small records.
    Small(M, #[expect(dead_code, reason = "counts the response")] Option<ExpectedReply>),
    /// A larger one. It is also encoded, in pieces, when the connection may hold it.
    Large(Payload),
    /// A response that a blocking thread has encoded.
    Encoded(Encoded),
}

impl<M: ManyPairs + 'static> WriteResponse<M> {
    /// Creates the response to a write that began at `start`.
    pub(super) fn new(store: &Pipeline, start: ReadStart, response: M) -> Self {
        let pairs = response.pairs();
        let is_small = pairs == 0
            || pairs <= MAX_SINGLE_PIECE_PAIRS && response.held_bytes() <= MAX_UNCOUNTED_BYTES;
        match is_small {
            true => WriteResponse::Small(response, None),
            false => WriteResponse::Large(in_pieces(store, start, response).into_payload()),
        }
    }

    /// Counts the memory of a response that waits until it is encoded.
    pub(super) fn expected(self, memory: Option<ExpectedReply>) -> Self {
        match self {
            WriteResponse::Small(response, _) => WriteResponse::Small(response, memory),
            other => other,
        }
    }
}

impl<M: ManyPairs + 'static> Reply for WriteResponse<M> {
    fn unencoded_len(&self) -> usize {
        match self {
            WriteResponse::Small(response, _) => response.encoded_len(),
            WriteResponse::Large(payload) => payload.len(),
            WriteResponse::Encoded(encoded) => encoded.unencoded_len(),
        }
    }

    fn into_payload(self) -> Payload {
        match self {
            WriteResponse::Small(response, _) => Payload::encode(&response),
            WriteResponse::Large(payload) => payload,
            WriteResponse::Encoded(encoded) => encoded.into_payload(),
        }
    }
}

/// Encodes a response to a call that began at `start`, in pieces if it is large.
pub(super) fn encode<M: ManyPairs>(store: &Pipeline, start: ReadStart, response: M) -> Encoded {
    let pairs = response.pairs();
    let is_small = pairs == 0
        || pairs <= MAX_SINGLE_PIECE_PAIRS && response.encoded_len() <= MAX_SINGLE_PIECE_BYTES;
    match is_small {
        true => Encoded::new(&response),
        false => in_pieces(store, start, response),
    }
}

fn in_pieces<M: ManyPairs>(store: &Pipeline, start: ReadStart, response: M) -> Encoded {
    let mut parts = Parts::default();
    response.split(&mut parts);
    parts.into_encoded(store, start)
}

/// Encodes the response to a call that began at `start`, for a lease and its attached keys, in
/// pieces if it is large.
pub(super) fn encode_lease(
    store: &Pipeline,
    start: ReadStart,
    mut response: LeaseTimeToLiveResponse,
    keys: Vec<Key>,
) -> Encoded {
    let bytes: usize = keys.iter().map(|key| key.as_bytes().len()).sum();
    if keys.len() <= MAX_SINGLE_PIECE_PAIRS && bytes <= MAX_SINGLE_PIECE_BYTES {
        response.keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
        return Encoded::new(&response);
    }
    let mut parts = Parts::default();
    parts.push_keys(field::LEASE_KEYS, keys);
    parts.push_message(&response);
    parts.into_encoded(store, start)
}

/// A response that can have many pairs.
pub(super) trait ManyPairs: Message {
    /// Number of pairs.
    fn pairs(&self) -> usize;

    /// Size of the keys and values to which the pairs refer, in bytes.
    fn held_bytes(&self) -> usize;

    /// Appends the encoded message to `parts`. Protobuf allows any order of fields, so the
    /// pairs come first.
    fn split(self, parts: &mut Parts);
}

/// The parts of an encoded message.
#[derive(Default)]
pub(super) struct Parts {
    parts: Vec<Part>,
    /// Total size in bytes.
    len: usize,
    /// Approximate memory of the parts in bytes.
    held_bytes: usize,
    /// Size of the records to which the parts refer, in bytes.
    record_bytes: usize,
}

enum Part {
    Bytes(Bytes),
    /// Pairs, each encoded as the field with this number.
    Pairs(u32, Vec<KeyValue>),
    /// Keys, each encoded as the field with this number.
    Keys(u32, Vec<Key>),
}

impl Parts {
    fn into_encoded(self, store: &Pipeline, start: ReadStart) -> Encoded {
        let (len, held_bytes) = (self.len, self.held_bytes);
        let shared = Arc::new(SharedPieces::new(self));
        let held = store.hold_response(start, shared.clone());
        Encoded(Payload::in_pieces(len, held_bytes, HeldPieces { shared, _held: held }))
    }

    fn into_pieces(self) -> Pieces {
        Pieces { parts: self.parts.into_iter(), current: None }
    }

    fn push_message(&mut self, message: &impl Message) {
        let bytes = message.encode_to_vec();
        self.len += bytes.len();
        self.held_bytes += size_of::<Part>() + bytes.len();
        self.parts.push(Part::Bytes(bytes.into()));
    }

    /// Appends pairs that the store has as well.
    fn push_pairs(&mut self, field: u32, pairs: Vec<KeyValue>) {
        self.len += prost::encoding::message::encoded_len_repeated(field, &pairs);
        self.held_bytes += size_of::<Part>() + size_of_val(&pairs[..]);
        self.record_bytes += pairs.iter().map(record_bytes).sum::<usize>();
        self.parts.push(Part::Pairs(field, pairs));
    }

    /// Appends pairs that the store may free while the response has them.
    fn push_deleted_pairs(&mut self, field: u32, pairs: Vec<KeyValue>) {
        self.held_bytes += prost::encoding::message::encoded_len_repeated(field, &pairs);
        self.push_pairs(field, pairs);
    }

    /// Appends keys that the store has as well.
    fn push_keys(&mut self, field: u32, keys: Vec<Key>) {
        let key_len = |len: usize| key_len(field) + encoded_len_varint(len as u64) + len;
        self.len += keys.iter().map(|key| key_len(key.as_bytes().len())).sum::<usize>();
        self.held_bytes += size_of::<Part>() + size_of_val(&keys[..]);
        self.record_bytes += keys.iter().map(key_bytes).sum::<usize>();
        self.parts.push(Part::Keys(field, keys));
    }

    /// Appends a field that is itself a message.
    fn push_field(&mut self, field: u32, message: Parts) {
        let mut head = BytesMut::new();
        encode_key(field, WireType::LengthDelimited, &mut head);
        encode_varint(message.len as u64, &mut head);
        self.len += head.len() + message.len;
        self.held_bytes += size_of::<Part>() + head.len() + message.held_bytes;
        self.record_bytes += message.record_bytes;
        self.parts.push(Part::Bytes(head.freeze()));
        self.parts.extend(message.parts);
    }
}

impl ManyPairs for RangeResponse {
    fn pairs(&self) -> usize {
        self.kvs.len()
    }

    fn held_bytes(&self) -> usize {
        self.kvs.iter().map(KeyValue::held_bytes).sum()
    }

    fn split(mut self, parts: &mut Parts) {
        parts.push_pairs(field::KVS, std::mem::take(&mut self.kvs));
        parts.push_message(&self);
    }
}

impl ManyPairs for PutResponse {
    fn pairs(&self) -> usize {
        usize::from(self.prev_kv.is_some())
    }

    fn held_bytes(&self) -> usize {
        self.prev_kv.as_ref().map_or(0, KeyValue::held_bytes)
    }

    fn split(mut self, parts: &mut Parts) {
        if let Some(previous) = self.prev_kv.take() {
            parts.push_deleted_pairs(field::PREV_KV, vec![previous]);
        }
        parts.push_message(&self);
    }
}

impl ManyPairs for DeleteRangeResponse {
    fn pairs(&self) -> usize {
        self.prev_kvs.len()
    }

    fn held_bytes(&self) -> usize {
        self.prev_kvs.iter().map(KeyValue::held_bytes).sum()
    }

    fn split(mut self, parts: &mut Parts) {
        parts.push_deleted_pairs(field::PREV_KVS, std::mem::take(&mut self.prev_kvs));
        parts.push_message(&self);
    }
}

impl ManyPairs for TxnResponse {
    fn pairs(&self) -> usize {
        self.responses.iter().map(ManyPairs::pairs).sum()
    }

    fn held_bytes(&self) -> usize {
        self.responses.iter().map(ManyPairs::held_bytes).sum()
    }

    fn split(mut self, parts: &mut Parts) {
        for op in std::mem::take(&mut self.responses) {
            let mut message = Parts::default();
            op.split(&mut message);
            parts.push_field(field::RESPONSES, message);
        }
        parts.push_message(&self);
    }
}

impl ManyPairs for ResponseOp {
    fn pairs(&self) -> usize {
        match &self.response {
            Some(Response::ResponseRange(range)) => range.pairs(),
            Some(Response::ResponsePut(put)) => put.pairs(),
            Some(Response::ResponseDeleteRange(delete)) => delete.pairs(),
            Some(Response::ResponseTxn(txn)) => txn.pairs(),
            None => 0,
        }
    }

    fn held_bytes(&self) -> usize {
        match &self.response {
            Some(Response::ResponseRange(range)) => range.held_bytes(),
            Some(Response::ResponsePut(put)) => put.held_bytes(),
            Some(Response::ResponseDeleteRange(delete)) => delete.held_bytes(),
            Some(Response::ResponseTxn(txn)) => txn.held_bytes(),
            None => 0,
        }
    }

    fn split(self, parts: &mut Parts) {
        let mut message = Parts::default();
        let field = match self.response {
            Some(Response::ResponseRange(range)) => {
                range.split(&mut message);
                field::RESPONSE_RANGE
            }
            Some(Response::ResponsePut(put)) => {
                put.split(&mut message);
                field::RESPONSE_PUT
            }
            Some(Response::ResponseDeleteRange(delete)) => {
                delete.split(&mut message);
                field::RESPONSE_DELETE_RANGE
            }
            Some(Response::ResponseTxn(txn)) => {
                txn.split(&mut message);
                field::RESPONSE_TXN
            }
            None => return parts.push_message(&self),
        };
        parts.push_field(field, message);
    }
}

/// Pieces that end early if they are discarded.
struct HeldPieces {
    shared: Arc<SharedPieces>,
    _held: HeldResponse,
}

/// What the connection shares with the store.
struct SharedPieces {
    /// `None` if they were discarded.
    pieces: Mutex<Option<Pieces>>,
    /// Size of the records to which all pieces refer, in bytes.
    record_bytes: usize,
}

impl SharedPieces {
    fn new(parts: Parts) -> Self {
        let record_bytes = parts.record_bytes;
        SharedPieces { pieces: Mutex::new(Some(parts.into_pieces())), record_bytes }
    }
}

impl Discard for SharedPieces {
    fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    fn discard(&self) {
        let pieces = self.pieces.lock().take();
        // The connection does not wait while many records are freed.
        drop(pieces);
    }
}

impl Iterator for HeldPieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.shared.pieces.lock().as_mut()?.next()
    }
}

/// The pieces of an encoded message.
struct Pieces {
    parts: std::vec::IntoIter<Part>,
    /// The part that is being encoded field by field.
    current: Option<Repeated>,
}

/// Memory of a record in addition to key and value, in bytes.
const RECORD_OVERHEAD_BYTES: usize = 64;

fn record_bytes(pair: &KeyValue) -> usize {
    RECORD_OVERHEAD_BYTES + pair.held_bytes()
}

fn key_bytes(key: &Key) -> usize {
    RECORD_OVERHEAD_BYTES + key.as_bytes().len()
}

/// The rest of a part with many fields of the same number.
enum Repeated {
    Pairs(u32, std::vec::IntoIter<KeyValue>),
    Keys(u32, std::vec::IntoIter<Key>),
}

impl Repeated {
    /// Encodes the next field. Returns false if there is none.
    fn encode_next(&mut self, piece: &mut BytesMut) -> bool {
        match self {
            Repeated::Pairs(field, pairs) => {
                let Some(pair) = pairs.next() else { return false };
                prost::encoding::message::encode(*field, &pair, piece);
            }
            Repeated::Keys(field, keys) => {
                let Some(key) = keys.next() else { return false };
                encode_key(*field, WireType::LengthDelimited, piece);
                encode_varint(key.as_bytes().len() as u64, piece);
                piece.extend_from_slice(key.as_bytes());
            }
        }
        true
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut piece = BytesMut::new();
        while piece.len() < MIN_PIECE_BYTES {
            if let Some(current) = &mut self.current {
                if !current.encode_next(&mut piece) {
                    self.current = None;
                }
                continue;
            }
            match self.parts.next() {
                Some(Part::Bytes(bytes)) => piece.extend_from_slice(&bytes),
                Some(Part::Pairs(field, pairs)) => {
                    self.current = Some(Repeated::Pairs(field, pairs.into_iter()));
                }
                Some(Part::Keys(field, keys)) => {
                    self.current = Some(Repeated::Keys(field, keys.into_iter()));
                }
                None => break,
            }
        }
        (!piece.is_empty()).then(|| piece.freeze())
    }
}

#[cfg(test)]
mod tests {
    use data_dir::Identity;
    use etcdpb::Record;
    use etcdpb::rpc::ResponseHeader;
    use pipeline::{PipelineOptions, WalMode};

    use super::*;

    fn pairs(count: usize, value_bytes: usize) -> Vec<KeyValue> {
        let record =
            |n: usize| Record::put(n.to_string().as_bytes(), &vec![7; value_bytes], 1, 2, 1, 0);
        (0..count).map(|n| record(n).into()).collect()
    }

    fn store() -> Pipeline {
        let options = PipelineOptions { wal_mode: WalMode::None, ..Default::default() };
        Pipeline::open(&options, Identity { cluster_id: 1, member_id: 2 }).unwrap()
    }

    fn op(response: Response) -> ResponseOp {
        ResponseOp { response: Some(response) }
    }

    fn decoded<M: ManyPairs + Default>(response: M) -> (usize, M) {
        let mut parts = Parts::default();
        response.split(&mut parts);
        let len = parts.len;
        let pieces: Vec<Bytes> = parts.into_pieces().collect();
        assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), len);
        (pieces.len(), M::decode(&pieces.concat()[..]).unwrap())
    }

    #[test]
    fn the_pieces_are_the_encoded_response() {
        let header = Some(ResponseHeader { revision: 9, ..Default::default() });
        let range = RangeResponse { header, kvs: pairs(500, 1000), more: true, count: 700 };
        let (pieces, got) = decoded(range.clone());
        assert!(pieces > 3 && got == range, "{pieces} pieces");

        let delete = DeleteRangeResponse { header, deleted: 40, prev_kvs: pairs(40, 10) };
        assert_eq!(decoded(delete.clone()).1, delete);

        let put = PutResponse { header, prev_kv: pairs(1, 5000).pop() };
        assert_eq!(decoded(put.clone()).1, put);

        let nested = TxnResponse {
            header: Some(ResponseHeader::default()),
            succeeded: false,
            responses: vec![op(Response::ResponseRange(range.clone()))],
        };
        let empty = RangeResponse::default();
        let responses = [
            Response::ResponseRange(range),
            Response::ResponsePut(PutResponse { header, prev_kv: None }),
            Response::ResponsePut(put),
            Response::ResponseTxn(nested),
            Response::ResponseDeleteRange(delete),
            Response::ResponseRange(empty),
        ];
        let responses = responses.into_iter().map(op).chain([ResponseOp { response: None }]);
        let txn = TxnResponse { header, succeeded: true, responses: responses.collect() };
        assert_eq!(txn.pairs(), 1041);
        assert_eq!(decoded(txn.clone()).1, txn);
    }

    #[test]
    fn discarded_pieces_release_their_records_and_end() {
        let mut parts = Parts::default();
        // A pair without value keeps the value as well.
        let record = Record::put(b"key", &vec![7; 500_000], 1, 2, 1, 0);
        parts.push_pairs(field::KVS, vec![KeyValue::key_only(record)]);
        parts.push_pairs(field::KVS, pairs(10, 200_000));
        let shared = Arc::new(SharedPieces::new(parts));
        let store = store();
        let held = store.hold_response(store.read_start(), shared.clone());
        let mut pieces = HeldPieces { shared: shared.clone(), _held: held };
        assert!((2_500_000..2_510_000).contains(&shared.record_bytes()));
        assert!(pieces.next().is_some());
        shared.discard();
        assert!(pieces.next().is_none());
        drop(pieces);
        assert_eq!(Arc::strong_count(&shared), 1, "the store keeps nothing");
    }

    /// The store frees previous values while replies to puts refer to them.
    #[test]
    fn replies_with_previous_values_can_be_discarded() {
        let store = store();
        let put = |bytes| PutResponse { header: None, prev_kv: pairs(1, bytes).pop() };
        let reply = |response| WriteResponse::new(&store, store.read_start(), response);
        assert!(matches!(reply(put(1000)), WriteResponse::Small(..)));
        let large = reply(put(100_000));
        assert!(matches!(large, WriteResponse::Large(_)) && large.unencoded_len() > 100_000);
        let responses = (0..20).map(|_| op(Response::ResponsePut(put(1000)))).collect();
        let txn = TxnResponse { responses, ..TxnResponse::default() };
        let txn = WriteResponse::new(&store, store.read_start(), txn);
        assert!(matches!(txn, WriteResponse::Large(_)));
        let none = PutResponse::default();
        assert!(matches!(reply(none), WriteResponse::Small(..)));
    }

    /// A response with keys of 200 MiB is not encoded before it is sent.
    #[test]
    fn many_bytes_of_keys_are_encoded_in_pieces() {
        let response = LeaseTimeToLiveResponse { id: 1, ttl: 2, ..Default::default() };
        let key = |n: usize| Key::new(&[n.to_string().as_bytes(), &vec![b'k'; 200_000]].concat());
        let keys: Vec<Key> = (0..1000).map(key).collect();
        let len: usize = keys.iter().map(|key| key.as_bytes().len()).sum();
        let mut parts = Parts::default();
        parts.push_keys(field::LEASE_KEYS, keys.clone());
        parts.push_message(&response);
        assert!(parts.held_bytes < 100_000, "{} bytes", parts.held_bytes);
        let pieces: Vec<Bytes> = parts.into_pieces().collect();
        assert!(pieces.iter().all(|piece| piece.len() < 500_000));
        let expected = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
        let expected = LeaseTimeToLiveResponse { keys: expected, ..response.clone() };
        assert_eq!(LeaseTimeToLiveResponse::decode(&pieces.concat()[..]).unwrap(), expected);
        let store = store();
        assert!(
            encode_lease(&store, store.read_start(), response, keys).into_payload().len() > len
        );
    }
}
