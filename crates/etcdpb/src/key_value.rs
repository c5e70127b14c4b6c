//! The message `mvccpb.KeyValue`, which is encoded directly from a [`Record`].

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use crate::Record;

/// A key-value pair in a message: a record with all or some of its fields, or a decoded
/// pair.
#[derive(Clone, Debug)]
pub struct KeyValue(Form);

#[derive(Clone, Debug)]
enum Form {
    /// The whole record.
    Whole(Record),
    /// The record without value.
    NoValue(Record),
    /// The record without value and lease.
    KeyOnly(Record),
    /// A decoded pair.
    Decoded(Box<Decoded>),
}

#[derive(Clone, Debug, Default)]
struct Decoded {
    key: Bytes,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    value: Bytes,
    lease: i64,
}

impl From<Record> for KeyValue {
    fn from(record: Record) -> Self {
        KeyValue(Form::Whole(record))
    }
}

impl KeyValue {
    /// Creates the pair of `record` without its value.
    pub fn no_value(record: Record) -> Self {
        KeyValue(Form::NoValue(record))
    }

    /// Creates the pair of `record` without its value and its lease. The remaining fields
    /// are those that etcd's index contains.
    pub fn key_only(record: Record) -> Self {
        KeyValue(Form::KeyOnly(record))
    }

    /// Size in bytes of the key and of the value that the pair keeps in memory, also if it is
    /// a pair without value.
    pub fn held_bytes(&self) -> usize {
        match &self.0 {
            Form::Whole(r) | Form::NoValue(r) | Form::KeyOnly(r) => r.key().len() + r.value().len(),
            Form::Decoded(p) => p.key.len() + p.value.len(),
        }
    }

    /// The key's bytes.
    pub fn key(&self) -> &[u8] {
        match &self.0 {
            Form::Whole(r) | Form::NoValue(r) | Form::KeyOnly(r) => r.key(),
            Form::Decoded(p) => &p.key,
        }
    }

    /// The value's bytes; empty if the pair has no value.
    pub fn value(&self) -> &[u8] {
        match &self.0 {
            Form::Whole(r) => r.value(),
            Form::NoValue(_) | Form::KeyOnly(_) => &[],
            Form::Decoded(p) => &p.value,
        }
    }

    /// Revision at which the key was created; 0 in a delete event.
    pub fn create_revision(&self) -> i64 {
        self.metadata().0
    }

    /// Revision of the last change.
    pub fn mod_revision(&self) -> i64 {
        self.metadata().1
    }

    /// Number of puts since the key was created, including that put; 0 in a delete event.
    pub fn version(&self) -> i64 {
        self.metadata().2
    }

    /// ID of the lease to which the key is attached; 0 for none.
    pub fn lease(&self) -> i64 {
        self.metadata().3
    }

    /// Returns create revision, mod revision, version and lease.
    fn metadata(&self) -> (i64, i64, i64, i64) {
        match &self.0 {
            Form::Whole(r) | Form::NoValue(r) => {
                (r.create_revision(), r.mod_revision(), r.version(), r.lease())
            }
            Form::KeyOnly(r) => (r.create_revision(), r.mod_revision(), r.version(), 0),
            Form::Decoded(p) => (p.create_revision, p.mod_revision, p.version, p.lease),
        }
    }

    /// Returns the pair as a decoded pair. Converts it first if it is a record.
    fn decoded_mut(&mut self) -> &mut Decoded {
        if !matches!(self.0, Form::Decoded(_)) {
            let (create_revision, mod_revision, version, lease) = self.metadata();
            let key = Bytes::copy_from_slice(self.key());
            let value = Bytes::copy_from_slice(self.value());
            let decoded = Decoded { key, create_revision, mod_revision, version, value, lease };
            self.0 = Form::Decoded(Box::new(decoded));
        }
        match &mut self.0 {
            Form::Decoded(p) => p,
            _ => unreachable!("converted above"),
        }
    }
}

