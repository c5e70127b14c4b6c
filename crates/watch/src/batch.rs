//! Events as they were published, shared by everybody who is told of them.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use etcdpb::Record;
use mvcc::Event;

/// Events of one span, as a publication or a look into history found them.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// What the header says.
    pub(crate) revision: i64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    events: Vec<Event>,
    /// Bytes of keys and values, those before the change included.
    bytes: usize,
    /// What goes over the wire, without and with the pairs as they were before;
    /// made by the first who needs it.
    encoded: [OnceLock<Bytes>; 2],
}

impl Batch {
    pub(crate) fn new(revision: i64, events: Vec<Event>) -> Self {
        let of = |r: &Record| r.key().as_bytes().len() + r.value().len();
        let bytes = |e: &Event| of(&e.record) + e.previous.as_ref().map_or(0, of);
        let bytes = events.iter().map(bytes).sum();
        Batch { revision, shared: Arc::new(Shared { events, bytes, encoded: Default::default() }) }
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.shared.events
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shared.bytes
    }
}

/// What a watcher is told of a batch. Never empty.
#[derive(Clone, Debug)]
pub struct Events {
    batch: Batch,
    /// What of it, unless all.
    some: Option<Vec<Event>>,
}

impl Events {
    /// The events of `batch` that are `wanted`, if there are any.
    pub(crate) fn wanted(batch: Batch, wanted: impl Fn(&Event) -> bool) -> Option<Self> {
        if batch.events().iter().all(&wanted) {
            return Some(Events { batch, some: None });
        }
        let some: Vec<_> = batch.events().iter().filter(|e| wanted(e)).cloned().collect();
        (!some.is_empty()).then_some(Events { batch, some: Some(some) })
    }

    /// The events, in order.
    pub fn as_slice(&self) -> &[Event] {
        self.some.as_deref().unwrap_or(self.batch.events())
    }

    /// Their encoding, which `encode` gives, with the pairs as they were before
    /// if `prev_kv`. It is the same for all watchers that are told the same, and
    /// made only once.
    pub fn encoded(&self, prev_kv: bool, encode: impl FnOnce(&[Event]) -> Bytes) -> Bytes {
        match &self.some {
            Some(some) => encode(some),
            None => {
                let shared = &self.batch.shared;
                let encode = || encode(&shared.events);
                shared.encoded[usize::from(prev_kv)].get_or_init(encode).clone()
            }
        }
    }
}
