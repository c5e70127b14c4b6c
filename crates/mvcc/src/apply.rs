//! Executes commands. Keys, leases and alarms change only in [`Store::apply`] and in
//! [`Store::replay`].

use etcdpb::Record;
use etcdpb::rpc::{DeleteRangeRequest, PutRequest};

use crate::alarm::Alarm;
use crate::command::{Command, Reply};
use crate::effect::{Effect, Effects};
use crate::error::Error;
use crate::store::Store;
use crate::txn;
use crate::write::{Write, check_put};

impl Store {
    /// Executes `command` and appends its changes to `effects`. The caller writes them to
    /// the log.
    ///
    /// # Errors
    /// A rejected command changes nothing, with one exception: [`Error::NoSpace`] may
    /// raise an alarm, which is then in `effects`.
    pub fn apply(&mut self, command: &Command, effects: &mut Effects) -> Result<Reply, Error> {
        self.admit(command, effects)?;
        match command {
            Command::Put(request) => self.put(request, effects),
            Command::DeleteRange(request) => Ok(self.delete_range(request, effects)),
            Command::Txn(request) => txn::apply(self, request, effects).map(Reply::Txn),
            Command::Compact { revision } => self.compact(*revision, effects),
            Command::LeaseGrant { id, ttl_seconds } => self.grant(*id, *ttl_seconds, effects),
            Command::LeaseRenew { id } => self.renew(*id, effects),
            Command::LeaseRevoke { id } => self.revoke(*id, effects),
            Command::Alarm { alarm, raised } => Ok(self.alarm(*alarm, *raised, effects)),
        }
    }

    fn put(&mut self, request: &PutRequest, effects: &mut Effects) -> Result<Reply, Error> {
        check_put(self, self.revision, request)?;
        let mut write = Write::new(self, effects);
        let response = write.put(request);
        write.finish();
        Ok(Reply::Put(response))
    }

    fn delete_range(&mut self, request: &DeleteRangeRequest, effects: &mut Effects) -> Reply {
        let mut write = Write::new(self, effects);
        let response = write.delete_range(request);
        write.finish();
        Reply::DeleteRange(response)
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
        effects.push(Effect::Compacted { revision });
        Ok(self.done_reply())
    }

    fn grant(&mut self, id: i64, ttl_seconds: i64, effects: &mut Effects) -> Result<Reply, Error> {
        self.leases.check_grant(id, ttl_seconds)?;
        let at_ms = self.clock_ms;
        self.leases.insert(id, ttl_seconds, at_ms);
        effects.push(Effect::LeaseGranted { id, ttl_seconds, at_ms: Some(at_ms) });
        Ok(self.done_reply())
    }

    fn renew(&mut self, id: i64, effects: &mut Effects) -> Result<Reply, Error> {
        self.leases.renew(id, self.clock_ms)?;
        effects.push(Effect::LeaseRenewed { id, at_ms: self.clock_ms });
        Ok(self.done_reply())
    }

    fn revoke(&mut self, id: i64, effects: &mut Effects) -> Result<Reply, Error> {
        let lease = self.leases.get(id).ok_or(Error::LeaseNotFound)?;
        let keys: Vec<_> = lease.keys.iter().cloned().collect();
        let mut write = Write::new(self, effects);
        for key in keys {
            write.add(Record::tombstone(key, write.next_revision));
        }
        write.finish();
        self.leases.remove(id);
        effects.push(Effect::LeaseRevoked { id });
        Ok(self.done_reply())
    }

    fn alarm(&mut self, alarm: Alarm, raised: bool, effects: &mut Effects) -> Reply {
        let changed = self.set_alarm(alarm, raised, effects);
        Reply::Alarm { changed, revision: self.revision }
    }

    /// Returns the reply to a command that returns only the revision.
    fn done_reply(&self) -> Reply {
        Reply::Done { revision: self.revision }
    }
}