impl Default for KeyValue {
    fn default() -> Self {
        KeyValue(Form::Decoded(Box::default()))
    }
}

impl PartialEq for KeyValue {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
            && self.value() == other.value()
            && self.metadata() == other.metadata()
    }
}

impl Eq for KeyValue {}

impl std::hash::Hash for KeyValue {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
        self.value().hash(state);
        self.metadata().hash(state);
    }
}

impl Message for KeyValue {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        let (create, modified, version, lease) = self.metadata();
        put_bytes(1, self.key(), buf);
        put_int64(2, create, buf);
        put_int64(3, modified, buf);
        put_int64(4, version, buf);
        put_bytes(5, self.value(), buf);
        put_int64(6, lease, buf);
    }

    fn encoded_len(&self) -> usize {
        let (create, modified, version, lease) = self.metadata();
        bytes_len(self.key())
            + int64_len(create)
            + int64_len(modified)
            + int64_len(version)
            + bytes_len(self.value())
            + int64_len(lease)
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let decoded = self.decoded_mut();
        match tag {
            1 => encoding::bytes::merge(wire_type, &mut decoded.key, buf, ctx),
            2 => encoding::int64::merge(wire_type, &mut decoded.create_revision, buf, ctx),
            3 => encoding::int64::merge(wire_type, &mut decoded.mod_revision, buf, ctx),
            4 => encoding::int64::merge(wire_type, &mut decoded.version, buf, ctx),
            5 => encoding::bytes::merge(wire_type, &mut decoded.value, buf, ctx),
            6 => encoding::int64::merge(wire_type, &mut decoded.lease, buf, ctx),
            _ => encoding::skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn clear(&mut self) {
        *self = KeyValue::default();
    }
}

// proto3 omits fields with default values. All field numbers are below 16, so a field's
// key takes one byte.
fn put_bytes(tag: u32, bytes: &[u8], buf: &mut impl BufMut) {
    if !bytes.is_empty() {
        encoding::encode_key(tag, WireType::LengthDelimited, buf);
        encoding::encode_varint(bytes.len() as u64, buf);
        buf.put_slice(bytes);
    }
}

fn bytes_len(bytes: &[u8]) -> usize {
    if bytes.is_empty() {
        return 0;
    }
    1 + encoding::encoded_len_varint(bytes.len() as u64) + bytes.len()
}

fn put_int64(tag: u32, value: i64, buf: &mut impl BufMut) {
    if value != 0 {
        encoding::encode_key(tag, WireType::Varint, buf);
        encoding::encode_varint(value as u64, buf);
    }
}

fn int64_len(value: i64) -> usize {
    if value == 0 { 0 } else { 1 + encoding::encoded_len_varint(value as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record::put(b"/a", b"value", 3, 300, 7, -5)
    }

    #[test]
    fn encoding_and_decoding_round_trip() {
        let stored = KeyValue::from(record());
        let decoded = KeyValue::decode(&stored.encode_to_vec()[..]).unwrap();
        assert_eq!(stored, decoded);
        assert_eq!(stored.encoded_len(), decoded.encode_to_vec().len());
        assert_eq!(decoded.lease(), -5);
    }

    #[test]
    fn a_tombstone_has_only_key_and_revision() {
        let gone = KeyValue::from(Record::tombstone(b"/a", 9));
        assert_eq!(gone.encode_to_vec(), [0x0a, 2, b'/', b'a', 0x18, 9]);
    }

    #[test]
    fn key_only_omits_value_and_lease() {
        let kv = KeyValue::key_only(record());
        let decoded = KeyValue::decode(&kv.encode_to_vec()[..]).unwrap();
        assert_eq!(decoded.value(), b"");
        assert_eq!((decoded.key(), decoded.version()), (&b"/a"[..], 7));
        assert_eq!((decoded.lease(), KeyValue::no_value(record()).lease()), (0, -5));
        assert_eq!((kv.held_bytes(), decoded.held_bytes()), (7, 2));
    }
}
