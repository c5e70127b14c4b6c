//! Batches of published events. All watchers that receive a batch share it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use etcdpb::Record;
use mvcc::Event;

/// The events of one span from one publication or from one read of history.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// The revision for the response header.
    pub(crate) revision: i64,
    content: Arc<BatchContent>,
}

#[derive(Debug)]
struct BatchContent {
    events: Vec<Event>,
    /// Size of keys and values in bytes, including those of the previous pairs.
    bytes: usize,
    /// The encoded events: first without, then with previous pairs. The first watcher
    /// that needs an encoding creates it.
    encoded: [OnceLock<Bytes>; 2],
}

impl Batch {
    pub(crate) fn new(revision: i64, events: Vec<Event>) -> Self {
        let record_bytes = |r: &Record| r.key().as_bytes().len() + r.value().len();
        let event_bytes =
            |e: &Event| record_bytes(&e.record) + e.previous.as_ref().map_or(0, record_bytes);
        let bytes = events.iter().map(event_bytes).sum();
        let content = BatchContent { events, bytes, encoded: Default::default() };
        Batch { revision, content: Arc::new(content) }
    }

    /// Returns all events of the batch.
    pub(crate) fn events(&self) -> &[Event] {
        &self.content.events
    }

    /// Returns the size of keys and values in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.content.bytes
    }
}

/// The events of a batch that one watcher receives; at least one.
#[derive(Clone, Debug)]
pub struct Events {
    batch: Batch,
    /// The selected events, unless the watcher receives all events of the batch.
    selected: Option<Vec<Event>>,
}

impl Events {
    /// Returns the events of `batch` for which `wanted` is true; `None` if there are
    /// none.
    pub(crate) fn select(batch: Batch, wanted: impl Fn(&Event) -> bool) -> Option<Self> {
        if batch.events().iter().all(&wanted) {
            return Some(Events { batch, selected: None });
        }
        let selected: Vec<_> = batch.events().iter().filter(|e| wanted(e)).cloned().collect();
        (!selected.is_empty()).then_some(Events { batch, selected: Some(selected) })
    }

    /// Returns the events, in order.
    pub fn as_slice(&self) -> &[Event] {
        self.selected.as_deref().unwrap_or(self.batch.events())
    }

    /// Returns the events as `encode` encodes them, with previous pairs if `prev_kv` is
    /// set. All watchers that receive the whole batch share one encoding, so the result
    /// of `encode` must depend only on the events and on `prev_kv`.
    pub fn encoded(&self, prev_kv: bool, encode: impl FnOnce(&[Event]) -> Bytes) -> Bytes {
        match &self.selected {
            Some(selected) => encode(selected),
            None => {
                let content = &self.batch.content;
                let encode = || encode(&content.events);
                content.encoded[usize::from(prev_kv)].get_or_init(encode).clone()
            }
        }
    }
}
