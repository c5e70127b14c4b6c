//! A Lease as kube-apiserver stores it, from which it sends the same bytes with a `resourceVersion`.
//!
//! A client gets a Lease after it was decoded and encoded again. Both give the same bytes only if every
//! field is known, occurs in the order of the encoder, and has its shortest form. Anything else is not
//! parsed. (`Marshal` in `k8s.io/apimachinery/pkg/apis/meta/v1/generated.pb.go`, `time_proto.go` and
//! `micro_time_proto.go`, and in `k8s.io/api/coordination/v1/generated.pb.go`.)

use crate::lease::{HEAD, METADATA, MICROSECOND, RESOURCE_VERSION, SPEC, TAIL};
use crate::wire::{Reader, field_len, put_header, varint_len};

/// The seconds of the zero time, 1 January of the year 1.
const ZERO_TIME: i64 = -62_135_596_800;

/// A Lease as it is stored, without a `resourceVersion`.
#[derive(Clone, Copy, Debug)]
pub struct StoredLease<'a> {
    /// The namespace.
    pub namespace: &'a [u8],
    /// The name.
    pub name: &'a [u8],
    /// The metadata before and after the `resourceVersion`.
    metadata: (&'a [u8], &'a [u8]),
    /// The spec, with its tag and length.
    spec: &'a [u8],
}

