//! What can go wrong with files.

use std::io;
use std::path::PathBuf;

/// Each message is one line and says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation.
    #[error("{action} {path}: {cause}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// The disk is full. Nothing was changed; the log goes on when there is room.
    #[error("no space left for the log in {path}: free some and try again")]
    NoSpace {
        /// The directory of the log.
        path: PathBuf,
    },
    /// A payload exceeds [`crate::MAX_PAYLOAD_BYTES`].
    #[error("{bytes} bytes are too many for one record of the log")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// A write or an fsync failed before; the log accepts nothing more.
    #[error(
        "the log failed before and accepts no more writes; restart to recover what was acknowledged"
    )]
    Poisoned,
    /// Bytes that were durable are not what was written.
    #[error(
        "{file} is corrupt at offset {offset}: {reason}; restore the file from a backup, or see what `mem_etcd repair` can keep"
    )]
    Corrupt {
        /// The segment.
        file: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What does not fit.
        reason: String,
    },
    /// The log begins behind what the newest snapshot covers.
    #[error(
        "the log in {path} begins with record {first}, and no snapshot covers more than record {covered}: is --snapshot-dir the one of before?"
    )]
    Gap {
        /// The directory of the log.
        path: PathBuf,
        /// The first record that is there.
        first: u64,
        /// The last record that a snapshot covers; 0 without a snapshot.
        covered: u64,
    },
    /// The files were written by a newer version.
    #[error(
        "{path} has format {found}, this version reads up to format {supported}: use a newer mem_etcd"
    )]
    NewerFormat {
        /// The file that says so.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this version reads.
        supported: u32,
    },
    /// Another process works on the directory.
    #[error(
        "data directory {path} is in use by another process: stop it, or use another --data-dir"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A directory that is to be made has something in it.
    #[error("{path} is not empty: move it away, or use another --data-dir")]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A file that was to be restored is not what it should be.
    #[error("{path} is not a snapshot that can be restored: {reason}")]
    BadSnapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory holds something that is not ours.
    #[error("{path} is not a data directory of mem_etcd: {reason}; use an empty --data-dir")]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// How one can tell.
        reason: String,
    },
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Error::Io { action, path, cause }
    }
}
