//! Consensus: replicates a log of effects to the members of a cluster.
//!
//! The crate is a state machine around the Raft library `raft`. It has no I/O, no clock, no
//! randomness and no threads: the caller passes in messages, ticks and finished writes, and gets
//! back what to send, to store and to apply. The same events in the same order give the same
//! results, so the tests run whole clusters in one thread, with faults that a seed determines
//! (`simulation`).
//!
//! # One batch
//!
//! ```text
//! leader                                                        follower
//! begin_evaluation ─▶ permission: the state to evaluate on
//! (evaluate the commands; keep undo records)
//! propose ─▶ output: write, messages ───── Append ────────────▶ receive ─▶ output: write
//! persisted                                                     persisted ─▶ output: messages
//! receive ◀──────────────────────────────── AppendResponse ────────────────────┘
//! output: committed (Publish), outcome
//! applied ─▶ (respond to clients) ───────── Append ───────────▶ output: committed (Apply)
//! ```
//!
//! # Guarantees
//!
//! - **One history.** Replicas get the same committed entries in the same order, each once.
//! - **Nothing acknowledged is lost**, as long as a majority of the voters has not failed at the
//!   same time. A member that has lost its log counts as failed until it is replaced
//!   ([`identity`], [`rejoin`]). If more members fail, nothing is committed any more.
//! - **Evaluate once.** A leader evaluates commands before they are replicated, on a state that
//!   contains everything before them. What does not become committed is undone ([`evaluation`]).
//!   Each entry names the entry on whose state it was evaluated, and every replica checks this.
//! - **Linearizable reads** without clocks ([`reads`]).
//! - **Hostile bytes do not reach the library.** Messages are decoded here, and what contradicts
//!   the log is refused instead of a panic ([`message`]).
//!
//! # What the caller must do
//!
//! - Call [`Replica::output`] after events, and do what it says in the order of its fields.
//! - Give each identity to one process only, and decide by [`identity::identity`] when a member
//!   gets a new one.
//! - Call [`Replica::snapshot_sent`] for each snapshot, also if it was lost.
//! - Stop if [`Replica::output`] returns an error.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `id`, `entry`, `membership` | identities, entries, members and their changes |
//! | `wire`, `message` | the format of entries and messages; what is refused |
//! | `output` | what the caller has to do |
//! | `identity`, `start` | what survived a restart |
//! | `log` | the log in memory, as the library reads it |
//! | `evaluation` | batches that are evaluated and not committed; undo; outcomes |
//! | `reads` | linearizable reads |
//! | `rejoin` | replacing members that have lost their log; starting members that were added |
//! | `replica`, `status` | everything together |
//! | `fault` | deliberate faults, for the tests |
//! | `simulation` | tests: clusters with faults |
//!
//! # Not implemented
//!
//! The agreement of blank members on a new cluster, and forwarding commands to the leader. They belong to
//! the caller.

#![warn(missing_docs)]

pub mod entry;
pub mod evaluation;
mod fault;
pub mod id;
pub mod identity;
mod log;
pub mod membership;
pub mod message;
pub mod output;
pub mod reads;
pub mod rejoin;
mod replica;
#[cfg(test)]
mod simulation;
mod start;
mod status;
mod wire;

pub use replica::{Inconsistency, ProposeChangeError, Replica, TransferError};
pub use start::{Config, Start, StartError};
pub use status::{MemberStatus, Status};
pub use wire::DecodeError;
