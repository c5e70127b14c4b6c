//! Kubernetes Lease objects that are in the store already.
//!
//! A renewal replaces `spec.renewTime` and the lengths of the messages around it. All other bytes of the
//! object stay as they are stored, also those of fields that this program does not know.

use std::ops::Range;

use bytes::Bytes;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use crate::node_lease::{MAGIC, Time};

/// kube-gateway compares its test Lease with what it wrote, so nobody else may change it.
const GATEWAY_PROBE: &[u8] = b"/registry/leases/kube-node-lease/kube-gateway-storage-probe";

// The fields that contain `renewTime`: `raw` of an Unknown, `spec` of a Lease, `renewTime` of its spec.
const RAW: u32 = 2;
const SPEC: u32 = 2;
const RENEW_TIME: u32 = 4;

/// Whether a key is that of a Lease to renew.
pub fn is_renewed(key: &[u8]) -> bool {
    key != GATEWAY_PROBE
}

/// A Lease as the store has it.
#[derive(Clone, Debug)]
pub struct StoredLease {
    key: Bytes,
    value: Bytes,
    /// Where the fields are in `value`, with their tags, from the outermost to the innermost.
    raw: Field,
    spec: Field,
    renewed: Field,
}

/// A field of a message whose value is a message or bytes.
#[derive(Clone, Debug)]
struct Field {
    /// The whole field.
    whole: Range<usize>,
    /// What follows the tag and the length.
    content: Range<usize>,
}

impl StoredLease {
    /// Finds the fields of the Lease in `value`.
    ///
    /// # Errors
    /// Returns a one-line message if the value is not a Lease in protobuf with a `renewTime`.
    pub fn new(key: Bytes, value: Bytes) -> Result<Self, String> {
        let name = String::from_utf8_lossy(&key).into_owned();
        if !value.starts_with(MAGIC) {
            return Err(format!(
                "{name} is not stored as protobuf; renew only Leases of an API server with \
                 --storage-media-type=application/vnd.kubernetes.protobuf and without encryption"
            ));
        }
        let found = field(&value, MAGIC.len()..value.len(), RAW).and_then(|raw| {
            let spec = field(&value, raw.content.clone(), SPEC)?;
            let renewed = field(&value, spec.content.clone(), RENEW_TIME)?;
            Some((raw, spec, renewed))
        });
        match found {
            Some((raw, spec, renewed)) => Ok(StoredLease { key, value, raw, spec, renewed }),
            None => Err(format!("{name} is not a Lease with a renewTime; delete it")),
        }
    }

    /// The key of the Lease.
    pub fn key(&self) -> Bytes {
        self.key.clone()
    }

    /// Encodes the Lease with `now` as `renewTime`.
    pub fn encode_renewed(&self, now: Time) -> Vec<u8> {
        let time = prost::Message::encode_to_vec(&now);
        let spec = self.replace(&self.spec.content, &self.renewed.whole, RENEW_TIME, &time);
        let raw = self.replace(&self.raw.content, &self.spec.whole, SPEC, &spec);
        self.replace(&(0..self.value.len()), &self.raw.whole, RAW, &raw)
    }

    /// The bytes of `outer`, in which the field at `inner` has another content.
    fn replace(
        &self,
        outer: &Range<usize>,
        inner: &Range<usize>,
        tag: u32,
        content: &[u8],
    ) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(outer.len() + 16);
        bytes.extend_from_slice(&self.value[outer.start..inner.start]);
        encode_key(tag, WireType::LengthDelimited, &mut bytes);
        encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes.extend_from_slice(&self.value[inner.end..outer.end]);
        bytes
    }
}

