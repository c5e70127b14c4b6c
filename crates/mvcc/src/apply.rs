//! Executes commands. Keys, leases, alarms, users and roles change only in [`apply`] and in
//! [`Store::replay`].

use std::sync::Arc;

use auth::Caller;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest};

use crate::access::StoreAccess;
use crate::alarm::Alarm;
use crate::command::{Command, Reply};
use crate::effect::{Effect, Effects};
use crate::error::Error;
use crate::store::Store;
use crate::txn;
use crate::undo::Change;
use crate::write::{Write, check_put};

/// Executes a `command` of `caller` and appends its changes to `effects`, which have to be written
/// to the log.
///
/// # Errors
/// A rejected command changes nothing, with one exception: [`Error::NoSpace`] may raise an
/// alarm, which is then in `effects`.
pub fn apply(
    store: &mut impl StoreAccess,
    command: &Command,
    caller: &Caller,
    effects: &mut Effects,
) -> Result<Reply, Error> {
    // As in etcd, an alarm is reported to everybody, but only a permitted command raises one.
    store.check_alarms(command)?;
    store.authorize(command, caller)?;
    store.check_quota(command, effects)?;
    match command {
        Command::Put(request) => put(store, request, effects),
        Command::DeleteRange(request) => Ok(delete_range(store, request, effects)),
        Command::Txn(request) => txn::apply(store, request, effects),
        Command::Compact { revision } => store.compact(*revision, effects),
        Command::LeaseGrant { id, ttl_seconds } => store.grant(*id, *ttl_seconds, effects),
        Command::LeaseRenew { id } => store.renew(*id, effects),
        Command::LeaseRevoke { id } => revoke(store, *id, effects),
        Command::Alarm { alarm, raised } => Ok(store.alarm(*alarm, *raised, effects)),
        Command::Auth(command) => store.change_auth(command, effects),
    }
}

fn put(
    store: &mut impl StoreAccess,
    request: &PutRequest,
    effects: &mut Effects,
) -> Result<Reply, Error> {
    check_put(store, store.revision, request)?;
    let mut write = Write::new(store, effects);
    let response = write.put(request);
    write.finish();
    Ok(Reply::Put(response))
}

fn delete_range(
    store: &mut impl StoreAccess,
    request: &DeleteRangeRequest,
    effects: &mut Effects,
) -> Reply {
    let mut write = Write::new(store, effects);
    let response = write.delete_range(request);
    write.finish();
    Reply::DeleteRange(response)
}

fn revoke(store: &mut impl StoreAccess, id: i64, effects: &mut Effects) -> Result<Reply, Error> {
    store.leases.get(id).ok_or(Error::LeaseNotFound)?;
    let mut write = Write::new(store, effects);
    write.delete_lease_keys(id);
    write.finish();
    store.note_change(|store| {
        store.leases.granted(id).map(|granted| Change::Revoked { id, granted })
    });
    store.leases.remove(id);
    effects.push(Effect::LeaseRevoked { id });
    Ok(store.done_reply())
}

impl Store {
    /// Executes a `command` of the store itself without interruption: see [`apply`].
    ///
    /// # Errors
    /// As [`apply`].
    pub fn apply(&mut self, command: &Command, effects: &mut Effects) -> Result<Reply, Error> {
        let mut access = self;
        apply(&mut access, command, &Caller::Store, effects)
    }

    /// Makes the history before `revision` unreadable. [`Store::collect`] frees it later.
    fn compact(&mut self, revision: i64, effects: &mut Effects) -> Result<Reply, Error> {
        if revision <= self.compacted {
            return Err(Error::Compacted);
        }
        if revision > self.revision {
            return Err(Error::FutureRevision);
        }
        self.compacted = revision;
        if self.undo.is_none() {
            self.published_compacted = revision;
        }
        effects.push(Effect::Compacted { revision });
        Ok(self.done_reply())
    }

    fn grant(&mut self, id: i64, ttl_seconds: i64, effects: &mut Effects) -> Result<Reply, Error> {
        self.leases.check_grant(id, ttl_seconds)?;
        let at_ms = self.clock_ms;
        self.leases.insert(id, ttl_seconds, at_ms);
        self.note_change(|_| Some(Change::Granted(id)));
        effects.push(Effect::LeaseGranted { id, ttl_seconds, at_ms: Some(at_ms) });
        Ok(self.done_reply())
    }

    fn renew(&mut self, id: i64, effects: &mut Effects) -> Result<Reply, Error> {
        let ttl_start_ms = self.leases.renew(id, self.clock_ms)?;
        self.note_change(|_| Some(Change::Renewed { id, ttl_start_ms }));
        effects.push(Effect::LeaseRenewed { id, at_ms: self.clock_ms });
        Ok(self.done_reply())
    }

    fn alarm(&mut self, alarm: Alarm, raised: bool, effects: &mut Effects) -> Reply {
        let changed = self.set_alarm(alarm, raised, effects);
        Reply::Alarm { changed, revision: self.revision }
    }

    fn change_auth(
        &mut self,
        command: &auth::Command,
        effects: &mut Effects,
    ) -> Result<Reply, Error> {
        if let Some(change) = command.evaluate(&self.auth)? {
            Arc::make_mut(&mut self.auth).apply(&change);
            effects.push(Effect::Auth(change));
        }
        Ok(self.done_reply())
    }

    /// Returns the reply to a command that returns only the revision.
    fn done_reply(&self) -> Reply {
        Reply::Done { revision: self.revision }
    }
}
