//! Queued commands and their outcomes.

use auth::Caller;
use consensus::id::MemberId;
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
    pub(crate) reply: ReplyTo,
}

/// Who waits for the outcome of a command.
pub(crate) enum ReplyTo {
    /// Nobody: the store itself has submitted it, for example because a lease has expired.
    Nobody,
    /// A client of this member.
    Client(oneshot::Sender<Result<Outcome, Error>>),
    /// A client of another member of the cluster, which has forwarded the command with this
    /// number.
    Member(MemberId, u64),
}

impl ReplyTo {
    /// Replies to a client of this member.
    pub(crate) fn send(self, reply: Result<Outcome, Error>) {
        if let ReplyTo::Client(sender) = self {
            // Sending fails if the caller has dropped its future. That is not an error.
            let _ = sender.send(reply);
        }
    }

    /// Whether it is a client of this member that no longer waits.
    fn is_gone(&self) -> bool {
        matches!(self, ReplyTo::Client(sender) if sender.is_canceled())
    }
}

impl Submission {
    /// Whether the command may take long, and its caller no longer waits for the outcome. It
    /// need not be executed then: nobody knows that it was submitted.
    pub(crate) fn is_abandoned(&self) -> bool {
        let may_take_long = matches!(self.command, Command::Txn(_) | Command::DeleteRange(_));
        may_take_long && self.reply.is_gone()
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
