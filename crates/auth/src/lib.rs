//! Users, roles and permissions, and the rules by which they change and are checked. The rules
//! and the errors are those of etcd 3.7.
//!
//! The crate is a state machine without I/O, time and randomness. It knows neither passwords
//! (only their hashes, which it does not read) nor tokens.
//!
//! ```text
//! Command ──evaluate──▶ Change ──State::apply──▶ the next State
//! ```
//!
//! A command is evaluated once. The log and snapshots contain its [`Change`].
//!
//! # Reading order
//! `error`, `spans` (the keys that a user may touch), `user` and `role`, `state`, `change`,
//! `command`, `permit` (checks), `export` (the state as changes).
//!
//! # Invariants
//! - The revision of the state starts at 1. It grows by one with each change, except by enabling
//!   authentication.
//! - The keys that a user may touch always follow from the roles of the user.
//! - A state is immutable while it is shared: a change replaces it.

#![warn(missing_docs)]

mod change;
mod command;
mod error;
mod export;
mod permit;
mod role;
mod spans;
mod state;
mod user;

pub use change::{Change, ChangeKind, MalformedChange};
pub use command::Command;
pub use error::Error;
pub use export::Export;
pub use permit::{Caller, Permit};
pub use role::Role;
pub use spans::Spans;
pub use state::State;
pub use user::User;

/// The name of the user who cannot be deleted while authentication is enabled, and of the role
/// whose users may do everything.
pub const ROOT: &str = "root";
