//! The multi-version store: keys with their history, leases and alarms, and the
//! rules by which a command changes them.
//!
//! The crate is pure and synchronous: it has no clock, no randomness, no threads
//! and no I/O. Values from outside (a new lease's ID, the current store time)
//! are passed in by the caller. Equal commands in equal order therefore produce
//! equal states, and `tests/model.rs` compares every reply with a naive model.
//!
//! ```text
//! Command ──Store::apply──▶ Reply              the response to the client
//!                        ├▶ Effects            the changes, for the write-ahead log
//!                        └▶ Event in history   the changes, for watchers
//! ```
//!
//! # Reading order
//! 1. `command`: what clients can ask for. `apply`: one command, step by step.
//! 2. `write`: the revision of one command and its puts and deletes. `txn`:
//!    transactions.
//! 3. `store`: the state. `index` (keys in order), `history` (events in order),
//!    `lease` and `alarm` are its parts.
//! 4. `effect`: the log format. `replay`: effects applied to a store at startup.
//! 5. `range`, `snapshot`, `hash`: long reads, each in bounded steps.
//! 6. `collect`: frees what a compaction made unreadable.
//!
//! # Invariants
//! - The revision starts at 1 and grows by one with each command that changes a
//!   key. All changes of one command have the same revision.
//! - The records of a key are ordered by revision. The newest may be a tombstone.
//! - Every revision since the last compaction can be read exactly.
//! - Replaying the effects of a sequence of commands on the state before them
//!   produces the state after them.
//!
//! # Limits
//! All history since the last compaction is in memory.

#![warn(missing_docs)]

mod admission;
mod alarm;
mod apply;
mod collect;
mod command;
mod effect;
mod effect_size;
mod error;
mod hash;
mod history;
mod index;
mod lease;
mod range;
mod replay;
mod snapshot;
mod span;
mod store;
mod txn;
mod write;

pub use alarm::{Alarm, AlarmKind, Quota};
pub use command::{Command, Reply, is_read_only};
pub use effect::{DecodeEffectError, Effect, Effects, Opened};
pub use error::Error;
pub use hash::HashCursor;
pub use history::Event;
pub use lease::{Lease, MAX_LEASE_TTL_SECONDS};
pub use range::RangeCursor;
pub use replay::{OutOfOrder, RevisionOrder};
pub use snapshot::SnapshotCursor;
pub use span::Span;
pub use store::{Stats, Store};
