//! Admission: rejects commands because of the quota and of alarms. As in etcd, the size
//! of a command is estimated from the request alone.

use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{PutRequest, RequestOp, TxnRequest};

use crate::alarm::{Alarm, AlarmKind, Quota};
use crate::command::Command;
use crate::effect::{Effect, Effects};
use crate::error::Error;
use crate::store::Store;
use crate::undo::Change;

/// Estimated bytes that the store needs for a key-value pair, in addition to the key and
/// the value.
const KEY_OVERHEAD_BYTES: usize = 256;
/// Estimated size of a lease in bytes.
const LEASE_OVERHEAD_BYTES: usize = 64;

impl Store {
    /// Returns the raised alarms, ordered by kind and member.
    pub fn alarms(&self) -> impl Iterator<Item = Alarm> {
        self.alarms.iter()
    }

    /// Sets the quota. The log does not contain it, so it must be set after each start.
    pub fn set_quota(&mut self, quota: Quota) {
        self.quota = quota;
    }

    /// Raises or clears an alarm. Returns whether this changed its state.
    pub(crate) fn set_alarm(&mut self, alarm: Alarm, raised: bool, effects: &mut Effects) -> bool {
        let changed = self.alarms.set(alarm, raised);
        if changed {
            self.note_change(|_| Some(Change::Alarm { alarm, was_raised: !raised }));
            effects.push(Effect::Alarm { alarm, raised });
        }
        changed
    }

    /// Fails if an alarm forbids `command`.
    pub(crate) fn check_alarms(&self, command: &Command) -> Result<(), Error> {
        // As in etcd, alarms do not block lease renewals, and changes of users and roles. Alarm
        // commands must pass, so that a client can clear an alarm.
        if self.alarms.is_empty()
            || matches!(
                command,
                Command::Alarm { .. } | Command::LeaseRenew { .. } | Command::Auth(_)
            )
        {
            return Ok(());
        }
        if self.alarms.is_raised(AlarmKind::Corrupt) {
            return Err(Error::Corrupt);
        }
        match self.alarms.is_raised(AlarmKind::NoSpace) && added_bytes(command) > 0 {
            true => Err(Error::NoSpace),
            false => Ok(()),
        }
    }

    /// Fails if `command` exceeds the quota. It then raises a NOSPACE alarm, which stays raised
    /// until a client clears it.
    pub(crate) fn check_quota(
        &mut self,
        command: &Command,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        if self.quota.bytes == 0 {
            return Ok(());
        }
        let added = added_bytes(command);
        if added == 0 || self.stats().total_bytes.saturating_add(added) < self.quota.bytes {
            return Ok(());
        }
        let alarm = Alarm { kind: AlarmKind::NoSpace, member_id: self.quota.member_id };
        self.set_alarm(alarm, true, effects);
        Err(Error::NoSpace)
    }
}

/// Returns the estimated number of bytes that `command` adds to the store; 0 for a
/// command that only reads or deletes.
fn added_bytes(command: &Command) -> i64 {
    let bytes = match command {
        Command::Put(request) => put_bytes(request),
        Command::Txn(request) => txn_bytes(request),
        Command::LeaseGrant { .. } => LEASE_OVERHEAD_BYTES,
        Command::DeleteRange(_)
        | Command::Compact { .. }
        | Command::LeaseRenew { .. }
        | Command::LeaseRevoke { .. }
        | Command::Alarm { .. }
        | Command::Auth(_) => 0,
    };
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn put_bytes(request: &PutRequest) -> usize {
    KEY_OVERHEAD_BYTES + request.key.len() + request.value.len()
}

/// Returns the estimate for the branch that adds more bytes.
fn txn_bytes(request: &TxnRequest) -> usize {
    let branch_bytes = |ops: &[RequestOp]| -> usize {
        let op_bytes = |op: &RequestOp| match &op.request {
            Some(Request::RequestPut(request)) => put_bytes(request),
            Some(Request::RequestTxn(nested)) => txn_bytes(nested),
            Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => 0,
        };
        ops.iter().map(op_bytes).sum()
    };
    branch_bytes(&request.success).max(branch_bytes(&request.failure))
}
