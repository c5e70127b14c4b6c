//! The envelope of an encoded object.

use prost::Message;

/// What every encoded object of Kubernetes starts with.
const MAGIC: &[u8] = b"k8s\0";

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
    let unknown = Unknown::decode(bytes.strip_prefix(MAGIC)?).ok()?;
    T::decode(&unknown.raw[..]).ok()
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
}
