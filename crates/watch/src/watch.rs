//! The parameters of a watch.

use mvcc::{Event, Span};

/// A watch as a client requests it.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The watch ID chosen by the client; 0 to let the stream choose one.
    pub id: i64,
    /// The watched keys.
    pub span: Span,
    /// The first revision to deliver; 0 for the next revision. Never negative.
    pub start_revision: i64,
    /// The kinds of events to leave out.
    pub filter: Filter,
    /// Whether events contain the previous key-value pair.
    pub prev_kv: bool,
    /// Whether the client wants progress notifications while there are no events.
    pub progress_notify: bool,
    /// Whether a delivery may be split to keep messages small.
    pub fragment: bool,
}

/// Leaves out events by their kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Leave out puts.
    pub no_put: bool,
    /// Leave out deletions.
    pub no_delete: bool,
}

/// The reason why a watch was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// The span cannot contain a key.
    EmptyRange,
    /// The stream already has a watch with this ID.
    DuplicateId,
}

impl CreateError {
    /// The error text of etcd.
    pub fn reason(self) -> &'static str {
        match self {
            CreateError::EmptyRange => "mvcc: watcher range is empty",
            CreateError::DuplicateId => "mvcc: duplicate watch ID provided on the WatchStream",
        }
    }
}

impl Watch {
    /// Whether the watch delivers `event`. The caller has checked that `event` is in its
    /// span.
    pub(crate) fn wants(&self, event: &Event) -> bool {
        event.revision() >= self.start_revision && self.filter.admits(event)
    }
}

impl Filter {
    fn admits(self, event: &Event) -> bool {
        if event.record.is_tombstone() { !self.no_delete } else { !self.no_put }
    }
}
