//! Snapshots: files that hold the state of the store. A snapshot contains the changes of
//! all log records up to one record, the covered record. Once the snapshot is durable,
//! the log up to the covered record can be removed.
//!
//! ```text
//! file:  header (magic "K1MSNP", covered record, identity, ID)  record  record  …  empty record
//! ```
//! The records of the file have the format of [`files::framing`]. The first record has
//! number 1. The payloads are chunks, whose content the caller defines. An empty record marks
//! the end.
//!
//! # Invariants
//!
//! - A snapshot gets its final name only when it is complete and durable. If a file with a
//!   final name cannot be read to its end, it is damaged, and loading it fails.
//! - A snapshot is read only if the manifest of the data directory lists it. Other files in
//!   the directory are never read, changed or removed.
//! - A snapshot is read back before the manifest lists it, and nothing is removed before
//!   that. Two generations are kept.
//! - Any flipped bit and any truncation is detected.
//! - This crate does not depend on the log or on the content of the chunks.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `header` | the header, with the identity of the store and the ID of the snapshot |
//! | `file` | reads and writes one snapshot file |
//! | `direct_writer` | writes a file without the page cache |
//! | `manifest` | the list of the store's snapshots, in the data directory |
//! | `name` | file names in the directory |
//! | `directory` | the snapshots in a directory: creates, loads and removes them |
//! | `export` | exported snapshots, with the SHA-256 that etcd's tools expect |

#![warn(missing_docs)]

mod direct_writer;
mod directory;
mod export;
mod file;
mod header;
mod manifest;
mod name;

pub use directory::{ForeignFile, Generation, Snapshots, create_manifest};
pub use export::{Exporter, Import};
pub use file::SnapshotWriter;
pub use files::Error;
