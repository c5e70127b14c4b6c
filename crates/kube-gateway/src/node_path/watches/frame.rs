//! What is sent: events of a watch, lists, and the status that ends a watch.

use std::fmt;

use bytes::Bytes;

use super::kind::Kind;
use super::wire::{field_len, put_bytes, put_envelope_head, put_envelope_tail, put_length};

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The object was created, or is selected now.
    Added,
    /// The object was changed.
    Modified,
    /// The object was deleted, or is not selected any more.
    Deleted,
    /// Everything up to a version has been sent.
    Bookmark,
    /// The watch failed.
    Error,
}

impl EventType {
    fn name(self) -> &'static [u8] {
        match self {
            EventType::Added => b"ADDED",
            EventType::Modified => b"MODIFIED",
            EventType::Deleted => b"DELETED",
            EventType::Bookmark => b"BOOKMARK",
            EventType::Error => b"ERROR",
        }
    }

    /// Reads the name of a type.
    pub fn parse(name: &[u8]) -> Option<EventType> {
        use EventType::{Added, Bookmark, Deleted, Error, Modified};
        [Added, Modified, Deleted, Bookmark, Error].into_iter().find(|it| it.name() == name)
    }
}

/// An event in `application/vnd.kubernetes.protobuf;stream=watch`. Clones share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// The length, the type, and the start of the object's field.
    pub head: Bytes,
    /// The encoded object.
    pub object: Bytes,
}

/// Without the content: it may be a Secret.
impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.len())
    }
}

impl Frame {
    /// Frames an encoded object.
    pub fn new(event: EventType, object: Bytes) -> Frame {
        let mut head = Vec::with_capacity(32);
        put_head(&mut head, event, object.len());
        Frame { head: head.into(), object }
    }

    /// The error of a watch from a version that is no longer in the history, as kube-apiserver sends it.
    pub fn expired(version: u64, oldest: u64) -> Frame {
        let message = format!("too old resource version: {version} ({oldest})");
        let mut status = Vec::new();
        put_bytes(&mut status, 1, &list_meta(""));
        put_bytes(&mut status, 2, b"Failure");
        put_bytes(&mut status, 3, message.as_bytes());
        put_bytes(&mut status, 4, b"Expired");
        status.push(6 << 3);
        prost::encoding::encode_varint(410, &mut status);
        let mut object = Vec::new();
        put_envelope_head(&mut object, "v1", "Status", status.len());
        object.extend_from_slice(&status);
        put_envelope_tail(&mut object);
        Frame::new(EventType::Error, object.into())
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.object.len()
    }
}

/// Appends what precedes an encoded object of `length` bytes in an event.
pub fn put_head(out: &mut Vec<u8>, event: EventType, length: usize) {
    let name = event.name();
    let wrapped = field_len(length);
    let message = field_len(name.len()) + field_len(wrapped);
    // An object has at most a few megabytes.
    out.extend_from_slice(&(message as u32).to_be_bytes());
    put_bytes(out, 1, name);
    put_length(out, 2, wrapped);
    put_length(out, 1, length);
}

/// Encodes what precedes the items of a list, which have so many bytes with their tags and lengths.
pub fn list_head(kind: Kind, version: u64, items: usize) -> Vec<u8> {
    let names = kind.names();
    let meta = list_meta(&version.to_string());
    let mut out = Vec::new();
    put_envelope_head(&mut out, names.api_version, names.list, field_len(meta.len()) + items);
    put_bytes(&mut out, 1, &meta);
    out
}

/// Encodes `ListMeta` without a continuation.
fn list_meta(version: &str) -> Vec<u8> {
    let mut meta = Vec::new();
    put_bytes(&mut meta, 1, b"");
    put_bytes(&mut meta, 2, version.as_bytes());
    put_bytes(&mut meta, 3, b"");
    meta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_path::watches::wire::Fields;

    #[test]
    fn a_frame_has_a_length_a_type_and_an_object() {
        for size in [0, 100, 200, 70_000] {
            let object = Bytes::from(vec![7; size]);
            let frame = Frame::new(EventType::Modified, object.clone());
            let bytes = [&frame.head[..], &frame.object].concat();
            assert_eq!(bytes.len(), frame.len());
            assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_be_bytes());
            let mut event = Fields::new(&bytes, 4..bytes.len()).unwrap();
            let kind = event.next().unwrap().unwrap();
            assert_eq!(EventType::parse(&bytes[kind.value]), Some(EventType::Modified));
            let extension = event.next().unwrap().unwrap();
            let raw = Fields::new(&bytes, extension.value).unwrap().next().unwrap().unwrap();
            assert_eq!(bytes[raw.value], object);
        }
        assert_eq!(EventType::parse(b"OTHER"), None);
    }
}
