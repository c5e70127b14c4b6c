//! A Lease in protobuf, taken apart around the fields that a renewal changes.

use std::num::NonZeroU64;

use ring::digest::{Context, SHA256};

use crate::wire::{Reader, field_len, put_header, put_varint, varint_len};

/// The start of a Lease in the store, in a request and in an answer: the magic number, the `TypeMeta`,
/// and the tag of the raw object.
pub(crate) const HEAD: &[u8] = b"k8s\0\x0a\x1f\x0a\x16coordination.k8s.io/v1\x12\x05Lease\x12";
/// The end: an empty `contentEncoding` and `contentType`.
pub(crate) const TAIL: &[u8] = &[0x1a, 0x00, 0x22, 0x00];
/// The API version of an entry in `managedFields`, with its tag and length.
const ENTRY_VERSION: &[u8] = b"\x1a\x16coordination.k8s.io/v1";
/// How the fields of an entry say that its manager has set `renewTime`.
const OWNS_RENEW_TIME: &[u8] = b"\"f:renewTime\":{}";

/// Tags of Lease.
pub(crate) const METADATA: &[u8] = &[0x0a];
pub(crate) const SPEC: &[u8] = &[0x12];
/// Tags of ObjectMeta.
const NAME: &[u8] = &[0x0a];
const NAMESPACE: &[u8] = &[0x1a];
pub(crate) const RESOURCE_VERSION: &[u8] = &[0x32];
const MANAGED_FIELDS: &[u8] = &[0x8a, 0x01];
/// Tags of ManagedFieldsEntry and of LeaseSpec: both have a time as field 4.
const TIME: &[u8] = &[0x22];

/// Nanoseconds in a microsecond, the precision of `renewTime`.
pub(crate) const MICROSECOND: u32 = 1_000;
/// The last second that JSON can express: the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time after 1970 as seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: u64,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

/// Identifies everything in a Lease that a renewal does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 16]);

/// A Lease with one entry in `managedFields`.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The namespace.
    pub namespace: &'a [u8],
    /// The version that a request is based on; `None` in the store.
    pub resource_version: Option<NonZeroU64>,
    /// The time of the last renewal.
    pub renew_time: Timestamp,
    /// The manager of the only entry in `managedFields`.
    pub manager: &'a [u8],
    /// The time of this entry, in seconds since 1970.
    pub managed_time: u64,
    metadata: Parts<'a>,
    entry: Around<'a>,
    spec: Around<'a>,
}

/// ObjectMeta without its `resourceVersion` and `managedFields`.
#[derive(Clone, Copy, Debug)]
struct Parts<'a> {
    head: &'a [u8],
    middle: &'a [u8],
}

/// The bytes around a time.
#[derive(Clone, Copy, Debug)]
struct Around<'a> {
    head: &'a [u8],
    tail: &'a [u8],
}

impl<'a> Lease<'a> {
    /// Takes a Lease apart. Returns `None` unless the bytes are a Lease as Kubernetes' own code
    /// encodes it, which is not being deleted, with a `renewTime` and one entry in `managedFields`.
    pub fn parse(bytes: &'a [u8]) -> Option<Lease<'a>> {
        let mut object = Reader::new(bytes);
        object.expect(&HEAD[..HEAD.len() - 1])?;
        let mut raw = Reader::new(object.bytes(&HEAD[HEAD.len() - 1..])?);
        object.expect(TAIL)?;
        let (metadata, spec) = (raw.bytes(METADATA)?, raw.bytes(SPEC)?);
        if !object.is_empty() || !raw.is_empty() {
            return None;
        }
        let meta = Metadata::parse(metadata)?;
        let (spec, renew_time) = parse_spec(spec)?;
        Some(Lease {
            name: meta.name,
            namespace: meta.namespace,
            resource_version: meta.resource_version,
            renew_time,
            manager: meta.manager,
            managed_time: meta.managed_time,
            metadata: meta.parts,
            entry: meta.entry,
            spec,
        })
    }

    /// Whether kube-apiserver would only replace the time of the entry in `managedFields` if this
    /// manager renewed the Lease. It would rewrite the entries if the manager of the Lease were another
    /// one, or if it had never set `renewTime`.
    pub fn is_renewable(&self, manager: &[u8]) -> bool {
        self.manager == manager
            && self.entry.tail.windows(OWNS_RENEW_TIME.len()).any(|bytes| bytes == OWNS_RENEW_TIME)
    }

    /// Identifies what a renewal does not change.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut context = Context::new(&SHA256);
        for part in self.constant_parts() {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut short = [0; 16];
        short.copy_from_slice(&context.finish().as_ref()[..16]);
        Fingerprint(short)
    }

    /// The value that kube-apiserver stores if it executes a request with this Lease in the second
    /// `now`.
    pub fn stored(&self, now: u64) -> Vec<u8> {
        self.encode(now, None)
    }

    /// The body of its answer, if the value was written at the revision `version`.
    pub fn answer(&self, now: u64, version: NonZeroU64) -> Vec<u8> {
        self.encode(now, Some(version))
    }

    fn constant_parts(&self) -> [&'a [u8]; 6] {
        let Lease { metadata, entry, spec, .. } = self;
        [metadata.head, metadata.middle, entry.head, entry.tail, spec.head, spec.tail]
    }

    fn encode(&self, now: u64, version: Option<NonZeroU64>) -> Vec<u8> {
        let entry_time = Timestamp { seconds: now, nanos: 0 };
        let version = version.map(|version| version.to_string()).unwrap_or_default();
        let entry = self.entry.len(entry_time);
        let metadata = self.metadata.head.len()
            + field_len(RESOURCE_VERSION.len(), version.len())
            + self.metadata.middle.len()
            + field_len(MANAGED_FIELDS.len(), entry);
        let spec = self.spec.len(self.renew_time);
        let raw = field_len(METADATA.len(), metadata) + field_len(SPEC.len(), spec);
        let mut out = Vec::with_capacity(HEAD.len() + varint_len(raw as u64) + raw + TAIL.len());
        put_header(&mut out, HEAD, raw);
        put_header(&mut out, METADATA, metadata);
        out.extend_from_slice(self.metadata.head);
        put_header(&mut out, RESOURCE_VERSION, version.len());
        out.extend_from_slice(version.as_bytes());
        out.extend_from_slice(self.metadata.middle);
        put_header(&mut out, MANAGED_FIELDS, entry);
        self.entry.encode(entry_time, &mut out);
        put_header(&mut out, SPEC, spec);
        self.spec.encode(self.renew_time, &mut out);
        out.extend_from_slice(TAIL);
        out
    }
}

/// What `Lease::parse` needs of ObjectMeta.
struct Metadata<'a> {
    name: &'a [u8],
    namespace: &'a [u8],
    resource_version: Option<NonZeroU64>,
    manager: &'a [u8],
    managed_time: u64,
    parts: Parts<'a>,
    entry: Around<'a>,
}

