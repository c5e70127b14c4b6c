//! The messages for a client, and the source of past events.

use mvcc::{Event, Span};

use crate::batch::Events;

/// The next message for the client of a stream. `revision` is the revision for the
/// response header.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The watch was created.
    Created {
        /// The watch.
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
    /// The watch was cancelled by the client.
    Canceled {
        /// The watch.
        watch_id: i64,
        /// The header revision.
        revision: i64,
    },
    /// The watch was cancelled because events that it has not received are
    /// compacted.
    Compacted {
        /// The watch.
        watch_id: i64,
        /// The first revision that can still be watched.
        compact_revision: i64,
        /// The header revision.
        revision: i64,
    },
    /// Events of a watch.
    Events {
        /// The watch.
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
    /// Everything up to `revision` has been delivered to this watch or, if the ID is
    /// -1, to all watches of the stream.
    Progress {
        /// The watch, or -1.
        watch_id: i64,
        /// The revision up to which everything has been delivered.
        revision: i64,
    },
}

/// The source of past events for unsynced watchers.
pub trait HistoryReader {
    /// Appends the events of `span` with revisions from `from` to `to`, both
    /// included, to `events`. Stops at the end of a revision after having visited
    /// `limit` events. Returns the first revision that was not visited.
    ///
    /// # Errors
    /// Fails if `from` is compacted.
    fn read(
        &self,
        span: &Span,
        from: i64,
        to: i64,
        limit: usize,
        events: &mut Vec<Event>,
    ) -> Result<i64, Compacted>;
}

/// The error for history that is compacted.
#[derive(Clone, Copy, Debug)]
pub struct Compacted {
    /// The first revision that can still be read.
    pub revision: i64,
}
