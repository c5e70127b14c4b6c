//! Events of a watch in `application/vnd.kubernetes.protobuf;stream=watch`.

use prost::Message;

use super::envelope::decode;
use super::meta::ObjectMeta;
use super::nested::nested;
use super::status::Status;

/// Bytes of an event. Objects in the store have at most 1.5 MiB.
const MAX_EVENT: usize = 4 << 20;
/// A larger buffer is not kept for the next event.
const MAX_KEPT: usize = 4 << 10;
/// Bytes of the length before an event.
const LENGTH_BYTES: usize = 4;
/// The annotation of the bookmark that ends the events with which a watch begins.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// The numbers of the fields `type` and `object` of an event, and `raw` of its object.
const TYPE: u32 = 1;
const OBJECT: u32 = 2;
const RAW: u32 = 1;

/// What an event says about its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object was created, or is selected now.
    Added,
    /// The object was changed.
    Modified,
    /// The object was deleted, or is not selected any more.
    Deleted,
}

/// An event of a watch.
#[derive(Debug)]
pub enum WatchedEvent<'a> {
    /// A change of an object, which is encoded.
    Object(Change, &'a [u8]),
    /// Everything up to a version has been sent.
    Bookmark {
        /// The version.
        version: u64,
        /// Whether the state with which the watch began is complete.
        ends_initial_events: bool,
    },
    /// The watch failed with this status code.
    Failed(i32),
}

/// The server sent something that is no event.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

/// Finds the events in the parts of a body.
#[derive(Default)]
pub struct EventSplitter {
    /// The first part of an event whose rest has not arrived.
    incomplete: Vec<u8>,
}

/// An object of which only the metadata is read.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

impl EventSplitter {
    /// Passes every event that is complete with these bytes to `handle`.
    ///
    /// # Errors
    /// If the bytes are no events.
    pub fn split(
        &mut self,
        bytes: &[u8],
        handle: &mut dyn FnMut(WatchedEvent<'_>),
    ) -> Result<(), Malformed> {
        if self.incomplete.is_empty() {
            let used = handle_all(bytes, handle)?;
            self.incomplete.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.incomplete);
        all.extend_from_slice(bytes);
        let used = handle_all(&all, handle)?;
        all.drain(..used);
        if !all.is_empty() || all.capacity() <= MAX_KEPT {
            self.incomplete = all;
        }
        Ok(())
    }
}

/// Handles the events at the start of `bytes`. Returns how many bytes they have.
fn handle_all(bytes: &[u8], handle: &mut dyn FnMut(WatchedEvent<'_>)) -> Result<usize, Malformed> {
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk::<LENGTH_BYTES>() {
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_EVENT {
            return Err(Malformed);
        }
        let Some((event, after)) = after.split_at_checked(length) else { break };
        let part = |message, number| nested(message, number).map_err(|_| Malformed);
        handle(parse(part(event, TYPE)?, part(part(event, OBJECT)?, RAW)?)?);
        rest = after;
    }
    Ok(bytes.len() - rest.len())
}

fn parse<'a>(name: &[u8], object: &'a [u8]) -> Result<WatchedEvent<'a>, Malformed> {
    Ok(match name {
        b"ADDED" => WatchedEvent::Object(Change::Added, object),
        b"MODIFIED" => WatchedEvent::Object(Change::Modified, object),
        b"DELETED" => WatchedEvent::Object(Change::Deleted, object),
        b"BOOKMARK" => {
            let metadata =
                decode::<Metadata>(object).and_then(|it| it.metadata).ok_or(Malformed)?;
            let version = metadata.resource_version.parse().map_err(|_| Malformed)?;
            let ends_initial_events = metadata.annotations.contains_key(INITIAL_EVENTS_END);
            WatchedEvent::Bookmark { version, ends_initial_events }
        }
        b"ERROR" => WatchedEvent::Failed(decode::<Status>(object).unwrap_or_default().code),
        _ => return Err(Malformed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::encode;

    #[derive(Clone, PartialEq, Message)]
    struct RawEvent {
        #[prost(string, tag = "1")]
        r#type: String,
        #[prost(message, optional, tag = "2")]
        object: Option<RawExtension>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct RawExtension {
        #[prost(bytes = "vec", tag = "1")]
        raw: Vec<u8>,
    }

    fn event(name: &str, object: Vec<u8>) -> Vec<u8> {
        let object = Some(RawExtension { raw: object });
        let event = RawEvent { r#type: name.into(), object }.encode_to_vec();
        [&(event.len() as u32).to_be_bytes()[..], &event].concat()
    }

    fn bookmark(version: &str, annotation: Option<&str>) -> Vec<u8> {
        let annotations = annotation.map(|name| (name.to_owned(), "true".to_owned()));
        let metadata = ObjectMeta {
            resource_version: version.into(),
            annotations: annotations.into_iter().collect(),
            ..ObjectMeta::default()
        };
        let bookmark = Metadata { metadata: Some(metadata) };
        event("BOOKMARK", encode("v1", "Pod", &bookmark))
    }

    #[test]
    fn events_are_found_in_any_split() {
        let status = encode("v1", "Status", &Status { message: String::new(), code: 410 });
        let bytes = [
            event("ADDED", b"first".to_vec()),
            event("DELETED", vec![7; 5000]),
            bookmark("12", None),
            bookmark("34", Some(INITIAL_EVENTS_END)),
            event("ERROR", status),
        ]
        .concat();
        for piece in [1, 3, 1000, bytes.len()] {
            let (mut splitter, mut seen) = (EventSplitter::default(), Vec::new());
            for part in bytes.chunks(piece) {
                let mut note = |event: WatchedEvent<'_>| seen.push(format!("{event:?}"));
                splitter.split(part, &mut note).unwrap();
            }
            assert_eq!(seen.len(), 5, "{seen:?}");
            assert!(seen[0].starts_with("Object(Added"), "{seen:?}");
            assert!(seen[1].starts_with("Object(Deleted"));
            assert_eq!(seen[2], "Bookmark { version: 12, ends_initial_events: false }");
            assert_eq!(seen[3], "Bookmark { version: 34, ends_initial_events: true }");
            assert_eq!(seen[4], "Failed(410)");
            assert!(splitter.incomplete.is_empty());
        }
    }

    #[test]
    fn anything_else_is_malformed() {
        for bytes in [&[0xff; 8][..], &event("OTHER", Vec::new()), &event("BOOKMARK", Vec::new())] {
            assert_eq!(EventSplitter::default().split(bytes, &mut |_| {}), Err(Malformed));
        }
    }
}
