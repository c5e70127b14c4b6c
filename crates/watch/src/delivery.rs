//! The messages for the client of a stream, and the interface to read past events.

use mvcc::{Event, Span};

use crate::batch::Events;

/// A message for the client of a stream. `revision` is the revision for the response
/// header.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The watch was created.
    Created {
        /// The watch ID.
        watch_id: i64,
        /// The header revision.
        revision: i64,
    },
    /// The watch was not created.
    Rejected {
        /// The reason, with the error text of etcd.
        reason: &'static str,
        /// The header revision.
        revision: i64,
    },
    /// The client has cancelled the watch.
    Canceled {
        /// The watch ID.
        watch_id: i64,
        /// The header revision.
        revision: i64,
    },
    /// The watch was cancelled because events that it has not received are compacted.
    Compacted {
        /// The watch ID.
        watch_id: i64,
        /// The compacted revision, the first that can be watched.
        compact_revision: i64,
        /// The header revision.
        revision: i64,
    },
    /// Events of a watch.
    Events {
        /// The watch ID.
        watch_id: i64,
        /// The header revision.
        revision: i64,
        /// The events, at least one.
        events: Events,
        /// Whether the client wants the previous key-value pairs.
        prev_kv: bool,
        /// Whether the message may be split.
        fragment: bool,
    },
    /// A progress notification: all events up to `revision` have been delivered to this
    /// watch or, if the ID is -1, to all watches of the stream.
    Progress {
        /// The watch ID, or -1.
        watch_id: i64,
        /// The revision up to which all events have been delivered.
        revision: i64,
    },
}

/// Reads past events for unsynced watchers.
pub trait HistoryReader {
    /// Appends events of `span` to `events`, from the position `from` up to the revision `to`,
    /// included. It visits a bounded part of the history, and returns the position after it.
    /// A read that starts within a revision ends with this revision at the latest.
    ///
    /// # Errors
    /// Fails if `from` is compacted.
    fn read(
        &self,
        span: &Span,
        from: HistoryPosition,
        to: i64,
        events: &mut Vec<Event>,
    ) -> Result<HistoryPosition, Compacted>;
}

/// A position in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryPosition {
    /// The revision of the next event.
    pub revision: i64,
    /// Number of events of this revision that are before the position.
    pub visited: usize,
}

impl HistoryPosition {
    /// The position before the first event of a revision.
    pub fn start_of(revision: i64) -> Self {
        HistoryPosition { revision, visited: 0 }
    }
}

/// The error of a read of compacted history.
#[derive(Clone, Copy, Debug)]
pub struct Compacted {
    /// The compacted revision, the oldest that can be read.
    pub revision: i64,
}
