//! Encodes the events of watch responses: shared between watchers, in pieces while they are
//! sent, or split into several responses.

use bytes::Bytes;
use etcdpb::KeyValue;
use etcdpb::mvccpb;
use etcdpb::mvccpb::event::EventType;
use etcdpb::rpc::WatchResponse;
use grpc::Payload;
use prost::Message;
use watch::Events;

/// Number of the field `events` in `WatchResponse`.
const EVENTS_FIELD: u32 = 11;
/// Events with more bytes than this are encoded while they are sent. Smaller ones are encoded
/// once for all watchers.
const MAX_SHARED_BYTES: usize = 1 << 20;
/// A piece ends with the first event that brings it to at least this size in bytes.
const MIN_PIECE_BYTES: usize = 128 << 10;

/// Encodes a response. `head` has all fields except the events.
pub(super) fn encode(head: &WatchResponse, events: Events, prev_kv: bool) -> Payload {
    if events.bytes() <= MAX_SHARED_BYTES {
        let encoded = events.encoded(prev_kv, |events| encode_events(events, prev_kv));
        return Payload::concatenated(head, encoded);
    }
    let encoded_events =
        events.as_slice().iter().map(|event| event_len(&wire_event(event, prev_kv)));
    let len = head.encoded_len() + encoded_events.sum::<usize>();
    let head = Some(head.encode_to_vec().into());
    // After a compaction only the response may have the records.
    Payload::in_pieces(len, len, Pieces { head, events, next: 0, prev_kv })
}

/// The pieces of an encoded response.
struct Pieces {
    /// The fields before the events.
    head: Option<Bytes>,
    events: Events,
    /// Number of events that were encoded.
    next: usize,
    prev_kv: bool,
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        let mut piece = Vec::new();
        while piece.len() < MIN_PIECE_BYTES
            && let Some(event) = self.events.as_slice().get(self.next)
        {
            encode_event(event, self.prev_kv, &mut piece);
            self.next += 1;
        }
        (!piece.is_empty()).then(|| piece.into())
    }
}

/// The parts of a response that is split.
pub(super) struct Fragments {
    /// All fields except the events.
    head: WatchResponse,
    events: Events,
    /// Number of events that were returned.
    next: usize,
    prev_kv: bool,
    /// A part has fewer bytes than this, unless it has only one event.
    limit: usize,
}

impl Fragments {
    pub(super) fn new(head: WatchResponse, events: Events, prev_kv: bool, limit: usize) -> Self {
        Fragments { head, events, next: 0, prev_kv, limit }
    }
}

impl Iterator for Fragments {
    type Item = WatchResponse;

    fn next(&mut self) -> Option<WatchResponse> {
        let rest = self.events.as_slice().get(self.next..).filter(|rest| !rest.is_empty())?;
        let mut part = WatchResponse { fragment: true, ..self.head.clone() };
        let mut bytes = part.encoded_len();
        for event in rest {
            let event = wire_event(event, self.prev_kv);
            bytes += event_len(&event);
            if !part.events.is_empty() && bytes >= self.limit {
                break;
            }
            part.events.push(event);
        }
        self.next += part.events.len();
        part.fragment = part.events.len() < rest.len();
        Some(part)
    }
}

/// Encodes the field `events` of a response. It is appended to the other fields.
fn encode_events(events: &[mvcc::Event], prev_kv: bool) -> Bytes {
    let mut bytes = Vec::new();
    events.iter().for_each(|event| encode_event(event, prev_kv, &mut bytes));
    bytes.into()
}

fn encode_event(event: &mvcc::Event, prev_kv: bool, bytes: &mut Vec<u8>) {
    prost::encoding::message::encode(EVENTS_FIELD, &wire_event(event, prev_kv), bytes);
}

/// Returns the encoded size of an event in a response.
fn event_len(event: &mvccpb::Event) -> usize {
    prost::encoding::message::encoded_len(EVENTS_FIELD, event)
}

