//! Answers with many objects, which are produced while the client reads them.
//!
//! A list of 100,000 Leases has about 47 MB. All clients together would have as many bytes as they ask for, if
//! each list was encoded at once. Here an answer has only its objects, which are those of the cache.

use std::sync::Arc;

use bytes::Bytes;
use http2::Data;

use super::frame::{EventType, Frame, list_head, put_head};
use super::kind::Kind;
use super::object::Object;
use super::wire::{field_len, put_bytes, put_envelope_tail};
use crate::protect::Reservation;

/// Bytes that are produced at once, about. A smaller answer is produced when it is sent.
const PART: usize = 16 << 10;

/// The body of a list, or the initial events of a watch.
pub struct Body {
    /// What precedes the objects, until it is produced.
    head: Vec<u8>,
    objects: std::vec::IntoIter<Arc<Object>>,
    /// Appends an object.
    put: fn(&Object, &mut Vec<u8>),
    /// What follows the objects, until it is produced.
    tail: Vec<u8>,
    /// Bytes that are not produced yet.
    len: usize,
    /// What the answer has reserved of the bytes of all LISTs in progress, until it is sent or given up.
    reservation: Option<Reservation>,
}

impl Body {
    /// A list of these objects at a version.
    pub fn list(kind: Kind, version: u64, objects: Vec<Arc<Object>>) -> Body {
        let items = objects.iter().map(|object| field_len(object.raw().len())).sum();
        let mut tail = Vec::new();
        put_envelope_tail(&mut tail);
        let put = |object: &Object, out: &mut Vec<u8>| put_bytes(out, 2, object.raw());
        Body::new(list_head(kind, version, items), objects, items, put, tail)
    }

    /// An event for each of these objects, as if it was added, and the frames that follow them.
    pub fn initial_events(objects: Vec<Arc<Object>>, frames: &[Frame]) -> Body {
        let mut head = Vec::new();
        let mut size = |object: &Arc<Object>| {
            head.clear();
            put_head(&mut head, EventType::Added, object.envelope().len());
            head.len() + object.envelope().len()
        };
        let events = objects.iter().map(&mut size).sum();
        let parts = frames.iter().flat_map(|frame| [&frame.head[..], &frame.object]);
        let tail = parts.collect::<Vec<_>>().concat();
        let put = |object: &Object, out: &mut Vec<u8>| {
            put_head(out, EventType::Added, object.envelope().len());
            out.extend_from_slice(object.envelope());
        };
        Body::new(Vec::new(), objects, events, put, tail)
    }

    fn new(
        head: Vec<u8>,
        objects: Vec<Arc<Object>>,
        bytes_of_objects: usize,
        put: fn(&Object, &mut Vec<u8>),
        tail: Vec<u8>,
    ) -> Body {
        let len = head.len() + bytes_of_objects + tail.len();
        Body { head, objects: objects.into_iter(), put, tail, len, reservation: None }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Keeps a reservation until the answer is sent or given up.
    pub fn reserve(&mut self, reservation: Reservation) {
        self.reservation = Some(reservation);
    }

    /// The body as it is sent.
    pub fn into_data(mut self) -> Data {
        let len = self.len;
        if len <= PART {
            return Data::Bytes(self.next().unwrap_or_default());
        }
        // The objects are in the cache, or among its last changes.
        let held_bytes = PART + self.objects.len() * size_of::<Arc<Object>>();
        Data::Lazy { len, held_bytes, chunks: Box::new(self) }
    }
}

impl Iterator for Body {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut part = std::mem::take(&mut self.head);
        part.reserve(self.len.min(PART) - part.len().min(PART));
        while part.len() < PART {
            let Some(object) = self.objects.next() else {
                part.append(&mut self.tail);
                break;
            };
            (self.put)(&object, &mut part);
        }
        self.len -= part.len();
        (!part.is_empty()).then(|| part.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_path::watches::object::sample::pod;
    use crate::node_path::watches::wire::{Fields, unwrap_object};

    fn pods(count: usize, text: &str) -> Vec<Arc<Object>> {
        let pod = |number| {
            let bytes = pod("ns", &format!("p{number}"), "n", 5, text);
            Arc::new(Object::parse(Kind::Pods, bytes).unwrap())
        };
        (0..count).map(pod).collect()
    }

    /// A whole body, which must have as many bytes as it says.
    fn whole(body: Body) -> Vec<u8> {
        let len = body.len();
        let whole = body.collect::<Vec<Bytes>>().concat();
        assert_eq!(whole.len(), len);
        whole
    }

    #[test]
    fn a_list_has_a_version_and_items() {
        for (count, text) in
            [(0, ""), (2, ""), (1, "x"), (1000, "some text"), (3, &*"x".repeat(PART))]
        {
            let objects = pods(count, text);
            let bytes = whole(Body::list(Kind::Pods, 17, objects.clone()));
            let raw = unwrap_object(&bytes).unwrap();
            let mut fields = Fields::new(&bytes, raw).unwrap();
            let meta = fields.next().unwrap().unwrap();
            assert_eq!(&bytes[meta.value], b"\x0a\x00\x12\x0217\x1a\x00");
            for object in &objects {
                let item = fields.next().unwrap().unwrap();
                assert_eq!((item.number, &bytes[item.value]), (2, object.raw()));
            }
            assert_eq!(fields.next(), Some(None));
        }
    }

    #[test]
    fn initial_events_are_those_of_added_objects_and_what_follows() {
        for count in [0, 1, 1000] {
            let objects = pods(count, "some text");
            let follows = Frame::new(EventType::Bookmark, pod("", "", "", 9, ""));
            let added =
                |object: &Arc<Object>| Frame::new(EventType::Added, object.envelope().clone());
            let frames = objects.iter().map(added).chain([follows.clone()]);
            let expected = frames.flat_map(|frame| [frame.head, frame.object]).collect::<Vec<_>>();
            let bytes = whole(Body::initial_events(objects, &[follows]));
            assert_eq!(bytes, expected.concat());
        }
    }

    #[test]
    fn a_large_answer_is_produced_in_parts() {
        let objects = pods(1000, &"x".repeat(1000));
        let largest = PART + objects[0].envelope().len() + 100;
        let shared = objects[0].clone();
        let body = Body::list(Kind::Pods, 17, objects);
        let len = body.len();
        let Data::Lazy { len: promised, held_bytes, mut chunks } = body.into_data() else {
            panic!("it is produced at once")
        };
        assert!(promised == len && len > 1_000_000 && held_bytes < 30_000);
        assert_eq!(Arc::strong_count(&shared), 2);
        let first = chunks.next().unwrap();
        assert_eq!(Arc::strong_count(&shared), 1, "what is produced is not kept");
        let rest: Vec<Bytes> = chunks.collect();
        assert!(first.len() < largest && rest.iter().all(|part| part.len() < largest));
        assert!(matches!(Body::list(Kind::Pods, 17, pods(9, "")).into_data(), Data::Bytes(_)));
    }
}
