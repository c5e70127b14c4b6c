//! Errors of commands and reads, and of opening a pipeline.

use std::sync::Arc;

use crate::modes::ModesError;

/// The error of a command or a read. Errors that etcd also has use the text of etcd.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store rejected the command or the read.
    #[error(transparent)]
    Refused(#[from] mvcc::Error),
    /// The queue of commands is full.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// The disk is full. Nothing was changed.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// The effects of the command do not fit into one record of the log.
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// A new segment of the log could not be created, for a reason other than a full
    /// disk. Nothing was changed; a retry may succeed.
    #[error("etcdserver: cannot extend the log: {0}")]
    CannotGrow(Arc<str>),
    /// The caller no longer waits for the result of the read.
    #[error("etcdserver: request cancelled")]
    Cancelled,
    /// The pipeline is being shut down.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// No member leads the cluster, or the leader cannot be reached. The command had no effect.
    #[error("etcdserver: no leader")]
    NoLeader,
    /// This member reaches no leader, and the command had no effect. Of all errors for writes, etcd's client sends
    /// the request to another member only after one with this text: it means that nobody has got the request.
    #[error("there is no connection available")]
    NoConnection,
    /// Another member leads now. The command had no effect.
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    /// The leader did not answer in time. The command may have been executed.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// Another member leads now. The command may have been executed.
    #[error("etcdserver: request timed out, possibly due to previous leader failure")]
    LeaderFailed,
    /// The connection to the leader has ended. The command may have been executed.
    #[error("etcdserver: request timed out, possibly due to connection lost")]
    ConnectionLost,
    /// The log failed during this command or before it. A restart may or may not recover
    /// the command.
    #[error("etcdserver: the log failed: {0}")]
    LogFailed(Arc<str>),
}

/// The error of opening a pipeline.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file of the store could not be read or written, or is damaged.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The WAL modes by prefix are invalid.
    #[error(transparent)]
    Modes(#[from] ModesError),
    /// The member of a cluster could not start.
    #[error("{0:#}")]
    Cluster(anyhow::Error),
    /// A thread could not be started.
    #[error("could not start a thread: {0}")]
    Thread(#[from] std::io::Error),
}
