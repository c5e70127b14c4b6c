//! Code that the files of a store share. The log (crate `wal`), snapshots (crate
//! `snapshot`) and the data directory (crate `data_dir`) use this crate and do not depend
//! on each other.
//!
//! - [`framing`]: the file header and the record with a checksum. A log segment or
//!   snapshot is a header followed by records.
//! - [`Error`]: the errors of file operations, with the path and, where possible, a
//!   remedy. [`PayloadError`] is the error of a record's content.
//! - [`record_search`]: finds the records after damage.
//! - [`discard`]: removes a large file in steps, so that freeing its pages does not
//!   delay other threads.
//! - [`lock`]: locks a directory against other processes.
//! - [`replace`](mod@replace): replaces a small file atomically.
//! - [`Identity`]: the IDs of a store.
//!
//! `docs/store-format.md` describes the files byte by byte. The bytes of a released
//! format never change.

#![warn(missing_docs)]

pub mod discard;
mod error;
pub mod framing;
mod identity;
pub mod lock;
pub mod record_search;
pub mod replace;

pub use error::{Error, PayloadError, is_unreadable};
pub use identity::Identity;