impl<'a> StoredLease<'a> {
    /// Takes a stored value apart; `None` if kube-apiserver could send anything else than these bytes.
    pub fn parse(value: &'a [u8]) -> Option<StoredLease<'a>> {
        let mut object = Reader::new(value);
        object.expect(&HEAD[..HEAD.len() - 1])?;
        let mut raw = Reader::new(object.bytes(&HEAD[HEAD.len() - 1..])?);
        object.expect(TAIL)?;
        let metadata = raw.bytes(METADATA)?;
        let spec = raw.rest();
        check_spec(raw.bytes(SPEC)?)?;
        if !object.is_empty() || !raw.is_empty() {
            return None;
        }
        let mut reader = Reader::new(metadata);
        let name = reader.bytes(&[0x0a])?;
        // generateName
        reader.bytes(&[0x12])?;
        let namespace = reader.bytes(&[0x1a])?;
        // selfLink and uid
        reader.bytes(&[0x22])?;
        reader.bytes(&[0x2a])?;
        let head = &metadata[..metadata.len() - reader.rest().len()];
        if !reader.bytes(RESOURCE_VERSION)?.is_empty() {
            return None;
        }
        let tail = reader.rest();
        check_metadata_tail(reader)?;
        Some(StoredLease { namespace, name, metadata: (head, tail), spec })
    }

    /// The Lease as kube-apiserver sends it, if the value was written at this revision.
    pub fn sent(&self, revision: u64) -> Vec<u8> {
        let (head, tail) = self.metadata;
        let version = revision.to_string();
        let metadata = head.len() + field_len(RESOURCE_VERSION.len(), version.len()) + tail.len();
        let raw = field_len(METADATA.len(), metadata) + self.spec.len();
        let length = HEAD.len() + varint_len(raw as u64) + raw + TAIL.len();
        let mut out = Vec::with_capacity(length);
        put_header(&mut out, HEAD, raw);
        put_header(&mut out, METADATA, metadata);
        out.extend_from_slice(head);
        put_header(&mut out, RESOURCE_VERSION, version.len());
        out.extend_from_slice(version.as_bytes());
        out.extend_from_slice(tail);
        out.extend_from_slice(self.spec);
        out.extend_from_slice(TAIL);
        out
    }
}

/// Checks the metadata after the `resourceVersion`.
fn check_metadata_tail(mut reader: Reader<'_>) -> Option<()> {
    // generation and creationTimestamp
    reader.number(0x38)?;
    check_time(reader.bytes(&[0x42])?, u32::MAX)?;
    // deletionTimestamp and deletionGracePeriodSeconds
    if reader.peek() == Some(0x4a) {
        check_time(reader.bytes(&[0x4a])?, u32::MAX)?;
    }
    if reader.peek() == Some(0x50) {
        reader.number(0x50)?;
    }
    // labels and annotations
    check_map(&mut reader, 0x5a)?;
    check_map(&mut reader, 0x62)?;
    while reader.peek() == Some(0x6a) {
        check_owner(reader.bytes(&[0x6a])?)?;
    }
    // finalizers
    while reader.peek() == Some(0x72) {
        reader.bytes(&[0x72])?;
    }
    while !reader.is_empty() {
        check_entry(reader.bytes(&[0x8a, 0x01])?)?;
    }
    Some(())
}

/// Checks a map, whose keys are sorted.
fn check_map(reader: &mut Reader<'_>, tag: u8) -> Option<()> {
    let mut last = None;
    while reader.peek() == Some(tag) {
        let mut pair = Reader::new(reader.bytes(&[tag])?);
        let key = pair.bytes(&[0x0a])?;
        pair.bytes(&[0x12])?;
        let is_next = last.is_none_or(|last| last < key);
        (pair.is_empty() && is_next).then_some(())?;
        last = Some(key);
    }
    Some(())
}

fn check_owner(bytes: &[u8]) -> Option<()> {
    let mut reader = Reader::new(bytes);
    // kind, name, uid and apiVersion
    for tag in [0x0a, 0x1a, 0x22, 0x2a] {
        reader.bytes(&[tag])?;
    }
    // controller and blockOwnerDeletion
    for tag in [0x30, 0x38] {
        if reader.peek() == Some(tag) {
            (reader.number(tag)? <= 1).then_some(())?;
        }
    }
    reader.is_empty().then_some(())
}

/// Checks an entry of `managedFields`.
fn check_entry(bytes: &[u8]) -> Option<()> {
    let mut reader = Reader::new(bytes);
    // manager, operation and apiVersion
    for tag in [0x0a, 0x12, 0x1a] {
        reader.bytes(&[tag])?;
    }
    if reader.peek() == Some(0x22) {
        check_time(reader.bytes(&[0x22])?, u32::MAX)?;
    }
    // fieldsType
    reader.bytes(&[0x32])?;
    if reader.peek() == Some(0x3a) {
        let mut fields = Reader::new(reader.bytes(&[0x3a])?);
        if !fields.is_empty() {
            fields.bytes(&[0x0a])?;
        }
        fields.is_empty().then_some(())?;
    }
    // subresource
    reader.bytes(&[0x42])?;
    reader.is_empty().then_some(())
}

fn check_spec(bytes: &[u8]) -> Option<()> {
    let mut reader = Reader::new(bytes);
    // holderIdentity, leaseDurationSeconds, acquireTime, renewTime, leaseTransitions, strategy and
    // preferredHolder
    for tag in [0x0a, 0x10, 0x1a, 0x22, 0x28, 0x32, 0x3a] {
        match (tag, reader.peek() == Some(tag)) {
            (_, false) => {}
            (0x10 | 0x28, true) => {
                i32::try_from(reader.number(tag)?.cast_signed()).ok()?;
            }
            (0x1a | 0x22, true) => check_time(reader.bytes(&[tag])?, MICROSECOND)?,
            (_, true) => {
                reader.bytes(&[tag])?;
            }
        }
    }
    reader.is_empty().then_some(())
}

/// Checks a time whose nanoseconds must be a multiple of `precision`: of `u32::MAX` for whole seconds.
/// The zero time has no fields. kube-apiserver keeps any other one, also before 1970.
fn check_time(bytes: &[u8], precision: u32) -> Option<()> {
    let mut reader = Reader::new(bytes);
    if reader.is_empty() {
        return Some(());
    }
    let seconds = reader.number(0x08)?.cast_signed();
    let nanos = u32::try_from(reader.number(0x10)?).ok()?;
    let is_valid = (seconds, nanos) != (ZERO_TIME, 0) && nanos < 1_000_000_000;
    (reader.is_empty() && is_valid && nanos.is_multiple_of(precision)).then_some(())
}
