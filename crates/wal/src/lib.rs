//! The log: bytes that survive.
//!
//! Knows files, checksums and disks; knows nothing of keys. A [`Log`] takes
//! payloads, numbers them, and hands all of them back, in order, when it is
//! opened again. Three promises:
//!
//! - **A prefix.** What is handed back is a prefix of what was appended: no
//!   gap, no reordering, whatever the machine lost.
//! - **Durable is durable.** A payload whose number [`Log::sync`] (or a
//!   [`Syncer`]) has covered is in that prefix, or opening fails and names the
//!   file and the offset. Only the newest record, until a later one or
//!   [`Log::witness`] says that it was durable, cannot be told from an unfinished
//!   write when it is damaged; it is then cut off, and that is reported.
//! - **No second chances.** After a failed write or fsync nothing more is
//!   accepted ([`Error::Poisoned`]): the kernel may have thrown the data away
//!   and would report success the next time. A full disk is no such failure:
//!   space is reserved before it is needed ([`Log::reserve`]).
//!
//! A log that lost its newest segment is noticed as well: `HEAD` names it.
//!
//! `docs/store-format.md` draws the files byte by byte.
//!
//! A [`Snapshots`] directory holds the state at some record; the log before it is
//! then trimmed away.

mod data_dir;
mod direct;
mod discard;
mod error;
mod export;
mod head;
mod inspection;
mod log;
mod medium;
mod recovery;
mod remnants;
mod segment;
mod snapshot;

pub use data_dir::{DataDir, Identity};
pub use error::Error;
pub use export::{Exporter, Import};
pub use inspection::{Inspection, SegmentReport, inspect};
pub use log::{Log, MAX_PAYLOAD_BYTES, Options, Syncer, Trimmer};
pub use medium::{LogFile, Medium, OsMedium};
pub use recovery::{Cut, Recovered};
pub use remnants::remnants;
pub use snapshot::{SnapshotWriter, Snapshots};
