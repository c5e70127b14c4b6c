//! What a kubelet changes in its Lease.

use crate::lease::Timestamp;
use crate::wire::{Reader, field_len, put_header, put_varint};

/// What every encoded object of Kubernetes starts with.
const MAGIC: &[u8] = b"k8s\0";
/// The field of the envelope with the object.
const RAW: u64 = 2;
/// The field of a Lease with its spec.
const SPEC: u64 = 2;
/// The field of the spec with the time for which the Lease is valid.
const DURATION: u64 = 2;
/// The field of the spec with the time of the last renewal.
const RENEW_TIME: u64 = 4;

/// Wire types of protobuf.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// Returns an encoded Lease with another `renewTime`; `None` if the bytes are not an encoded object
/// with a spec. All other fields stay as they are, also those that this crate does not know.
///
/// Kubelet decodes the Lease of the last answer, sets the time and encodes it. The result has the same
/// bytes.
pub fn with_renew_time(lease: &[u8], time: Timestamp) -> Option<Vec<u8>> {
    let mut encoded = Vec::with_capacity(TIME_BYTES);
    time.encode(&mut encoded);
    let envelope = lease.strip_prefix(MAGIC)?;
    let raw = find(envelope, RAW)?;
    let spec = find(raw.value, SPEC)?;
    let time = find(spec.value, RENEW_TIME).unwrap_or_else(|| insertion(spec.value));
    let spec_len = time.before.len() + field_len(1, encoded.len()) + time.after.len();
    let raw_len = spec.before.len() + field_len(1, spec_len) + spec.after.len();
    let total = MAGIC.len() + raw.before.len() + field_len(1, raw_len) + raw.after.len();
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(raw.before);
    put_header(&mut out, &[tag(RAW)], raw_len);
    out.extend_from_slice(spec.before);
    put_header(&mut out, &[tag(SPEC)], spec_len);
    out.extend_from_slice(time.before);
    put_header(&mut out, &[tag(RENEW_TIME)], encoded.len());
    out.extend_from_slice(&encoded);
    out.extend_from_slice(time.after);
    out.extend_from_slice(spec.after);
    out.extend_from_slice(raw.after);
    Some(out)
}

/// Returns an encoded Lease with another `leaseDurationSeconds`; `None` if the bytes are not an encoded
/// object with a spec. All other fields stay as they are.
///
/// Kubelet sets the field in each renewal, because its configuration may have changed since the Lease
/// was created. Here it is set once, in the Lease from which the renewals are made.
pub fn with_duration(lease: &[u8], seconds: u32) -> Option<Vec<u8>> {
    let envelope = lease.strip_prefix(MAGIC)?;
    let raw = find(envelope, RAW)?;
    let spec = find(raw.value, SPEC)?;
    let changed = with_number(spec.value, DURATION, seconds.into())?;
    let changed = spec.around(SPEC, &changed);
    Some([MAGIC, &raw.around(RAW, &changed)].concat())
}

/// Returns a message with another number in a field. A missing field is inserted before the first one
/// with a higher number.
fn with_number(message: &[u8], number: u64, value: u64) -> Option<Vec<u8>> {
    let mut reader = Reader::new(message);
    let (mut before, mut after) = (message, &message[message.len()..]);
    while !reader.is_empty() {
        let start = message.len() - reader.rest().len();
        let (found, _) = next_field(&mut reader)?;
        if found >= number {
            before = &message[..start];
            after = if found == number { reader.rest() } else { &message[start..] };
            break;
        }
    }
    let mut out = Vec::with_capacity(message.len() + NUMBER_BYTES);
    out.extend_from_slice(before);
    put_varint(&mut out, number << 3 | VARINT);
    put_varint(&mut out, value);
    out.extend_from_slice(after);
    Some(out)
}

/// Bytes of an encoded number, at most: a tag of one byte and the number.
const NUMBER_BYTES: usize = 11;

/// Bytes of an encoded time, at most: two tags, ten bytes of seconds and five of nanoseconds.
const TIME_BYTES: usize = 17;

const fn tag(field: u64) -> u8 {
    (field << 3 | BYTES) as u8
}

/// A field of a message, and the bytes around it.
struct Found<'a> {
    before: &'a [u8],
    value: &'a [u8],
    after: &'a [u8],
}

