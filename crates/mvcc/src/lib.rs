//! The multi-version store: keys with their history, leases, alarms, users and roles, and the
//! rules by which a command changes them. The rules for users and roles are in the crate `auth`.
//!
//! The crate is synchronous and deterministic: it has no clock, no randomness, no threads
//! and no I/O. The caller passes in the ID of a new lease and the current store time. So
//! the same sequence of commands always produces the same state, and `tests/model.rs` can
//! compare every reply with a naive model.
//!
//! ```text
//! Command ──apply──▶ Reply              the response to the client
//!                 ├▶ Effects            the changes, for the write-ahead log
//!                 └▶ Event in history   the changes, for watchers
//! ```
//!
//! # Reading order
//! 1. `command`: the commands and their replies. `apply`: the execution of a command.
//!    `admission`, `authorize`, `effect_size`, `work`: the checks before it.
//!    `access`: how readers get a turn during a long command.
//! 2. `write`: the revision of one command and its puts and deletes. `txn`: transactions.
//!    `branches`, `compare`: their compares. `txn_cursor`: their large ranges.
//! 3. `store`: the state. `index` (keys in order), `history` (events in order), `key_changes`
//!    (counts at earlier revisions), `lease` and `alarm` are its parts.
//! 4. `effect`: the format of effects in the log. `replay`: applies effects to a store at
//!    startup.
//! 5. `range`, `snapshot`, `hash`: long reads, each in bounded steps.
//! 6. `collect`: frees what a compaction made unreadable.
//! 7. `undo`, `rollback`: take back commands that were executed and did not become part of the log.
//!
//! # Invariants
//! - The revision starts at 1 and grows by one with each command that changes a key. All
//!   changes of one command have the same revision.
//! - The records of a key are ordered by revision. The newest may be a tombstone.
//! - Every revision from the compacted revision on can be read.
//! - If the effects of a sequence of commands are replayed on the state before these
//!   commands, the result is the state after them. If they are taken back, the result is the
//!   state before them.
//!
//! # Limits
//! All keys, and all history since the last compaction, are in memory.

#![warn(missing_docs)]

mod access;
mod admission;
mod alarm;
mod apply;
mod authorize;
mod branches;
mod collect;
mod command;
mod compare;
mod effect;
mod effect_size;
mod error;
mod hash;
mod history;
mod index;
mod key_changes;
mod lease;
mod range;
mod replay;
mod rollback;
mod snapshot;
mod span;
mod span_set;
mod store;
mod txn;
mod txn_cursor;
mod undo;
mod work;
mod write;

pub use access::{StoreAccess, TxnLimits};
pub use alarm::{Alarm, AlarmKind, Quota};
pub use apply::apply;
pub use authorize::authorize_reads;
pub use branches::BranchCursor;
pub use command::{Command, Reply, is_read_only};
pub use effect::{DecodeEffectError, Effect, Effects, LogDurability};
pub use error::Error;
pub use hash::HashCursor;
pub use history::Event;
pub use lease::{Lease, MAX_LEASE_TTL_SECONDS};
pub use range::RangeCursor;
pub use replay::{OutOfOrder, RevisionOrder};
pub use snapshot::SnapshotCursor;
pub use span::Span;
pub use store::{Stats, Store};
pub use txn::ReadPoint;
pub use txn_cursor::TxnCursor;
pub use undo::Undo;
