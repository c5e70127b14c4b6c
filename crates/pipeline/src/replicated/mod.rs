//! A store as a member of a cluster ([ADR 24](../../../docs/adr/0024-replicated-pipeline.md)).
//!
//! # The life of a write
//!
//! ```text
//! leader                                                    follower
//! queue ─▶ evaluate ─▶ propose ─▶ in flight                  queue ─▶ forward to the leader
//!             │            └─▶ log thread, other members                 │
//!             ▼                          │                               ▼
//!        undo record              committed entry                 committed entry ─▶ apply
//!                                        ▼                               ▼
//!                               publish, reply                  publish, pass the response on
//! ```
//!
//! One thread owns the replica and is the only one that changes the store (`driver`). Another one
//! writes the log (`entry_log`). The transport has threads of its own.
//!
//! # Invariants
//!
//! - **Nothing uncommitted is visible.** Readers and watchers see the published revision. Leases,
//!   alarms and users have no history, so snapshots, exports and states for other members begin only
//!   while no batch is uncommitted (`transfer`).
//! - **What is not committed is taken back** as soon as the leadership is lost (`evaluate`).
//! - **Equal stores.** Every entry names the revisions before and after it, and every member checks
//!   both (`apply`). A member that finds a difference stops.
//! - **A member that may have forgotten something** has a new identity (`directory`, `formation`).
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `options`, `handle` | settings; what other threads ask of the member |
//! | `open`, `formation`, `identity`, `directory`, `recovery` | start: files, identity, how a cluster begins |
//! | `member`, `driver` | the state of a member and its thread |
//! | `evaluate`, `proposals`, `payload` | the leader: evaluation, undo, replies |
//! | `output`, `apply` | what the replica asks for; committed entries |
//! | `member_commands`, `member_command_queue`, `reconfiguration` | commands that change the members, those that wait, and which are refused |
//! | `forwarding`, `forwards`, `batch`, `wire`, `wire_error`, `wire_members`, `wire_format` | commands between members |
//! | `pending_reads` | linearizable reads |
//! | `hash_check_state`, `hash_checks`, `hash_comparison` | whether all members have the same content |
//! | `entry_log`, `records`, `log_size` | the log on disk and in memory |
//! | `restore` | a member from a saved snapshot |
//! | `transfer`, `state` | the whole state, for other members and for exports |

mod apply;
mod batch;
mod directory;
mod driver;
mod entry_log;
mod evaluate;
mod formation;
mod forwarding;
mod forwards;
pub(crate) mod handle;
pub(crate) mod hash_check_state;
mod hash_checks;
mod hash_comparison;
mod identity;
mod log_size;
mod member;
mod member_command_queue;
mod member_commands;
mod open;
pub(crate) mod options;
mod output;
mod payload;
mod pending_reads;
mod proposals;
mod reconfiguration;
mod records;
mod recovery;
pub(crate) mod restore;
mod state;
mod transfer;
mod wire;
mod wire_error;
mod wire_format;
mod wire_members;