impl Found<'_> {
    /// The message with another value.
    fn around(&self, number: u64, value: &[u8]) -> Vec<u8> {
        let len = self.before.len() + field_len(1, value.len()) + self.after.len();
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(self.before);
        put_header(&mut out, &[tag(number)], value.len());
        out.extend_from_slice(value);
        out.extend_from_slice(self.after);
        out
    }
}

/// Finds the first field with this number, whose value has a length.
fn find(message: &[u8], number: u64) -> Option<Found<'_>> {
    let mut reader = Reader::new(message);
    while !reader.is_empty() {
        let start = message.len() - reader.rest().len();
        let (found, value) = next_field(&mut reader)?;
        if found == number {
            let (before, after) = (&message[..start], reader.rest());
            return Some(Found { before, value: value?, after });
        }
    }
    None
}

/// Where a missing `renewTime` is inserted: before the first field with a higher number, because
/// Kubernetes' encoder writes fields in the order of their numbers.
fn insertion(spec: &[u8]) -> Found<'_> {
    let mut reader = Reader::new(spec);
    let mut at = 0;
    while let Some((number, _)) = next_field(&mut reader) {
        if number > RENEW_TIME {
            break;
        }
        at = spec.len() - reader.rest().len();
    }
    let (before, after) = spec.split_at(at);
    Found { before, value: &[], after }
}

/// Reads a field: its number, and its value if that has a length.
fn next_field<'a>(reader: &mut Reader<'a>) -> Option<(u64, Option<&'a [u8]>)> {
    let tag = reader.varint()?;
    let value = match tag & 7 {
        VARINT => {
            reader.varint()?;
            None
        }
        BYTES => {
            let length = usize::try_from(reader.varint()?).ok()?;
            Some(reader.take(length)?)
        }
        FIXED64 => {
            reader.take(8)?;
            None
        }
        FIXED32 => {
            reader.take(4)?;
            None
        }
        _ => return None,
    };
    Some((tag >> 3, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hostile_bytes_do_not_panic(bytes: Vec<u8>, seconds: u32) {
            let time = Timestamp { seconds: seconds.into(), nanos: 0 };
            let _ = with_renew_time(&bytes, time);
            let _ = with_renew_time(&[MAGIC, &bytes].concat(), time);
            let _ = with_duration(&bytes, seconds);
            let _ = with_duration(&[MAGIC, &bytes].concat(), seconds);
            let _ = with_number(&bytes, DURATION, seconds.into());
        }
    }

    fn field(number: u64, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_header(&mut out, &[tag(number)], value.len());
        out.extend_from_slice(value);
        out
    }

    fn lease(spec: &[u8]) -> Vec<u8> {
        let raw = [field(1, b"metadata"), field(SPEC, spec)].concat();
        [MAGIC, &field(1, b"type"), &field(RAW, &raw), &field(4, b"")].concat()
    }

    #[test]
    fn only_the_duration_changes() {
        let (head, tail) = (field(1, b"node"), field(RENEW_TIME, b"time"));
        let expected = lease(&[&head[..], &[0x10, 0xac, 0x02], &tail].concat());
        for old in [&[0x10, 40][..], &[0x10, 0x80, 0x01], &[]] {
            let before = lease(&[&head[..], old, &tail].concat());
            assert_eq!(with_duration(&before, 300).unwrap(), expected, "{old:?}");
        }
        assert_eq!(with_duration(&lease(b""), 300).unwrap(), lease(&[0x10, 0xac, 0x02]));
        assert_eq!(with_duration(b"{}", 300), None);
    }

    #[test]
    fn only_the_time_changes() {
        let time = Timestamp { seconds: 1_700_000_000, nanos: 123_456_000 };
        let mut encoded = Vec::new();
        time.encode(&mut encoded);
        let (head, tail) = ([field(1, b"node"), vec![0x10, 40]].concat(), field(6, b"x"));
        let expected = lease(&[&head[..], &field(RENEW_TIME, &encoded), &tail].concat());
        for old in [field(RENEW_TIME, b""), field(RENEW_TIME, &[8, 1, 16, 2]), Vec::new()] {
            let before = lease(&[&head[..], &old, &tail].concat());
            assert_eq!(with_renew_time(&before, time).unwrap(), expected, "{old:?}");
        }
    }
}
