//! Watchers, and the delivery of published events to them.
//!
//! [`Hub::publish`] puts the events of a publication into the queues of the streams whose
//! watchers want them. A [`WatchStream`] takes deliveries out. A watcher whose events have no
//! room is *unsynced*: its stream reads history until it has caught up.
//!
//! # Invariants
//! - A watcher receives each of its events once and in order. A delivery contains whole
//!   revisions.
//! - A progress notification is never sent before the events that it covers.
//! - The events that a publication queues, and the memory of all queues, are bounded, whatever
//!   clients do.
//!
//! # Not bounded
//! A publication that is too large to be queued examines every watched range while the hub is
//! locked: about 0.17 µs for each range. Meanwhile no watch is created, and writes wait.
//!
//! # Reading order
//! `hub` (publication), `mailbox` (queues), `memory` (their budget), `stream` (one client),
//! `history_read`, `batch`; `span_tree` and `sorted_keys` find the watchers of keys.
//!
//! # Locks
//! A thread locks the hub before a mailbox. It holds neither lock while it reads history.
//! A thread that has locked the store may lock the hub or a mailbox. A thread that has
//! locked one of these must not lock the store.

#![warn(missing_docs)]

mod batch;
mod delivery;
mod history_read;
mod hub;
mod mailbox;
mod memory;
mod sorted_keys;
mod span_tree;
mod stream;
mod watch;

pub use batch::Events;
pub use delivery::{Compacted, Delivery, HistoryPosition, HistoryReader};
pub use hub::Hub;
pub use mailbox::QUEUE_EVENTS;
pub use stream::WatchStream;
pub use watch::{CreateError, Filter, Watch};