/// Finds the last field with `wanted` as its tag in the message at `message`, as decoders do. `None` also
/// if the message is malformed.
fn field(value: &[u8], message: Range<usize>, wanted: u32) -> Option<Field> {
    let mut rest = value.get(message.clone())?;
    let mut found = None;
    while !rest.is_empty() {
        let start = message.end - rest.len();
        let (tag, wire_type) = decode_key(&mut rest).ok()?;
        let length = match wire_type {
            WireType::LengthDelimited => decode_varint(&mut rest).ok()?,
            WireType::Varint => decode_varint(&mut rest).ok().map(|_| 0)?,
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        let content = message.end - rest.len();
        rest = rest.get(usize::try_from(length).ok()?..)?;
        let end = message.end - rest.len();
        if tag == wanted && wire_type == WireType::LengthDelimited {
            found = Some(Field { whole: start..end, content: content..end });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_lease::{NodeLease, PREFIX};

    const KEY: &[u8] = b"/registry/leases/kube-node-lease/node-0000007";

    fn stored(value: &[u8]) -> Result<StoredLease, String> {
        StoredLease::new(KEY.into(), Bytes::copy_from_slice(value))
    }

    /// Appends a field to a message.
    fn append(message: &mut Vec<u8>, tag: u32, content: &[u8]) {
        encode_key(tag, WireType::LengthDelimited, message);
        encode_varint(content.len() as u64, message);
        message.extend_from_slice(content);
    }

    /// A Lease with `renewed` as its time, and with fields before and after each field that contains it.
    fn lease_with_unknown_fields(renewed: Time) -> Vec<u8> {
        let (mut spec, mut raw, mut value) = (Vec::new(), Vec::new(), MAGIC.to_vec());
        append(&mut spec, 1, b"node-0000007");
        encode_key(2, WireType::Varint, &mut spec);
        encode_varint(40, &mut spec);
        append(&mut spec, RENEW_TIME, &prost::Message::encode_to_vec(&renewed));
        append(&mut spec, 7, b"a preferred holder");
        append(&mut raw, 1, &[b"managedFields and ownerReferences ".as_slice(); 9].concat());
        append(&mut raw, SPEC, &spec);
        append(&mut raw, 99, b"a field of a later version");
        append(&mut value, 1, b"type");
        append(&mut value, RAW, &raw);
        append(&mut value, 3, b"");
        append(&mut value, 4, b"");
        value
    }

    #[test]
    fn only_the_time_changes() {
        // The times have encodings of different sizes, so that all lengths change.
        let before = Time { seconds: 1_700_000_000, nanos: 999_999_000 };
        for after in [
            Time { seconds: 1_800_000_000, nanos: 1000 },
            Time { seconds: 1_800_000_000, nanos: 0 },
            Time { seconds: 1_800_000_000, nanos: 123_456_000 },
        ] {
            let lease = stored(&lease_with_unknown_fields(before)).unwrap();
            assert_eq!(lease.encode_renewed(after), lease_with_unknown_fields(after), "{after:?}");
            let back = stored(&lease.encode_renewed(after)).unwrap().encode_renewed(before);
            assert_eq!(back, lease_with_unknown_fields(before), "{after:?}");
        }
    }

    #[test]
    fn own_leases_are_renewed_alike() {
        let lease = NodeLease::new(7);
        let now = Time { seconds: 1_800_000_000, nanos: 1000 };
        let renewed = stored(&lease.encode_renewed(Time::now())).unwrap().encode_renewed(now);
        assert_eq!(renewed, lease.encode_renewed(now));
        assert_eq!(stored(&renewed).unwrap().key(), lease.key());
    }

    #[test]
    fn other_values_are_refused() {
        let whole = lease_with_unknown_fields(Time::now());
        assert!(stored(b"{\"kind\":\"Lease\"}").unwrap_err().contains("is not stored as protobuf"));
        for cut in MAGIC.len()..whole.len() - 4 {
            assert!(stored(&whole[..cut]).is_err(), "{cut} bytes");
        }
        let mut without_spec = MAGIC.to_vec();
        append(&mut without_spec, RAW, b"");
        assert!(stored(&without_spec).unwrap_err().contains("renewTime"));
    }

    #[test]
    fn the_test_lease_of_kube_gateway_is_not_renewed() {
        assert!(is_renewed(KEY));
        assert!(!is_renewed(b"/registry/leases/kube-node-lease/kube-gateway-storage-probe"));
        assert!(KEY.starts_with(PREFIX.as_bytes()));
    }
}
