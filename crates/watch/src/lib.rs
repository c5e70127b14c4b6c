//! Delivery of events to watchers.
//!
//! The pipeline publishes each batch of events once, after readers can see it.
//! The [`Hub`] finds the watchers of the changed keys and puts the events, shared
//! and not copied, into the queue of each watcher's [`WatchStream`]. The owner of
//! the stream takes deliveries out at its own pace.
//!
//! ```text
//! Hub::publish ──▶ subscriptions by span ──▶ mailbox (bounded queue) ──▶ WatchStream::take
//!                                                 history ──▶ (unsynced watchers) ──▲
//! ```
//!
//! # Reading order
//! `watch` and `delivery` are the interface types. `hub` and `span_tree` find the
//! watchers of an event. `mailbox` is the queue of a stream and the state of its
//! watchers. `stream` creates, cancels and synchronises watchers.
//!
//! # Invariants
//! - A stream's queue is the only path to its client. Creation responses, events,
//!   progress notifications and cancellations leave the queue in the order in
//!   which they happened, so a progress notification for revision r follows every
//!   event up to r.
//! - A watcher receives each event of its span exactly once and in order, and all
//!   events of a revision in one delivery.
//! - The queue is bounded in events ([`QUEUE_EVENTS`]) and in bytes. A watcher whose
//!   events do not fit becomes *unsynced*: the hub delivers nothing more to it, and it
//!   reads history after its queue has been emptied. If that history has been compacted,
//!   the watcher is cancelled with the compacted revision. A slow watcher never delays a
//!   write.
//!
//! # Lock order
//! The hub's lock is taken before a mailbox's lock. Neither is held while history
//! is read. The store's lock may be held when these locks are taken, but must not
//! be taken under them.

#![warn(missing_docs)]

mod batch;
mod delivery;
mod hub;
mod mailbox;
mod span_tree;
mod stream;
mod watch;

pub use batch::Events;
pub use delivery::{Compacted, Delivery, HistoryReader};
pub use hub::Hub;
pub use mailbox::QUEUE_EVENTS;
pub use stream::WatchStream;
pub use watch::{CreateError, Filter, Watch};
