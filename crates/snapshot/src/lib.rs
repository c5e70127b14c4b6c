//! Snapshots: files that hold the state of the store after a record of the log. Once a
//! snapshot is durable, the log up to that record can be removed.
//!
//! ```text
//! file:  header (magic "K1MSNP", covered record, salt 0)  record  record  …  empty record
//! ```
//! Header and records are those of [`files::framing`], numbered from 1. The payloads are
//! chunks that the caller defines. The empty record marks the end.
//!
//! # Invariants
//!
//! - A snapshot gets its final name only when it is complete and durable. A file with
//!   that name which cannot be read to its end is damaged, and loading it fails.
//! - Any flipped bit and any truncation is detected.
//! - This crate does not depend on the log or on the content of the chunks.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `file` | reading and writing one snapshot file |
//! | `direct_writer` | writing around the page cache |
//! | `directory` | the snapshots in a directory: newest, create, trim |
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
