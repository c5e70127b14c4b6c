//! Decoding of deeply nested transactions.
//!
//! prost decodes at most 100 nested messages, which are 49 nested transactions. etcd decodes
//! 10,000 nested messages, but it rejects more than 128 nested transactions unless
//! `--max-txn-ops` is raised, because each level has an operation. So 128 are decoded here.

use bytes::{Buf, BufMut, Bytes};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{RequestOp, TxnRequest};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint};
use prost::{DecodeError, Message};

/// Number of nested transactions for which this module takes over from prost, which decodes
/// the 49 within the last of them. A limit protects the stack of the thread.
const LEVELS: usize = 128 - 49;
/// Numbers of the fields `success` and `failure` in `TxnRequest`.
const SUCCESS_FIELD: u32 = 2;
const FAILURE_FIELD: u32 = 3;
/// Number of the field `request_txn` in `RequestOp`.
const TXN_FIELD: u32 = 4;

/// A transaction with up to 128 nested ones.
#[derive(Debug, Default)]
pub(super) struct NestedTxn(pub(super) TxnRequest);

impl Message for NestedTxn {
    fn decode(mut buf: impl Buf) -> Result<Self, DecodeError> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        match TxnRequest::decode(bytes.clone()) {
            Err(error) if error.to_string().contains("recursion limit") => {
                let mut txn = TxnRequest::default();
                merge_txn(&mut txn, bytes, LEVELS)?;
                Ok(NestedTxn(txn))
            }
            decoded => decoded.map(NestedTxn),
        }
    }

    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.0.encode_raw(buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.0.merge_field(tag, wire_type, buf, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.encoded_len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Decodes a transaction into `txn`. After `levels` nested transactions, prost decodes the
/// rest.
fn merge_txn(txn: &mut TxnRequest, mut buf: Bytes, levels: usize) -> Result<(), DecodeError> {
    if levels == 0 {
        return txn.merge(buf);
    }
    while buf.has_remaining() {
        match decode_key(&mut buf)? {
            (SUCCESS_FIELD, WireType::LengthDelimited) => {
                txn.success.push(decode_op(&mut buf, levels)?);
            }
            (FAILURE_FIELD, WireType::LengthDelimited) => {
                txn.failure.push(decode_op(&mut buf, levels)?);
            }
            (tag, wire_type) => {
                txn.merge_field(tag, wire_type, &mut buf, DecodeContext::default())?;
            }
        }
    }
    Ok(())
}

/// Decodes an operation with its length.
fn decode_op(buf: &mut Bytes, levels: usize) -> Result<RequestOp, DecodeError> {
    let (mut op, mut buf) = (RequestOp::default(), take_message(buf)?);
    while buf.has_remaining() {
        match decode_key(&mut buf)? {
            (TXN_FIELD, WireType::LengthDelimited) => {
                // A field that occurs several times is merged.
                let mut txn = match op.request.take() {
                    Some(Request::RequestTxn(txn)) => txn,
                    _ => TxnRequest::default(),
                };
                merge_txn(&mut txn, take_message(&mut buf)?, levels - 1)?;
                op.request = Some(Request::RequestTxn(txn));
            }
            (tag, wire_type) => {
                op.merge_field(tag, wire_type, &mut buf, DecodeContext::default())?;
            }
        }
    }
    Ok(op)
}

/// Removes a message from the start of `buf`, with its length, and returns its bytes.
fn take_message(buf: &mut Bytes) -> Result<Bytes, DecodeError> {
    let start = buf.clone();
    let len = decode_varint(buf)?;
    match usize::try_from(len).ok().filter(|len| *len <= buf.len()) {
        Some(len) => Ok(buf.split_to(len)),
        // prost has the error for a message that is too short.
        None => Err(<()>::decode_length_delimited(start).expect_err("the message is too short")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use etcdpb::rpc::compare::{CompareResult, CompareTarget};
    use etcdpb::rpc::{Compare, PutRequest, RangeRequest};
    use pipeline::{ClientId, Pipeline, TxnRead};

    use super::*;
    use crate::api::validate;
    use crate::config::Config;

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    /// Returns a transaction with `depth` nested ones. The innermost writes `key`. The nested
    /// ones are alternately in the success and in the failure branch.
    fn nested(depth: usize) -> TxnRequest {
        let (key, value) = (b"key".to_vec().into(), b"value".to_vec().into());
        let put = PutRequest { key, value, ..Default::default() };
        let mut txn =
            TxnRequest { success: vec![op(Request::RequestPut(put))], ..Default::default() };
        for level in 0..depth {
            let branch = vec![op(Request::RequestTxn(txn))];
            txn = match level % 2 {
                0 => TxnRequest { success: branch, ..Default::default() },
                _ => {
                    let (result, key) = (CompareResult::NotEqual as i32, b"other".to_vec().into());
                    let target = CompareTarget::Create as i32;
                    let compare = Compare { key, result, target, ..Default::default() };
                    TxnRequest { compare: vec![compare], failure: branch, ..Default::default() }
                }
            };
        }
        txn
    }

    #[tokio::test]
    async fn nested_transactions_are_executed_as_in_etcd() {
        let config = Config::try_parse_from(["mem_etcd", "--wal-mode", "none"]).unwrap();
        let identity = data_dir::Identity { cluster_id: 1, member_id: 2 };
        for depth in [0, 1, 48, 49, 50, 80, 120, 127] {
            let request = nested(depth);
            let decoded = NestedTxn::decode(Bytes::from(request.encode_to_vec())).unwrap().0;
            assert_eq!(decoded, request, "{depth} nested transactions");
            validate::txn(&decoded, 128).unwrap();
            let pipeline = Pipeline::open(&config.pipeline_options(), identity).unwrap();
            let Ok(TxnRead::Done(response)) = pipeline.txn(ClientId(0), decoded, 0).await else {
                panic!("{depth} nested transactions")
            };
            assert!(response.encode_to_vec().len() > 4 * depth);
            let range = RangeRequest { key: b"key".to_vec().into(), ..Default::default() };
            let found = pipeline.range(&range).unwrap().finish();
            assert_eq!(found.kvs.len(), 1, "{depth} nested transactions");
        }
        let decode = |depth| NestedTxn::decode(Bytes::from(nested(depth).encode_to_vec()));
        assert!(validate::txn(&decode(128).unwrap().0, 128).is_err(), "too many operations");
        let error = decode(129).unwrap_err().to_string();
        assert!(error.contains("recursion limit reached"), "{error}");
        // A depth that would overflow the stack.
        let mut bytes = Vec::new();
        for _ in 0..20_000 {
            for field in [TXN_FIELD, SUCCESS_FIELD] {
                let mut message = Vec::new();
                prost::encoding::bytes::encode(field, &bytes, &mut message);
                bytes = message;
            }
        }
        assert!(NestedTxn::decode(Bytes::from(bytes)).is_err());
    }

    /// A request that is cut off, or damaged at any byte, is decoded as by prost.
    #[test]
    fn damaged_requests_are_decoded_as_by_prost() {
        let bytes = nested(20).encode_to_vec();
        let compare = |bytes: Vec<u8>| {
            let mut txn = TxnRequest::default();
            let decoded = merge_txn(&mut txn, Bytes::from(bytes.clone()), LEVELS).map(|()| txn);
            match (decoded, TxnRequest::decode(Bytes::from(bytes))) {
                (Ok(decoded), Ok(expected)) => assert_eq!(decoded, expected),
                (Err(_), Err(_)) => {}
                different => panic!("{different:?}"),
            }
        };
        for at in 0..bytes.len() {
            compare(bytes[..at].to_vec());
            for byte in 0..=255 {
                let mut damaged = bytes.clone();
                damaged[at] = byte;
                compare(damaged);
            }
        }
    }
}
