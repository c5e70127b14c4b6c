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
//!                                  5. publish the events to watchers
//!                                  6. reply to the callers
//! ```
//!
//! # Invariants
//!
//! - **One order.** One thread at a time runs the applier, so revision order, log order
//!   and delivery order are the same.
//! - **Nothing is visible before it is logged.** Step 2 changes the store before step 3
//!   has made the change durable. Readers do not notice: they read at the *published
//!   revision*, which step 4 advances, and the store keeps the history for it. If step 3
//!   fails, the following steps never happen, and every later command fails.
//! - **Linearizable reads.** Reads bypass the queue. Every acknowledged write has been
//!   published, so a read at the published revision is linearizable.
//! - **No revision is reused.** The log contains a *visible-revision bound*, which is
//!   durable before any revision up to it is exposed. A process that may have lost
//!   changes continues after the bound ([`continuity`]).
//! - **Time is in the log.** Lease TTLs are measured in *store time* ([`clock`]), which
//!   is logged, so a restart resumes leases with their remaining TTL. An expired lease is
//!   revoked by an ordinary command.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `pipeline` | the public handle: propose, watch, status, shutdown |
//! | `executor` | which thread runs the applier |
//! | `applier` | a batch: reserve, apply, log, publish, reply |
//! | `journal` | what is logged, and when it must be durable |
//! | `modes` | the WAL mode of each key |
//! | `shared_store` | the store as all threads share it |
//! | `range_read`, `history`, `pins` | reads of clients and of unsynced watchers |
//! | `lessor`, `clock` | expiry of leases |
//! | `flusher`, `snapshotter`, `snapshot_write` | background threads, snapshot files |
//! | `open`, `store_recovery`, `store_builder`, `continuity` | startup |
//! | `maintenance` | hash, export, release of unused memory |
//! | `directory_check`, `repair` | `mem_etcd check` and `mem_etcd repair` |
//! | `snapshot_restore`, `etcd_snapshot` | `mem_etcd restore` |
//!
//! # Not implemented
//!
//! Replication: there is one member, and the log is not a Raft log.

#![warn(missing_docs)]

mod applier;
mod clock;
mod continuity;
mod directory_check;
mod error;
mod etcd_snapshot;
mod executor;
mod flusher;
mod history;
mod journal;
mod lessor;
mod maintenance;
mod modes;
mod open;
mod options;
mod pace;
mod pins;
mod pipeline;
mod range_read;
mod repair;
mod shared_store;
mod snapshot_restore;
mod snapshot_write;
mod snapshotter;
mod store_builder;
mod store_recovery;

pub use directory_check::{DirectoryReport, check};
pub use error::{Error, OpenError};
pub use maintenance::{Export, HistoryHash};
pub use modes::{Modes, ModesError};
pub use options::{PipelineOptions, WalMode};
pub use pipeline::{Pipeline, PipelineStatus};
pub use range_read::{LargeRange, RangePages, RangeRead};
pub use repair::Repair;
pub use snapshot_restore::{BumpTooLarge, SavedSnapshot, SavedSnapshotStatus};
