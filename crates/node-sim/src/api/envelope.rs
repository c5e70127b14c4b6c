//! The envelope of an encoded object.

use prost::Message;

use super::nested::nested;
use super::uid::Uid;

/// What every encoded object of Kubernetes starts with.
const MAGIC: &[u8] = b"k8s\0";
/// The number of the field `raw` of the envelope.
const RAW: u32 = 2;
/// The numbers of the fields `metadata` of an object and `uid` of its metadata.
const METADATA: u32 = 1;
const UID: u32 = 5;

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// Encodes an object with its API version and kind.
pub fn encode(api_version: &str, kind: &str, object: &impl Message) -> Vec<u8> {
    let type_meta = TypeMeta { api_version: api_version.into(), kind: kind.into() };
    let unknown = Unknown { type_meta: Some(type_meta), raw: object.encode_to_vec() };
    let mut bytes = Vec::with_capacity(MAGIC.len() + unknown.encoded_len());
    bytes.extend_from_slice(MAGIC);
    // A vector has room for everything.
    let _ = unknown.encode(&mut bytes);
    bytes
}

/// Decodes an object. Returns `None` if the bytes are not an object in protobuf.
pub fn decode<T: Message + Default>(bytes: &[u8]) -> Option<T> {
    T::decode(raw(bytes)?).ok()
}

/// The UID of an object, of which nothing else is decoded. Returns `None` if the bytes are not an object in protobuf
/// with a UID.
pub fn decode_uid(bytes: &[u8]) -> Option<Uid> {
    let metadata = nested(raw(bytes)?, METADATA).ok()?;
    std::str::from_utf8(nested(metadata, UID).ok()?).ok()?.parse().ok()
}

/// The object in its envelope.
fn raw(bytes: &[u8]) -> Option<&[u8]> {
    nested(bytes.strip_prefix(MAGIC)?, RAW).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Lease, ObjectMeta};

    #[test]
    fn an_object_is_decoded_as_it_was_encoded() {
        let metadata = ObjectMeta { name: "node-1".into(), ..ObjectMeta::default() };
        let lease = Lease { metadata: Some(metadata), spec: None };
        let bytes = encode("coordination.k8s.io/v1", "Lease", &lease);
        assert!(bytes.starts_with(b"k8s\0\x0a\x1f\x0a\x16coordination.k8s.io/v1\x12\x05Lease\x12"));
        assert_eq!(decode::<Lease>(&bytes), Some(lease));
        assert_eq!(decode::<Lease>(&bytes[1..]), None);
        assert_eq!(decode::<Lease>(b"k8s\0\x12\x05x"), None);
    }

    #[test]
    fn the_uid_of_an_object_is_found() {
        let uid = "0e9a12bc-34de-4f56-8a90-00112233aabb";
        let encoded = |uid: &str| {
            let metadata =
                ObjectMeta { name: "a".into(), uid: uid.into(), ..ObjectMeta::default() };
            encode("v1", "Pod", &Lease { metadata: Some(metadata), spec: None })
        };
        assert_eq!(decode_uid(&encoded(uid)), uid.parse().ok());
        assert_eq!(decode_uid(&encoded("x")), None);
        assert_eq!(decode_uid(&encoded("")), None);
        assert_eq!(decode_uid(&encoded(uid)[1..]), None);
    }
}
