//! The write-ahead log: an append-only sequence of records in segment files.
//!
//! A [`Log`] stores payloads as records, which have the sequences 1, 2, 3 and so on. It
//! returns the payloads in order when it is opened again. It does not depend on keys,
//! snapshots or the data directory: the caller passes the *covered record*, the last record
//! whose changes a snapshot contains.
//!
//! # Guarantees
//!
//! - **Prefix.** Recovery returns a prefix of the appended payloads: no gap and no
//!   reordering, whatever the machine lost.
//! - **Durability.** A payload is in this prefix if [`Log::sync`] or [`Syncer::sync`] was
//!   called after it was appended, and returned without error. If such a payload is
//!   damaged or missing, opening fails and names the file and the offset. One exception:
//!   if the newest record is damaged, and neither a later record (see
//!   [`Log::append_durability_proof`]) nor `HEAD` (see [`Syncer::update_head`]) proves that
//!   it was durable, it cannot be distinguished from an unfinished write. Opening truncates
//!   the log before this record and reports where.
//! - **Fail-stop.** After a failed write or fsync the log accepts no more writes
//!   ([`Error::Poisoned`]), because the kernel may have dropped the data and would report
//!   success on the next attempt. A full disk is not such a failure: space is reserved
//!   before it is needed ([`Log::reserve`], [`Log::reserve_sync`]). On a file system that
//!   copies each changed block, space cannot be reserved for a record in a block that is
//!   partly written already. So there a record may fail on a full disk.
//! - **No trust in the page cache.** After a failed fsync, the page cache may contain
//!   records that are not on the disk. Opening writes again what no record proves to be
//!   durable, so a recovered record does not disappear later.
//! - **No lost tail.** The file `HEAD` names the newest segment with its size, and a durable
//!   record. So opening detects that the segment is missing or cut off.
//! - **No wait.** Appending waits for the disk only if [`Log::reserve_waits`] says so. Syncs
//!   and the preparation of segments run in other threads.
//!
//! # Modules, in reading order
//!
//! | Module | Subject |
//! |---|---|
//! | `medium` | the operations on the disk that the log needs; tests use a simulated disk |
//! | `segment`, `head`, `prepared` | the files of a log |
//! | `space` | whether the log may try to allocate a segment on a full disk |
//! | `scan` | reads all segments; distinguishes damage from an unfinished write; changes nothing |
//! | `content` | the content of a file of which the disk cannot read a part |
//! | `log_recovery` | opening: scans, truncates an unfinished write, makes the rest durable |
//! | `covered` | whether the log may end before the record that the snapshot covers |
//! | `durability` | which records are written and durable; whether the log has failed |
//! | `log` | appending, reserving space, trimming |
//! | `check` | reports the content of a log, for `mem_etcd check` |
//! | `after_damage` | reads the log after damage that the snapshot covers, for `mem_etcd repair` |
//! | `salvage` | finds the intact records of a damaged log, for `mem_etcd repair` |
//!
//! `docs/store-format.md` describes the files byte by byte.
//!
//! # Not implemented
//!
//! Compression, encryption, and reading a log while another process appends to it.

#![warn(missing_docs)]

mod after_damage;
mod check;
mod content;
mod covered;
mod durability;
mod head;
mod log;
mod log_recovery;
mod medium;
mod prepared;
mod salvage;
mod scan;
mod segment;
mod space;

pub use after_damage::{LogRecords, read_records};
pub use check::{LogReport, SegmentReport, check};
pub use covered::{AllowedLoss, Covered};
pub use durability::Syncer;
pub use files::{Error, PayloadError};
pub use log::{Log, LogOptions, MAX_PAYLOAD_BYTES, Preparer, Trimmer};
pub use log_recovery::RecoveredLog;
pub use medium::{LogFile, Medium, OsMedium};
pub use salvage::salvage;
pub use scan::UnfinishedWrite;
pub use space::SpaceClaim;
