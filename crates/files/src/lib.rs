//! What all files of a store have in common: the log (crate `wal`), snapshots (crate
//! `snapshot`) and the data directory (crate `data_dir`) are built on this crate and
//! do not depend on each other.
//!
//! - [`framing`]: the file header and the checksummed record. Log segments and
//!   snapshots consist of both.
//! - [`Error`]: what can go wrong with a file, with its path and a remedy.
//! - [`discard`]: removes a large file in steps, so that freeing its pages does not
//!   delay other threads.
//!
//! `docs/store-format.md` describes the files byte by byte. The bytes of a released
//! format never change.

#![warn(missing_docs)]

pub mod discard;
mod error;
pub mod framing;

pub use error::Error;
