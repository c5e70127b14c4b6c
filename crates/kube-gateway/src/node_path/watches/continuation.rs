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
use super::cache::{INITIAL_EVENTS_END, Start};
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
    /// The version at which the watch begins; `None` if it begins with initial events.
    from: Option<u64>,
    progress: Progress,
}

/// How far the answer is known.
enum Progress {
    /// The head has not arrived.
    NoHead,
    /// These bytes of an event have arrived, and events up to this version, if the initial ones are
    /// complete.
    Events(BytesMut, Option<u64>),
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
                (Some(version), timeout)
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
        let Progress::Events(buffer, version) = &mut self.progress else { return };
        buffer.extend_from_slice(bytes);
        loop {
            let next = match take(buffer) {
                Ok(None) => return,
                Ok(Some(received)) => advance(&self.read, *version, received),
                Err(_) => None,
            };
            match next {
                Some(next) => *version = next,
                None => {
                    self.progress = Progress::Lost;
                    return;
                }
            }
        }
    }

    /// Returns the version after which the cache can go on, if the answer is between two events, and all
    /// initial ones were sent.
    pub fn version(&self) -> Option<u64> {
        match &self.progress {
            Progress::Events(buffer, version) if buffer.is_empty() => *version,
            _ => None,
        }
    }

    /// Whether the cache can never go on.
    pub fn is_lost(&self) -> bool {
        matches!(self.progress, Progress::Lost)
    }
}

/// Returns the version after an event; `None` if the event is not the expected one.
fn advance(read: &Read, version: Option<u64>, received: Received) -> Option<Option<u64>> {
    let Received { event, object } = received;
    let is_initial = version.is_none();
    match event {
        EventType::Added if is_initial => Some(None),
        EventType::Error => None,
        EventType::Bookmark | EventType::Added | EventType::Modified | EventType::Deleted => {
            let object = Object::parse(read.kind, object)?;
            let is_end = event == EventType::Bookmark && object.mentions(INITIAL_EVENTS_END);
            (is_end == is_initial).then(|| Some(version.unwrap_or(0).max(object.version())))
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
            (frame(EventType::Bookmark, 9, MARK), Some(9)),
            (frame(EventType::Modified, 12, ""), Some(12)),
            (frame(EventType::Bookmark, 15, ""), Some(15)),
        ];
        for (bytes, version) in frames {
            for byte in &bytes[..bytes.len() - 1] {
                it.continue_answer(&[*byte]);
                assert_eq!(it.version(), None);
            }
            it.continue_answer(&bytes[bytes.len() - 1..]);
            assert_eq!(it.version(), version);
        }
        it.continue_answer(&frame(EventType::Error, 1, ""));
        assert!(it.is_lost() && it.version().is_none());
    }

    #[test]
    fn a_watch_from_a_version_goes_on_after_any_event() {
        let start = Start::After(7);
        let verb = Verb::Watch { start, bookmarks: true, timeout: None };
        let protobuf = ("content-type", "application/vnd.kubernetes.protobuf;stream=watch");
        let mut it = continuation_of(verb, &[protobuf]);
        assert_eq!(it.version(), Some(7));
        let added = frame(EventType::Added, 9, "");
        it.continue_answer(&added[..7]);
        assert_eq!(it.version(), None);
        it.continue_answer(&added[7..]);
        assert_eq!(it.version(), Some(9));
        it.continue_answer(&frame(EventType::Bookmark, 12, ""));
        assert_eq!(it.version(), Some(12));
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
