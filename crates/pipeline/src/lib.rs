//! The pipeline: orders commands, applies them to the store, makes them durable and
//! publishes them.
//!
//! # The life of a write
//!
//! ```text
//! Pipeline::propose ─▶ queue ─▶ Executor ─▶ Applier, one batch at a time:
//!                                  1. reserve space in the log
//!                                  2. apply each command; collect effects and events
//!                                  3. append the effects to the log; fsync if required
//!                                  4. publish the new revision to readers
//!                                  5. queue the events for watchers
//!                                  6. reply to the callers
//! ```
//!
//! # Invariants
//!
//! - **One order.** One thread at a time runs the applier, so revision order, log order
//!   and delivery order are the same.
//! - **Nothing is visible before it is logged.** Step 2 changes the store before step 3
//!   logs the change. Readers do not see this change: they read at the *published
//!   revision*, which step 4 advances, and the store keeps the history that a read at this
//!   revision needs. If step 3 fails, steps 4 and 5 are skipped, and this command and all
//!   later ones fail.
//! - **Linearizable reads.** Reads bypass the queue. A write is published before it is
//!   acknowledged, so a read at the published revision is linearizable.
//! - **No revision is reused.** The log contains a *visible-revision bound*. If a crash can
//!   lose writes, no revision above the bound is published until a higher bound is durable.
//!   If changes may have been lost, the next process continues after the bound
//!   ([`continuity`]).
//! - **Store time is in the log.** Lease TTLs are measured in *store time* ([`clock`]). It
//!   is logged, so leases keep their remaining TTL over a restart. An expired lease is
//!   revoked by an ordinary command.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `pipeline`, `cluster` | the public handle: propose, watch, status, shutdown; what clients ask of a cluster |
//! | `submission`, `large_commands`, `waker`, `executor` | queued commands; chooses the thread that runs the applier |
//! | `applier` | executes a batch: reserve, apply, log, publish, reply |
//! | `journal` | what the log contains, and when it must be durable |
//! | `modes` | the WAL mode of each key |
//! | `shared_store`, `exclusive_store` | the store and the state that threads share with it; its lock for a round |
//! | `range_read`, `txn`, `large_txn` | ranges and transactions |
//! | `published_auth` | users and roles as readers see them |
//! | `history`, `pins` | reads for unsynced watchers; what garbage collection keeps |
//! | `held_records` | what responses hold after garbage collection |
//! | `lessor`, `clock` | expiry of leases |
//! | `flusher`, `snapshotter`, `snapshot_write` | background threads, snapshot files |
//! | `open`, `store_recovery`, `recovery_base`, `store_builder`, `continuity` | startup |
//! | `maintenance`, `history_hash`, `export` | hash, export, release of unused memory |
//! | `directory_check`, `repair` | `mem_etcd check` and `mem_etcd repair` |
//! | `snapshot_restore`, `etcd_snapshot` | `mem_etcd restore` |
//!
//! A store may be a member of a cluster: `replicated` describes what is different then.

#![warn(missing_docs)]

mod applier;
mod clock;
mod cluster;
mod continuity;
mod directory_check;
mod error;
mod etcd_snapshot;
mod exclusive_store;
mod executor;
mod export;
mod flusher;
mod held_records;
mod history;
mod history_hash;
mod journal;
mod large_commands;
mod large_txn;
mod lease_read;
mod lessor;
mod maintenance;
mod modes;
mod open;
mod options;
mod pace;
mod pins;
mod pipeline;
mod published_auth;
mod range_read;
mod recovery_base;
mod repair;
mod replicated;
mod retry;
mod shared_store;
mod snapshot_restore;
mod snapshot_write;
mod snapshotter;
mod store_builder;
mod store_recovery;
mod submission;
mod txn;
mod waker;

pub use directory_check::{DirectoryReport, check};
pub use error::{Error, OpenError};
pub use export::Export;
pub use held_records::{Discard, HeldResponse, ReadStart};
pub use history_hash::HistoryHash;
pub use large_commands::{ClientId, Origin};
pub use large_txn::LargeTxn;
pub use modes::{Modes, ModesError};
pub use options::{PipelineOptions, WalMode};
pub use pipeline::{Pipeline, PipelineStatus};
pub use range_read::{LargeRange, RangePages, RangeRead};
pub use repair::Repair;
pub use replicated::handle::{
    ClusterMember, ClusterStatus, MemberError, MembersChanged, MoveLeaderError,
};
pub use replicated::hash_check_state::HashCheckIntervals;
pub use replicated::options::ClusterOptions;
pub use replicated::restore::RestoredMember;
pub use snapshot_restore::{BumpTooLarge, SavedSnapshot, SavedSnapshotStatus};
pub use txn::TxnRead;
