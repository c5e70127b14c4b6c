//! Snapshots: files that hold the state of the store. A snapshot contains the changes of
//! all log records up to one record, the covered record. Once the snapshot is durable,
//! the log up to the covered record can be removed.
//!
//! ```text
//! file:  header (magic "K1MSNP", covered record, salt 0)  record  record  …  empty record
//! ```
//! The header and the records of the file have the format of [`files::framing`]. These
//! records are numbered from 1. Their payloads are chunks, whose content the caller
//! defines. An empty record marks the end.
//!
//! # Invariants
//!
//! - A snapshot gets its final name only when it is complete and durable. If a file with a
//!   final name cannot be read to its end, it is damaged, and loading it fails.
//! - Any flipped bit and any truncation is detected.
//! - This crate does not depend on the log or on the content of the chunks.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `file` | reads and writes one snapshot file |
//! | `direct_writer` | writes a file without the page cache |
//! | `directory` | the snapshots in a directory: creates, loads and removes them |
//! | `export` | exported snapshots, with the SHA-256 that etcd's tools expect |

#![warn(missing_docs)]

mod direct_writer;
mod directory;
mod export;
mod file;

pub use directory::Snapshots;
pub use export::{Exporter, Import};
pub use file::SnapshotWriter;
pub use files::Error;
