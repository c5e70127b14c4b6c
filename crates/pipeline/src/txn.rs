//! Transactions.
//!
//! A transaction that writes is a command. Its large ranges are read after it was committed,
//! and read the state that they saw in it. A read-only transaction bypasses the queue, as
//! ranges do. Both are read on a blocking thread, unless they are small.

use etcdpb::rpc::{TxnRequest, TxnResponse};
use mvcc::{Command, Reply};

use crate::large_commands::Origin;
use crate::large_txn::{self, LargeTxn};
use crate::submission::Outcome;
use crate::{Error, Pipeline};

/// The result of starting a transaction.
pub enum TxnRead {
    /// The response of a complete transaction.
    Done(TxnResponse),
    /// A transaction with ranges to be read. The caller finishes it on a thread that may
    /// block.
    Large(LargeTxn),
}

impl Pipeline {
    /// Executes a transaction. `bytes` is the encoded size of the request. A transaction that
    /// writes is as durable as [`Pipeline::propose`] promises, takes turns and is permitted in the
    /// same way. A read-only one is linearizable, as [`Pipeline::range`] is, and not checked here.
    pub async fn txn(
        &self,
        origin: impl Into<Origin>,
        request: TxnRequest,
        bytes: usize,
    ) -> Result<TxnRead, Error> {
        if mvcc::is_read_only(&request) {
            self.linearize().await?;
            return Ok(match large_txn::read_small(self.shared(), &request)? {
                Some(response) => TxnRead::Done(response),
                None => TxnRead::Large(LargeTxn::read_only(self.shared(), request)),
            });
        }
        match self.execute(origin.into(), Command::Txn(request), bytes).await? {
            Outcome::Done(Reply::Txn(response)) => Ok(TxnRead::Done(response)),
            Outcome::OpenTxn(txn) => Ok(TxnRead::Large(txn)),
            Outcome::Done(other) => unreachable!("not the reply to a transaction: {other:?}"),
        }
    }
}

impl TxnRead {
    /// Reads the rest of the transaction. Blocks if it is large.
    ///
    /// # Errors
    /// As [`LargeTxn::finish_unless`].
    pub fn finish(self) -> Result<TxnResponse, Error> {
        match self {
            TxnRead::Done(response) => Ok(response),
            TxnRead::Large(txn) => txn.finish_unless(&|| false),
        }
    }
}
