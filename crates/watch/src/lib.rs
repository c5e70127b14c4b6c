//! Telling watchers what happened.
//!
//! The pipeline publishes each batch of events once, after readers can see it.
//! The [`Hub`] finds the watchers concerned and leaves the events, shared and
//! not copied, in the queue of each one's [`Stream`]. Whoever owns the stream
//! takes them out at its own pace.
//!
//! # Invariants
//! - A stream's queue is the only way to its client: the answer to a creation,
//!   events, progress and cancellation come out in the order in which they
//!   became true. So a progress note for revision r follows every event up to r.
//! - A watcher gets each event of its span exactly once, in order, and all
//!   events of a revision in one delivery.
//! - The queue is bounded, in events ([`QUEUE_EVENTS`]) and in bytes. A watcher
//!   that does not fit falls
//!   *behind*: it gets nothing more from the hub, and reads history when its
//!   stream has been emptied. If history was compacted meanwhile it is told so
//!   and ends. A slow watcher never holds up a write.
//!
//! # Locks
//! Hub before stream. Neither is held while history is read, and whoever holds
//! the store's lock may take them but not the other way round.

mod batch;
mod hub;
mod span_tree;
mod stream;

pub use batch::Events;
pub use hub::Hub;
pub use stream::{Delivery, Filter, History, HistoryError, QUEUE_EVENTS, Refusal, Stream, Watch};
