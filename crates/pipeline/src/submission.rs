//! Queued commands and their outcomes.

use auth::Caller;
use futures_channel::oneshot;
use mvcc::{Command, Reply};

use crate::Error;
use crate::large_txn::LargeTxn;

/// A queued command and the channel for its outcome.
pub(crate) struct Submission {
    pub(crate) command: Command,
    /// Who may have to be permitted to execute the command.
    pub(crate) caller: Caller,
    /// Encoded size of the request.
    pub(crate) bytes: usize,
    /// `None` for commands that the store itself submits, such as the revocation of an
    /// expired lease.
    pub(crate) reply: Option<oneshot::Sender<Result<Outcome, Error>>>,
}

impl Submission {
    /// Whether the command may take long, and its caller no longer waits for the outcome. It
    /// need not be executed then: nobody knows that it was submitted.
    pub(crate) fn is_abandoned(&self) -> bool {
        let may_take_long = matches!(self.command, Command::Txn(_) | Command::DeleteRange(_));
        may_take_long && self.reply.as_ref().is_some_and(oneshot::Sender::is_canceled)
    }
}

/// The outcome of a command.
pub(crate) enum Outcome {
    /// The reply, which is never [`Reply::OpenTxn`].
    Done(Reply),
    /// A transaction with large ranges that have to be read.
    OpenTxn(LargeTxn),
}

impl Outcome {
    /// Returns the reply. Blocks if ranges have to be read.
    pub(crate) fn finish(self) -> Result<Reply, Error> {
        match self {
            Outcome::Done(reply) => Ok(reply),
            Outcome::OpenTxn(txn) => txn.finish_unless(&|| false).map(Reply::Txn),
        }
    }
}
