//! A watch that an API server begins, and with which the cache goes on.
//!
//! A kubelet begins with the state of now, which only the store knows. The bookmark after the initial
//! events says at which version the cache can go on. A watch that is forwarded because its cache does
//! not serve begins at a known version: the cache goes on after one of its events or bookmarks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::StatusCode;
use http2::Fields;

use super::WATCH_TYPE;
use super::cache::Start;
use super::content::INITIAL_EVENTS_END;
use super::frame::EventType;
use super::object::Object;
use super::recognize::{Read, Verb};
use super::source::{Received, take};
use crate::identity::IdentityFields;

/// A watch that an API server has begun or will begin.
pub struct Continuation {
    /// Who has sent the request.
    pub identity: Arc<IdentityFields>,
    /// The request.
    pub read: Read,
    /// When it was sent.
    pub started: Instant,
    /// How long the watch lasts, if the client says so.
    pub timeout: Option<Duration>,
    /// Where the watch begins; `None` if it begins with initial events.
    from: Option<Position>,
    progress: Progress,
}

/// Up to where a client has got a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The version.
    pub version: u64,
    /// How many events of this version it has got. There may be more of them: the store can have several changes of one
    /// version. 0: everything up to the version, as a bookmark or the client says.
    pub events: usize,
}

/// How far the answer is known.
enum Progress {
    /// The head has not arrived.
    NoHead,
    /// These bytes of an event have arrived, and everything up to this position, if the initial events are complete.
    Events(BytesMut, Option<Position>),
    /// The answer is not as expected.
    Lost,
}

impl Continuation {
    /// A request that is to be sent now; `None` if nothing says at which version a cache can go on.
    pub fn new(
        identity: &Arc<IdentityFields>,
        read: &Read,
        started: Instant,
    ) -> Option<Continuation> {
        let (from, timeout) = match read.verb {
            Verb::WatchList(timeout) => (None, timeout),
            Verb::Watch { start: Start::After(version), bookmarks: true, timeout } => {
                (Some(Position { version, events: 0 }), timeout)
            }
            Verb::Watch { start: Start::State { marked: true, .. }, timeout, .. } => {
                (None, timeout)
            }
            Verb::List(_) | Verb::Watch { .. } => return None,
        };
        let (identity, read) = (identity.clone(), read.clone());
        Some(Continuation { identity, read, started, timeout, from, progress: Progress::NoHead })
    }

    /// Notes the head of the answer.
    pub fn begin_answer(&mut self, status: StatusCode, fields: &Fields) {
        let is_watch = fields.get(b"content-type") == Some(WATCH_TYPE);
        let is_plain = fields.get(b"content-encoding").is_none();
        self.progress = match status == StatusCode::OK && is_watch && is_plain {
            true => Progress::Events(BytesMut::new(), self.from),
            false => Progress::Lost,
        };
    }

    /// Notes further bytes of the answer.
    pub fn continue_answer(&mut self, bytes: &[u8]) {
        let Progress::Events(buffer, position) = &mut self.progress else { return };
        buffer.extend_from_slice(bytes);
        loop {
            let next = match take(buffer) {
                Ok(None) => return,
                Ok(Some(received)) => advance(&self.read, *position, received),
                Err(_) => None,
            };
            match next {
                Some(next) => *position = next,
                None => {
                    self.progress = Progress::Lost;
                    return;
                }
            }
        }
    }

    /// Returns where the cache can go on, if the answer is between two events, and all initial ones were sent.
    pub fn position(&self) -> Option<Position> {
        match &self.progress {
            Progress::Events(buffer, position) if buffer.is_empty() => *position,
            _ => None,
        }
    }

    /// Whether the cache can never go on.
    pub fn is_lost(&self) -> bool {
        matches!(self.progress, Progress::Lost)
    }
}

