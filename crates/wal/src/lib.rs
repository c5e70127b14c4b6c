//! The write-ahead log: an append-only sequence of records in segment files.
//!
//! A [`Log`] stores payloads, numbers them from 1, and returns them in order when it is
//! opened again. It does not depend on keys, snapshots or the data directory: callers
//! pass in which records a snapshot covers.
//!
//! # Guarantees
//!
//! - **Prefix.** Recovery returns a prefix of the appended payloads: no gap and no
//!   reordering, whatever the machine lost.
//! - **Durability.** A payload that [`Log::sync`] (or a [`Syncer`]) has covered is in
//!   that prefix, or opening fails and names the file and the offset. One exception: if
//!   the newest record is damaged and no later record (see [`Log::witness`]) proves that
//!   it was durable, it cannot be distinguished from an unfinished write. It is cut off,
//!   and the cut is reported.
//! - **Fail-stop.** After a failed write or fsync the log accepts nothing more
//!   ([`Error::Poisoned`]), because the kernel may have dropped the data and would
//!   report success on the next attempt. A full disk is not such a failure: space is
//!   reserved before it is needed ([`Log::reserve`]).
//! - **No lost tail.** The file `HEAD` names the newest segment, so opening detects
//!   that this segment is missing.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `medium` | the disk as the log uses it; tests replace it by one that fails |
//! | `segment`, `head` | the files of a log |
//! | `scan` | reads all segments; distinguishes damage from an unfinished write; changes nothing |
//! | `log_recovery` | opening: scans, cuts off an unfinished write, makes the rest durable |
//! | `durability` | what is written, what is durable, whether the log failed |
//! | `log` | appending, reserving space, trimming |
//! | `check` | a report about a log, for `mem_etcd check` |
//! | `salvage` | intact records of a damaged log, for `mem_etcd repair` |
//!
//! `docs/store-format.md` describes the files byte by byte.
//!
//! # Not implemented
//!
//! Compression, encryption, and reading a log while another process appends to it.

#![warn(missing_docs)]

mod check;
mod durability;
mod head;
mod log;
mod log_recovery;
mod medium;
mod salvage;
mod scan;
mod segment;

pub use check::{LogReport, SegmentReport, check};
pub use durability::Syncer;
pub use files::Error;
pub use log::{Log, LogOptions, MAX_PAYLOAD_BYTES, Trimmer};
pub use log_recovery::RecoveredLog;
pub use medium::{LogFile, Medium, OsMedium};
pub use salvage::salvage;
pub use scan::Cut;
