//! The state of the store: keys with their history, leases, and the rules by
//! which a command changes them.
//!
//! This crate is pure and synchronous. It has no clock, no randomness, no
//! threads and no I/O; what comes from outside (the identity of a new lease,
//! the moment at which one expires) arrives inside a [`Command`]. So the same
//! commands give the same state everywhere, and a test can hold every answer
//! against a naive model (`tests/model.rs`).
//!
//! ```text
//! Command ──apply──▶ Reply              what the caller is told
//!                 ├▶ Effects            what must survive: the log's content
//!                 └▶ Event in history   what watchers are told
//! ```
//!
//! # Invariants
//! - The revision starts at 1 and grows by one with each command that changes
//!   a key; all changes of one command share its revision.
//! - A key's records are ordered by revision; the newest may be a tombstone.
//! - Every revision from the last compaction on can be read, exactly.
//! - Replaying the effects of a run of commands on the state before them gives
//!   the state after them.
//!
//! # Missing
//! History that outgrows memory.

mod alarm;
mod apply;
mod cost;
mod effect;
mod error;
mod hash;
mod history;
mod index;
mod lease;
mod quota;
mod range;
mod snapshot;
mod span;
mod store;
mod txn;

pub use alarm::{Alarm, AlarmKind, Quota};
pub use apply::{Command, Reply};
pub use effect::{DecodeEffectError, Effect, Effects, Opened};
pub use error::Error;
pub use hash::HashCursor;
pub use history::Event;
pub use lease::{Lease, MAX_LEASE_TTL_SECONDS};
pub use range::RangeCursor;
pub use snapshot::SnapshotCursor;
pub use span::Span;
pub use store::{Order, OutOfOrder, Stats, Store};
pub use txn::is_read_only;