/// Returns the position after an event; `None` if the event is not the expected one.
fn advance(
    read: &Read,
    position: Option<Position>,
    received: Received,
) -> Option<Option<Position>> {
    let Received { event, object } = received;
    let is_initial = position.is_none();
    match event {
        EventType::Added if is_initial => Some(None),
        EventType::Error => None,
        EventType::Bookmark | EventType::Added | EventType::Modified | EventType::Deleted => {
            let object = Object::parse(read.kind, object)?;
            let is_bookmark = event == EventType::Bookmark;
            let is_end = is_bookmark && object.mentions(INITIAL_EVENTS_END);
            let last = position.unwrap_or(Position { version: 0, events: 0 });
            let version = last.version.max(object.version());
            // A bookmark can be between two events of its version.
            let before = if version == last.version { last.events } else { 0 };
            let events = before + usize::from(!is_bookmark);
            (is_end == is_initial).then_some(Some(Position { version, events }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{FieldNames, User};
    use crate::node_path::watches::frame::Frame;
    use crate::node_path::watches::kind::Kind;
    use crate::node_path::watches::object::sample::pod;
    use crate::node_path::watches::selector::Selector;

    fn somebody() -> Arc<IdentityFields> {
        let (name, uid, credential_id) = ("a".into(), None, "X509SHA256=00".into());
        let user = User { name, uid, groups: Vec::new(), credential_id };
        FieldNames::default().encode(&user).unwrap().into()
    }

    const MARK: &str = "k8s.io/initial-events-end";

    /// After so many events of a version.
    fn after(version: u64, events: usize) -> Option<Position> {
        Some(Position { version, events })
    }

    fn continuation(fields: &[(&str, &str)]) -> Continuation {
        continuation_of(Verb::WatchList(None), fields)
    }

    fn continuation_of(verb: Verb, fields: &[(&str, &str)]) -> Continuation {
        let selector = Selector::Node((*b"n").into());
        let read = Read { kind: Kind::Pods, selector, verb };
        let mut continuation = Continuation::new(&somebody(), &read, Instant::now()).unwrap();
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        continuation.begin_answer(StatusCode::OK, &fields.collect());
        continuation
    }

    fn frame(event: EventType, version: u64, text: &str) -> Vec<u8> {
        let frame = Frame::new(event, pod("ns", "p", "n", version, text));
        [&frame.head[..], &frame.object].concat()
    }

    #[test]
    fn it_goes_on_after_the_bookmark_and_between_two_events() {
        let mut it =
            continuation(&[("content-type", "application/vnd.kubernetes.protobuf;stream=watch")]);
        let frames = [
            (frame(EventType::Added, 5, ""), None),
            (frame(EventType::Added, 3, ""), None),
            (frame(EventType::Bookmark, 9, MARK), after(9, 0)),
            (frame(EventType::Modified, 12, ""), after(12, 1)),
            (frame(EventType::Modified, 12, ""), after(12, 2)),
            (frame(EventType::Bookmark, 12, ""), after(12, 2)),
            (frame(EventType::Modified, 13, ""), after(13, 1)),
            (frame(EventType::Bookmark, 15, ""), after(15, 0)),
        ];
        for (bytes, position) in frames {
            for byte in &bytes[..bytes.len() - 1] {
                it.continue_answer(&[*byte]);
                assert_eq!(it.position(), None);
            }
            it.continue_answer(&bytes[bytes.len() - 1..]);
            assert_eq!(it.position(), position);
        }
        it.continue_answer(&frame(EventType::Error, 1, ""));
        assert!(it.is_lost() && it.position().is_none());
    }

    #[test]
    fn a_watch_from_a_version_goes_on_after_any_event() {
        let start = Start::After(7);
        let verb = Verb::Watch { start, bookmarks: true, timeout: None };
        let protobuf = ("content-type", "application/vnd.kubernetes.protobuf;stream=watch");
        let mut it = continuation_of(verb, &[protobuf]);
        assert_eq!(it.position(), after(7, 0));
        let added = frame(EventType::Added, 9, "");
        it.continue_answer(&added[..7]);
        assert_eq!(it.position(), None);
        it.continue_answer(&added[7..]);
        assert_eq!(it.position(), after(9, 1));
        it.continue_answer(&frame(EventType::Bookmark, 12, ""));
        assert_eq!(it.position(), after(12, 0));
        it.continue_answer(&frame(EventType::Bookmark, 12, MARK));
        assert!(it.is_lost());
    }

    #[test]
    fn other_requests_are_forwarded_to_their_end() {
        for verb in [
            Verb::List(7),
            Verb::Watch { start: Start::After(7), bookmarks: false, timeout: None },
            Verb::Watch { start: Start::Now, bookmarks: true, timeout: None },
        ] {
            let selector = Selector::Node((*b"n").into());
            let read = Read { kind: Kind::Pods, selector, verb };
            assert!(Continuation::new(&somebody(), &read, Instant::now()).is_none());
        }
    }

    #[test]
    fn other_answers_are_lost() {
        let protobuf = ("content-type", "application/vnd.kubernetes.protobuf;stream=watch");
        assert!(continuation(&[("content-type", "application/json")]).is_lost());
        assert!(continuation(&[protobuf, ("content-encoding", "gzip")]).is_lost());
        for bytes in [
            frame(EventType::Modified, 5, ""),
            frame(EventType::Bookmark, 5, ""),
            b"\xff\xff\xff\xff".to_vec(),
        ] {
            let mut it = continuation(&[protobuf]);
            it.continue_answer(&bytes);
            assert!(it.is_lost());
        }
    }
}
