//! The parameters of a watch.

use mvcc::{Event, Span};

/// Approximate memory of a watch in bytes, without its keys: its entries in the stream and in
/// the hub.
const WATCH_BYTES: usize = 896;

/// A watch as a client requests it.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The watch ID; 0 if the stream shall choose one.
    pub id: i64,
    /// The watched keys.
    pub span: Span,
    /// The first revision to deliver; 0 for the revision after the published one. Never
    /// negative.
    pub start_revision: i64,
    /// The kinds of events to omit.
    pub filter: Filter,
    /// Whether events contain the previous key-value pair.
    pub prev_kv: bool,
    /// Whether the client wants progress notifications while there are no events.
    pub progress_notify: bool,
    /// Whether the events of a delivery may be split into several messages.
    pub fragment: bool,
}

/// Omits events by their kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Omit puts.
    pub no_put: bool,
    /// Omit deletions.
    pub no_delete: bool,
}

/// The error of a watch that cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// The span cannot contain a key.
    EmptyRange,
    /// The stream already has a watch with this ID.
    DuplicateId,
}

impl CreateError {
    /// Returns the error text of etcd.
    pub fn reason(self) -> &'static str {
        match self {
            CreateError::EmptyRange => "mvcc: watcher range is empty",
            CreateError::DuplicateId => "mvcc: duplicate watch ID provided on the WatchStream",
        }
    }
}

impl Watch {
    /// Returns the approximate memory of the watch in bytes.
    pub fn memory_bytes(&self) -> usize {
        WATCH_BYTES + self.span.key_bytes()
    }

    /// Whether the watch delivers `event`, which must be in its span.
    pub(crate) fn wants(&self, event: &Event) -> bool {
        event.revision() >= self.start_revision && self.filter.admits(event)
    }
}

impl Filter {
    /// Whether the filter does not omit `event`.
    fn admits(self, event: &Event) -> bool {
        if event.record.is_tombstone() { !self.no_delete } else { !self.no_put }
    }
}
