//! Errors of operations on the store's files.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why an operation on a file of the store failed. Each message is one line:
/// the file, the cause and, where one exists, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{action} {path}: {cause}")]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The disk is full. The operation changed nothing and may be repeated.
    #[error("no space left for the log in {path}: free some space and try again")]
    NoSpace {
        /// The directory of the log.
        path: PathBuf,
    },
    /// A payload exceeds `wal::MAX_PAYLOAD_BYTES`.
    #[error("a payload of {bytes} bytes is too large for one record of the log")]
    TooLarge {
        /// Size of the payload.
        bytes: usize,
    },
    /// An earlier write or fsync failed; the log accepts no more writes.
    #[error(
        "the log has failed and accepts no more writes; restart to recover the acknowledged writes"
    )]
    Poisoned,
    /// Bytes that were known to be durable have changed or are missing.
    #[error(
        "{file} is corrupt at offset {offset}: {reason}; restore the file from a backup, or run `mem_etcd repair` to see what can be kept"
    )]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// Offset of the damage in the file, in bytes.
        offset: u64,
        /// Description of the damage.
        reason: String,
    },
    /// Records between the newest snapshot and the start of the log are missing.
    #[error(
        "the log in {path} begins with record {first}, but the newest snapshot covers only records up to {covered}: is --snapshot-dir the directory that was used before?"
    )]
    Gap {
        /// The directory of the log.
        path: PathBuf,
        /// The first record in the log.
        first: u64,
        /// The last record that a snapshot covers; 0 without a snapshot.
        covered: u64,
    },
    /// A newer version wrote the file.
    #[error(
        "{path} was written by a newer version: it has format {found}, and this mem_etcd reads up to format {supported}; use the mem_etcd that wrote it"
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u32,
        /// The newest format that this version reads.
        supported: u32,
    },
    /// A newer version wrote a part of the file.
    #[error(
        "{file} was written by a newer version: at offset {offset} it contains an {reason}; use the mem_etcd that wrote it"
    )]
    NewerContent {
        /// The file.
        file: PathBuf,
        /// Offset of the record in the file, in bytes.
        offset: u64,
        /// What this version does not know.
        reason: String,
    },
    /// Another process holds the lock of the data directory.
    #[error(
        "data directory {path} is in use by another process: stop it, or use another --data-dir"
    )]
    InUse {
        /// The data directory.
        path: PathBuf,
    },
    /// Another process holds the lock of the snapshot directory.
    #[error(
        "snapshot directory {path} is in use by another process: every store needs its own --snapshot-dir"
    )]
    SnapshotsInUse {
        /// The snapshot directory.
        path: PathBuf,
    },
    /// A snapshot that the data directory lists is not in the snapshot directory, and neither
    /// the log nor another snapshot replaces it.
    #[error(
        "{path} is missing, and the log is incomplete without it: is --snapshot-dir the directory that was used before?"
    )]
    MissingSnapshot {
        /// The newest listed snapshot.
        path: PathBuf,
    },
    /// The snapshots are in the data directory, but another directory is to be used.
    #[error(
        "the snapshots of this store are in {found}: move them to {path}, or start without --snapshot-dir"
    )]
    SnapshotsElsewhere {
        /// The snapshot directory that is to be used.
        path: PathBuf,
        /// The directory that contains snapshots.
        found: PathBuf,
    },
    /// The log ends before the last record that the snapshot covers, and the WAL mode allows
    /// no such loss.
    #[error(
        "the log in {path} has lost its end: the log ends with record {last}, but the snapshot covers records up to {covered}; restore the log from a backup, or run `mem_etcd repair` to see what can be kept"
    )]
    ShortLog {
        /// The directory of the log.
        path: PathBuf,
        /// The last record in the log.
        last: u64,
        /// The last record that the snapshot covers.
        covered: u64,
    },
    /// A snapshot of an earlier version, which carries no identity, does not fit the log.
    #[error(
        "{path} may belong to another store: it covers records up to {covered}, but the log ends with record {last}; if it does, move it away, otherwise restore the log from a backup"
    )]
    UnknownSnapshot {
        /// The snapshot.
        path: PathBuf,
        /// The last record that the snapshot covers.
        covered: u64,
        /// The last record in the log.
        last: u64,
    },
    /// A data directory that is to be created contains files.
    #[error("{path} is not empty: move it away, or use another --data-dir")]
    NotEmpty {
        /// The data directory.
        path: PathBuf,
    },
    /// A snapshot file that is to be restored is invalid.
    #[error("{path} is not a snapshot that can be restored: {reason}")]
    BadSnapshot {
        /// The file.
        path: PathBuf,
        /// What is invalid.
        reason: String,
    },
    /// The identity of a store is missing or damaged. A repair would need it.
    #[error(
        "{path} {reason}; restore this file from a backup, or write it as docs/store-format.md describes"
    )]
    BadIdentity {
        /// The file with the identity.
        path: PathBuf,
        /// What is wrong, as the rest of a sentence about the file.
        reason: String,
    },
    /// The directory belongs to another program.
    #[error("{path} is not a data directory of mem_etcd: {reason}; use an empty --data-dir")]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Why it is not a data directory.
        reason: String,
    },
}

/// Whether a read failed because the disk or the file system has lost the data, for example
/// because a sector cannot be read.
pub fn is_unreadable(error: &io::Error) -> bool {
    // EIO, ENODATA, EBADMSG, EUCLEAN, EREMOTEIO
    const LOST: [i32; 5] = [5, 61, 74, 117, 121];
    error.raw_os_error().is_some_and(|code| LOST.contains(&code))
}

/// Why the payload of an intact record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadError {
    /// It is malformed, or contradicts an earlier record.
    Damaged(String),
    /// It contains something that only newer versions know; the text says what.
    Newer(String),
}

impl PayloadError {
    /// Returns the error of the file with the payload; `offset` is that of its record.
    pub fn at(self, file: &Path, offset: u64) -> Error {
        let file = file.to_owned();
        match self {
            PayloadError::Damaged(reason) => Error::Corrupt { file, offset, reason },
            PayloadError::Newer(reason) => Error::NewerContent { file, offset, reason },
        }
    }
}

impl Error {
    /// Returns a function for `map_err` that converts the [`io::Error`] of `action` on
    /// `path`.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Error::Io { action, path, cause }
    }

    /// Returns a function for `map_err` that converts the [`io::Error`] of reading `file` at
    /// `offset`. What the disk cannot read counts as damage.
    pub fn read(file: impl Into<PathBuf>, offset: u64) -> impl FnOnce(io::Error) -> Self {
        let file = file.into();
        move |cause| match is_unreadable(&cause) {
            true => {
                let reason = format!("it cannot be read: {cause}");
                Error::Corrupt { file, offset, reason }
            }
            false => Error::Io { action: "read", path: file, cause },
        }
    }

    /// Whether a newer version wrote the file or a part of it.
    pub fn is_newer(&self) -> bool {
        matches!(self, Error::NewerFormat { .. } | Error::NewerContent { .. })
    }

    /// Whether the reason is a full disk.
    pub fn is_disk_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            Error::Io { cause, .. } => matches!(cause.kind(), StorageFull | QuotaExceeded),
            Error::NoSpace { .. } => true,
            _ => false,
        }
    }

    /// Returns the error for a file that a newer version wrote.
    pub fn newer_format(path: &Path, found: u16) -> Self {
        Error::NewerFormat {
            path: path.to_owned(),
            found: found.into(),
            supported: crate::framing::FORMAT.into(),
        }
    }
}