impl<'a> Metadata<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Metadata<'a>> {
        let mut reader = Reader::new(bytes);
        let name = reader.bytes(NAME)?;
        // generateName
        reader.bytes(&[0x12])?;
        let namespace = reader.bytes(NAMESPACE)?;
        // selfLink and uid
        reader.bytes(&[0x22])?;
        reader.bytes(&[0x2a])?;
        let head = &bytes[..bytes.len() - reader.rest().len()];
        let resource_version = parse_version(reader.bytes(RESOURCE_VERSION)?)?;
        // generation, creationTimestamp, labels, annotations, ownerReferences, finalizers; not
        // deletionTimestamp and deletionGracePeriodSeconds
        let middle = reader.skip(&[0x42, 0x5a, 0x62, 0x6a, 0x72], &[0x38])?;
        let (entry, manager, managed_time) = parse_entry(reader.bytes(MANAGED_FIELDS)?)?;
        let parts = Parts { head, middle };
        reader.is_empty().then_some(Metadata {
            name,
            namespace,
            resource_version,
            manager,
            managed_time,
            parts,
            entry,
        })
    }
}

/// Reads a `resourceVersion`: `Some(None)` if it is empty.
fn parse_version(text: &[u8]) -> Option<Option<NonZeroU64>> {
    if text.is_empty() {
        return Some(None);
    }
    // A sign or a leading zero is another text for the same version.
    if !text.iter().all(u8::is_ascii_digit) || text[0] == b'0' {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().map(Some)
}

/// Takes an entry of `managedFields` apart, and returns its manager and the second of its time.
fn parse_entry(bytes: &[u8]) -> Option<(Around<'_>, &[u8], u64)> {
    let mut reader = Reader::new(bytes);
    let manager = reader.bytes(&[0x0a])?;
    reader.expect(b"\x12\x06Update")?;
    reader.expect(ENTRY_VERSION)?;
    let head = &bytes[..bytes.len() - reader.rest().len()];
    let time = Timestamp::parse(reader.bytes(TIME)?)?;
    let tail = reader.rest();
    reader.expect(b"\x32\x08FieldsV1")?;
    reader.bytes(&[0x3a])?;
    // no subresource
    reader.expect(&[0x42, 0x00])?;
    let is_whole_second = time.nanos == 0;
    (reader.is_empty() && is_whole_second).then_some((Around { head, tail }, manager, time.seconds))
}

/// Takes a LeaseSpec apart, and returns its `renewTime`.
fn parse_spec(bytes: &[u8]) -> Option<(Around<'_>, Timestamp)> {
    let mut reader = Reader::new(bytes);
    // holderIdentity, leaseDurationSeconds and acquireTime
    let head = reader.skip(&[0x0a, 0x1a], &[0x10])?;
    let time = Timestamp::parse(reader.bytes(TIME)?)?;
    let tail = reader.rest();
    // leaseTransitions, strategy and preferredHolder
    reader.skip(&[0x32, 0x3a], &[0x28])?;
    let is_valid = time.nanos.is_multiple_of(MICROSECOND) && time.seconds <= LAST_SECOND;
    (reader.is_empty() && is_valid).then_some((Around { head, tail }, time))
}

impl Around<'_> {
    fn len(&self, time: Timestamp) -> usize {
        self.head.len() + field_len(TIME.len(), time.len()) + self.tail.len()
    }

    fn encode(&self, time: Timestamp, out: &mut Vec<u8>) {
        out.extend_from_slice(self.head);
        put_header(out, TIME, time.len());
        time.encode(out);
        out.extend_from_slice(self.tail);
    }
}

impl Timestamp {
    fn parse(bytes: &[u8]) -> Option<Timestamp> {
        let mut reader = Reader::new(bytes);
        let seconds = reader.number(0x08)?;
        let nanos = u32::try_from(reader.number(0x10)?).ok()?;
        (reader.is_empty() && nanos < 1_000_000_000).then_some(Timestamp { seconds, nanos })
    }

    fn len(self) -> usize {
        2 + varint_len(self.seconds) + varint_len(u64::from(self.nanos))
    }

    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.push(0x08);
        put_varint(out, self.seconds);
        out.push(0x10);
        put_varint(out, u64::from(self.nanos));
    }
}
