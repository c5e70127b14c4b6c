//! Batches of published events. All watchers that receive a batch share it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use mvcc::Event;

use crate::memory::{Charge, QueueMemory};

/// Approximate memory of an event in bytes, in addition to keys and values: its records have
/// numbers, and reference counts.
const EVENT_OVERHEAD_BYTES: usize = 64;

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
    /// Memory in bytes, without the encodings. The records count as well, because after a
    /// compaction only the batch may keep them.
    bytes: usize,
    /// The encoded events: first without, then with previous pairs. The first watcher
    /// that needs an encoding creates it.
    encoded: [OnceLock<Bytes>; 2],
    /// Counts the memory, with the encodings.
    charge: Charge,
}

impl Batch {
    pub(crate) fn new(revision: i64, events: Vec<Event>, memory: &Arc<QueueMemory>) -> Self {
        let pairs: usize = events.iter().map(Event::pair_bytes).sum();
        let overhead = events.len() * EVENT_OVERHEAD_BYTES + events.capacity() * size_of::<Event>();
        let bytes = pairs + overhead;
        let charge = Charge::new(memory, bytes);
        let content = BatchContent { events, bytes, encoded: Default::default(), charge };
        Batch { revision, content: Arc::new(content) }
    }

    /// Returns all events of the batch.
    pub(crate) fn events(&self) -> &[Event] {
        &self.content.events
    }

    /// Returns the memory of the batch in bytes, without its encodings.
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

    /// Returns the approximate memory of the events in bytes.
    pub fn bytes(&self) -> usize {
        let event_bytes = |event: &Event| EVENT_OVERHEAD_BYTES + event.pair_bytes();
        match &self.selected {
            Some(selected) => selected.iter().map(event_bytes).sum(),
            None => self.batch.bytes(),
        }
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
                let encode = || {
                    let encoded = encode(&content.events);
                    content.charge.grow(encoded.len());
                    encoded
                };
                content.encoded[usize::from(prev_kv)].get_or_init(encode).clone()
            }
        }
    }
}