fn wire_event(event: &mvcc::Event, prev_kv: bool) -> mvccpb::Event {
    let deleted = event.record.is_tombstone();
    // An event that creates a key has no previous value, even if the same transaction
    // deleted the key before.
    let previous = event.previous.as_ref().filter(|_| prev_kv && !event.record.is_create());
    mvccpb::Event {
        r#type: if deleted { EventType::Delete } else { EventType::Put } as i32,
        kv: Some(KeyValue::from(event.record.clone())),
        prev_kv: previous.cloned().map(KeyValue::from),
    }
}

#[cfg(test)]
mod tests {
    use etcdpb::Record;
    use mvcc::Span;
    use watch::{Compacted, Delivery, HistoryPosition, HistoryReader, Hub, Watch, WatchStream};

    use super::*;

    struct NoHistory;

    impl HistoryReader for NoHistory {
        fn read(
            &self,
            _: &Span,
            _: HistoryPosition,
            to: i64,
            _: &mut Vec<mvcc::Event>,
        ) -> Result<HistoryPosition, Compacted> {
            Ok(HistoryPosition::start_of(to + 1))
        }
    }

    /// Events with values of `bytes` bytes.
    fn events(count: i64, bytes: usize) -> Events {
        let record = |revision| Record::put(b"key", &vec![b'v'; bytes], 1, revision, revision, 0);
        let event = |revision| mvcc::Event {
            record: record(revision),
            previous: (revision > 2).then(|| record(revision - 1)),
        };
        let hub = Hub::new(1, 100);
        let stream = WatchStream::open(&hub, || {});
        stream.create(Watch {
            id: 0,
            span: Span::new(b"key", b""),
            start_revision: 0,
            filter: Default::default(),
            prev_kv: true,
            progress_notify: false,
            fragment: false,
        });
        hub.publish(&(2..count + 2).map(event).collect::<Vec<_>>(), count + 1);
        let deliveries = std::iter::from_fn(|| stream.next_delivery(&NoHistory));
        let events = deliveries.filter_map(|delivery| match delivery {
            Delivery::Events { events, .. } => Some(events),
            _ => None,
        });
        events.last().expect("the events were delivered")
    }

    fn whole(events: &Events, prev_kv: bool) -> WatchResponse {
        let events = events.as_slice().iter().map(|event| wire_event(event, prev_kv)).collect();
        WatchResponse { watch_id: 7, events, ..Default::default() }
    }

    #[test]
    fn large_responses_are_encoded_in_pieces() {
        let head = WatchResponse { watch_id: 7, ..Default::default() };
        for (count, bytes) in [(1, 10), (50, 100), (50, 50_000), (2, 2 << 20)] {
            for prev_kv in [false, true] {
                let events = events(count, bytes);
                let expected = whole(&events, prev_kv).encode_to_vec();
                assert_eq!(
                    [head.encode_to_vec(), encode_events(events.as_slice(), prev_kv).to_vec()]
                        .concat(),
                    expected
                );
                let payload = encode(&head, events.clone(), prev_kv);
                assert_eq!(payload.len(), 5 + expected.len());
                let first = Some(head.encode_to_vec().into());
                let pieces: Vec<_> = Pieces { head: first, events, next: 0, prev_kv }.collect();
                assert_eq!(pieces.concat(), expected);
            }
        }
    }

    #[test]
    fn fragments_have_all_events_in_small_parts() {
        let events = events(50, 100);
        let head = WatchResponse { watch_id: 7, ..Default::default() };
        let parts: Vec<_> = Fragments::new(head.clone(), events.clone(), false, 1000).collect();
        assert!(parts.len() > 4 && parts.iter().all(|part| part.encoded_len() < 1000));
        assert!(parts.iter().all(|part| part.watch_id == 7));
        let last = parts.len() - 1;
        assert!(parts.iter().enumerate().all(|(i, part)| part.fragment == (i < last)));
        let joined: Vec<_> = parts.into_iter().flat_map(|part| part.events).collect();
        assert_eq!(joined, whole(&events, false).events);
        let single: Vec<_> = Fragments::new(head, events, false, 10).collect();
        assert!(single.len() == 50 && single.iter().all(|part| part.events.len() == 1));
    }
}
