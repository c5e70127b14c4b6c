//! Protobuf as Kubernetes writes it: just enough to find fields, and to put messages together.

use std::ops::Range;

/// The wire type of a field whose value is a length and bytes.
const LENGTH_DELIMITED: u64 = 2;
/// What an encoded object begins with.
pub const MAGIC: &[u8] = b"k8s\0";
/// What follows the object in `runtime.Unknown`: the empty fields `contentEncoding` and `contentType`.
const UNKNOWN_TAIL: &[u8] = &[0x1a, 0, 0x22, 0];

/// Reads the fields of a message that begins at an offset.
pub struct Fields<'a> {
    bytes: &'a [u8],
    /// Where the next field begins, in the bytes in which the message is.
    offset: usize,
}

/// A field: where it begins, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The number of the field.
    pub number: u64,
    /// The tag, the length and the value.
    pub whole: Range<usize>,
    /// The value, if it has a length.
    pub value: Range<usize>,
    /// The value, if it is a number.
    pub varint: u64,
}

impl Field {
    /// The value, if it has a length.
    pub fn bytes(&self) -> Option<Range<usize>> {
        // A value with a length follows its tag, so that it does not begin at 0.
        (self.value.start > 0).then(|| self.value.clone())
    }
}

impl<'a> Fields<'a> {
    /// Reads the message that is at `range` of `bytes`.
    pub fn new(bytes: &'a [u8], range: Range<usize>) -> Option<Fields<'a>> {
        Some(Fields { bytes: bytes.get(..range.end)?, offset: range.start })
    }

    /// Reads the next field. The result is `Some(None)` at the end, and `None` if the bytes are not a
    /// message.
    pub fn next(&mut self) -> Option<Option<Field>> {
        let start = self.offset;
        if start == self.bytes.len() {
            return Some(None);
        }
        let tag = self.varint()?;
        let (number, wire_type) = (tag >> 3, tag & 7);
        let mut field = Field { number, whole: start..0, value: 0..0, varint: 0 };
        match wire_type {
            0 => field.varint = self.varint()?,
            1 => self.skip(8)?,
            5 => self.skip(4)?,
            LENGTH_DELIMITED => {
                let length = usize::try_from(self.varint()?).ok()?;
                let start = self.offset;
                self.skip(length)?;
                field.value = start..self.offset;
            }
            _ => return None,
        }
        field.whole.end = self.offset;
        Some(Some(field))
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        let end = self.offset.checked_add(count).filter(|end| *end <= self.bytes.len())?;
        self.offset = end;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut rest = self.bytes.get(self.offset..)?;
        let before = rest.len();
        let value = prost::encoding::decode_varint(&mut rest).ok()?;
        self.offset += before - rest.len();
        Some(value)
    }
}

/// Returns where in an encoded object (`k8s\0` and `runtime.Unknown`) the object itself is; `None` if it
/// is anything else than kube-apiserver writes.
pub fn unwrap_object(envelope: &[u8]) -> Option<Range<usize>> {
    let inner = envelope.strip_suffix(UNKNOWN_TAIL)?;
    inner.strip_prefix(MAGIC)?;
    let mut fields = Fields::new(inner, MAGIC.len()..inner.len())?;
    let type_meta = fields.next()??;
    let raw = fields.next()??;
    let is_complete = fields.next()?.is_none();
    (type_meta.number == 1 && raw.number == 2 && is_complete).then_some(raw.value)
}

/// Appends a field whose value is bytes. The number must be below 16.
pub fn put_bytes(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    put_length(out, number, value.len());
    out.extend_from_slice(value);
}

/// Appends the tag and the length of a field whose value follows.
pub fn put_length(out: &mut Vec<u8>, number: u8, length: usize) {
    out.push(number << 3 | LENGTH_DELIMITED as u8);
    prost::encoding::encode_varint(length as u64, out);
}

/// The number of bytes of a field with a number below 16 whose value has a length.
pub fn field_len(length: usize) -> usize {
    1 + prost::encoding::encoded_len_varint(length as u64) + length
}

/// Appends the start of an encoded object of `length` bytes.
pub fn put_envelope_head(out: &mut Vec<u8>, api_version: &str, kind: &str, length: usize) {
    out.extend_from_slice(MAGIC);
    put_length(out, 1, field_len(api_version.len()) + field_len(kind.len()));
    put_bytes(out, 1, api_version.as_bytes());
    put_bytes(out, 2, kind.as_bytes());
    put_length(out, 2, length);
}

/// Appends the end of an encoded object.
pub fn put_envelope_tail(out: &mut Vec<u8>) {
    out.extend_from_slice(UNKNOWN_TAIL);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hostile_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = unwrap_object(&bytes);
            let mut fields = Fields::new(&bytes, 0..bytes.len()).unwrap();
            while let Some(Some(field)) = fields.next() {
                prop_assert!(field.whole.end <= bytes.len() && field.value.end <= bytes.len());
            }
        }

        #[test]
        fn what_is_wrapped_is_unwrapped(object: Vec<u8>) {
            let mut envelope = Vec::new();
            put_envelope_head(&mut envelope, "v1", "Pod", object.len());
            envelope.extend_from_slice(&object);
            put_envelope_tail(&mut envelope);
            let range = unwrap_object(&envelope).unwrap();
            prop_assert_eq!(&envelope[range], &object[..]);
        }
    }

    #[test]
    fn fields_are_found() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'a', b'b', 0x1d, 1, 2, 3, 4];
        let mut fields = Fields::new(&bytes, 0..bytes.len()).unwrap();
        let number = fields.next().unwrap().unwrap();
        assert_eq!((number.bytes(), number.varint, number.whole), (None, 150, 0..3));
        let text = fields.next().unwrap().unwrap();
        assert_eq!((text.number, text.bytes(), text.whole), (2, Some(5..7), 3..7));
        assert_eq!(fields.next().unwrap().unwrap().number, 3);
        assert_eq!(fields.next(), Some(None));
        for bytes in [&[0x0a, 5, 1][..], &[0x0b], &[0x80], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(Fields::new(bytes, 0..bytes.len()).unwrap().next(), None, "{bytes:x?}");
        }
    }
}
