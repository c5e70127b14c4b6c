//! Checks whether a client may execute a command. The checks are those of etcd.
//!
//! They are made when the command is executed, not when it arrives: so no change of users and
//! roles can come in between.

use auth::{Caller, Error, Permit, Spans};
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};

use crate::command::Command;
use crate::lease::Lease;
use crate::store::Store;

/// Fails unless `caller` may read what a transaction without puts and deletions reads.
///
/// # Errors
/// Why not.
pub fn authorize_reads(
    auth: &auth::State,
    caller: &Caller,
    request: &TxnRequest,
) -> Result<(), Error> {
    let permit = auth.permit(caller);
    check_txn(request, &|op| match op {
        Access::Read(key, range_end) => permit.read(key, range_end),
        Access::Put(_) | Access::Delete(_) => Ok(()),
    })
}

impl Store {
    /// Fails unless `caller` may execute `command`. The API layer checks what etcd does not
    /// check when it executes the command: compactions, alarms, and grants and renewals of leases.
    pub(crate) fn authorize(&self, command: &Command, caller: &Caller) -> Result<(), Error> {
        if !self.auth.is_enabled() || matches!(caller, Caller::Store) {
            return Ok(());
        }
        self.authorize_client(command, caller)
    }

    #[cold]
    fn authorize_client(&self, command: &Command, caller: &Caller) -> Result<(), Error> {
        let permit = self.auth.permit(caller);
        match command {
            Command::Put(request) => self.check_put(request, caller, &permit),
            Command::DeleteRange(request) => check_delete(request, &permit),
            Command::Txn(request) => check_txn(request, &|op| match op {
                Access::Read(key, range_end) => permit.read(key, range_end),
                Access::Put(request) => self.check_put(request, caller, &permit),
                Access::Delete(request) => check_delete(request, &permit),
            }),
            Command::LeaseRevoke { id } => self.check_lease(*id, caller, &permit),
            Command::Auth(_) => self.auth.check_admin(caller),
            Command::Compact { .. }
            | Command::LeaseGrant { .. }
            | Command::LeaseRenew { .. }
            | Command::Alarm { .. } => Ok(()),
        }
    }

    fn check_put(
        &self,
        request: &PutRequest,
        caller: &Caller,
        permit: &Permit<'_>,
    ) -> Result<(), Error> {
        permit.write(&request.key, &[])?;
        self.check_lease(request.lease, caller, permit)?;
        if request.prev_kv { permit.read(&request.key, &[]) } else { Ok(()) }
    }

    /// Fails unless the caller may write all keys that are attached to a lease: who attaches a
    /// key to it could otherwise not revoke it.
    fn check_lease(&self, id: i64, caller: &Caller, permit: &Permit<'_>) -> Result<(), Error> {
        match self.lease(id) {
            Some(lease) if !lease.keys.is_empty() && self.auth.check_admin(caller).is_err() => {
                permit.write_all(|spans| lease.has_key_outside(spans))
            }
            _ => Ok(()),
        }
    }
}

fn check_delete(request: &DeleteRangeRequest, permit: &Permit<'_>) -> Result<(), Error> {
    let DeleteRangeRequest { key, range_end, prev_kv } = request;
    permit.write(key, range_end)?;
    if *prev_kv { permit.read(key, range_end) } else { Ok(()) }
}

/// What an operation of a transaction needs.
enum Access<'a> {
    Read(&'a [u8], &'a [u8]),
    Put(&'a PutRequest),
    Delete(&'a DeleteRangeRequest),
}

/// Checks the compares and the operations of both branches, because the result tells which was
/// executed.
fn check_txn(
    request: &TxnRequest,
    check: &dyn Fn(Access<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    for compare in &request.compare {
        check(Access::Read(&compare.key, &compare.range_end))?;
    }
    let check_op = |op: &RequestOp| match &op.request {
        Some(Request::RequestRange(range)) => check(Access::Read(&range.key, &range.range_end)),
        Some(Request::RequestPut(put)) => check(Access::Put(put)),
        Some(Request::RequestDeleteRange(delete)) => check(Access::Delete(delete)),
        Some(Request::RequestTxn(nested)) => check_txn(nested, check),
        None => Ok(()),
    };
    request.success.iter().chain(&request.failure).try_for_each(check_op)
}

impl Lease {
    /// Whether a key is attached that is not in `spans`. The time does not depend on the number
    /// of keys.
    pub fn has_key_outside(&self, spans: &Spans) -> bool {
        spans.gaps().any(|gap| self.keys.range::<[u8], _>(gap).next().is_some())
    }
}
