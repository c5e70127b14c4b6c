//! Why a command was not carried out, or a pipeline not opened.

use std::sync::Arc;

use crate::modes::ModesError;

/// A command or a read failed. Where etcd has the same error, the text is its.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The state does not allow it.
    #[error(transparent)]
    Refused(#[from] mvcc::Error),
    /// More is waiting than the queue holds.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// The disk is full. Nothing was changed.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// The command would write more than a record of the log holds.
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// The log could not be extended; nothing was changed, and it may work later.
    #[error("etcdserver: the log cannot grow now: {0}")]
    CannotGrow(Arc<str>),
    /// The pipeline is being shut down.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// The log failed, now or before; whether the command will be there after a
    /// restart is not known.
    #[error("etcdserver: the log failed: {0}")]
    LogFailed(Arc<str>),
}

/// The pipeline could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Files could not be used.
    #[error(transparent)]
    Wal(#[from] wal::Error),
    /// The modes by prefix make no sense.
    #[error(transparent)]
    Modes(#[from] ModesError),
    /// A thread could not be started.
    #[error("start a thread: {0}")]
    Thread(#[from] std::io::Error),
}
