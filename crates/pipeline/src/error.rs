//! Errors of commands, of reads and of opening a pipeline.

use std::sync::Arc;

use crate::modes::ModesError;

/// A command or a read failed. Where etcd has the same error, the text is the same.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store refused the command or the read.
    #[error(transparent)]
    Refused(#[from] mvcc::Error),
    /// The queue is full.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// The disk is full. Nothing was changed.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// The effects of the command exceed the largest record of the log.
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// A new segment of the log could not be created. Nothing was changed; a retry may
    /// succeed.
    #[error("etcdserver: cannot extend the log: {0}")]
    CannotGrow(Arc<str>),
    /// The pipeline is being shut down.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// The log failed during this command or before. It is unknown whether a restart
    /// will recover the command.
    #[error("etcdserver: the log failed: {0}")]
    LogFailed(Arc<str>),
}

/// The pipeline could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file of the store could not be read or written.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The WAL modes by prefix are invalid.
    #[error(transparent)]
    Modes(#[from] ModesError),
    /// A thread could not be started.
    #[error("could not start a thread: {0}")]
    Thread(#[from] std::io::Error),
}
