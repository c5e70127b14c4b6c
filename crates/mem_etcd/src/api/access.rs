//! Checks who a client is and what it may do, as etcd's API layer does. Commands that change keys,
//! users and roles are checked when they are executed (`mvcc/src/authorize.rs`).
//!
//! While authentication is disabled, a check is one load of an atomic flag.

use auth::{Caller, Error, Permit, Spans, State};
use etcdpb::rpc::{RangeRequest, TxnRequest, WatchCreateRequest};
use grpc::{Admission, Status};
use pipeline::{ClientId, Origin, Pipeline};

use super::service::Api;
use super::status;

/// The permission to read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadPermit {
    /// Nothing has to be confirmed.
    Always,
    /// Authentication was disabled. A member that has just started does not know yet that it is not.
    WhileDisabled,
    /// It holds for this revision of users and roles.
    Revision(u64),
}

impl ReadPermit {
    /// Fails if users or roles have changed since the permission was given. Call it after the
    /// read.
    pub(super) fn confirm(self, pipeline: &Pipeline) -> Result<(), pipeline::Error> {
        let holds = match self {
            ReadPermit::Always => true,
            ReadPermit::WhileDisabled => !pipeline.is_auth_enabled(),
            ReadPermit::Revision(revision) => revision == pipeline.auth().revision(),
        };
        holds.then_some(()).ok_or_else(|| mvcc::Error::from(Error::OldRevision).into())
    }
}

impl Api {
    /// Returns who has sent a call.
    #[inline]
    pub(super) fn caller(&self, call: &Admission) -> Result<Caller, Status> {
        match self.pipeline.is_auth_enabled() {
            true => self.authenticated(call),
            false => Ok(Caller::Anonymous),
        }
    }

    #[cold]
    fn authenticated(&self, call: &Admission) -> Result<Caller, Status> {
        let revision = self.pipeline.auth().revision();
        self.credentials.caller(call, revision).map_err(status::from_auth)
    }

    /// Returns the origin of the command of a call.
    #[inline]
    pub(super) fn origin(&self, call: &Admission) -> Result<Origin, Status> {
        Ok(Origin { client: ClientId(call.connection()), caller: self.caller(call)? })
    }

    /// Fails if authentication is enabled, unless the client has said who it is.
    pub(super) fn require_client(&self, call: &Admission) -> Result<(), Status> {
        match self.caller(call)? {
            Caller::Anonymous if self.pipeline.is_auth_enabled() => {
                Err(status::from_auth(Error::UserEmpty))
            }
            _ => Ok(()),
        }
    }

    /// Fails if authentication is enabled, unless the client has the role root.
    pub(super) fn require_admin(&self, call: &Admission) -> Result<(), Status> {
        if !self.pipeline.is_auth_enabled() {
            return Ok(());
        }
        let caller = self.caller(call)?;
        self.pipeline.auth().check_admin(&caller).map_err(status::from_auth)
    }

    /// As [`Api::require_admin`], for what is not checked again when it is executed. Waits until this
    /// member knows all changes of users and roles that were acknowledged before.
    pub(super) async fn require_admin_now(&self, call: &Admission) -> Result<(), Status> {
        self.linearize().await?;
        self.require_admin(call)
    }

    /// Permits to read the keys of a range.
    #[inline]
    pub(super) fn permit_range(
        &self,
        call: &Admission,
        request: &RangeRequest,
    ) -> Result<ReadPermit, Status> {
        if !self.pipeline.is_auth_enabled() {
            return Ok(ReadPermit::WhileDisabled);
        }
        let caller = self.caller(call)?;
        self.permit(&caller, |auth| auth.permit(&caller).read(&request.key, &request.range_end))
    }

    /// Permits to read what a transaction without puts and deletions reads. Other transactions are
    /// checked when they are executed.
    #[inline]
    pub(super) fn permit_reads_of(
        &self,
        caller: &Caller,
        request: &TxnRequest,
    ) -> Result<ReadPermit, Status> {
        if !mvcc::is_read_only(request) {
            return Ok(ReadPermit::Always);
        }
        if !self.pipeline.is_auth_enabled() {
            return Ok(ReadPermit::WhileDisabled);
        }
        self.permit(caller, |auth| mvcc::authorize_reads(auth, caller, request))
    }

    /// Fails if users or roles have changed since the permission was given. Call it after the
    /// read.
    #[inline]
    pub(super) fn confirm(&self, permit: ReadPermit) -> Result<(), Status> {
        permit.confirm(&self.pipeline).map_err(status::from_pipeline)
    }

    fn permit(
        &self,
        caller: &Caller,
        check: impl FnOnce(&State) -> Result<(), Error>,
    ) -> Result<ReadPermit, Status> {
        let auth = self.pipeline.auth();
        check(&auth).map_err(status::from_auth)?;
        Ok(match caller {
            Caller::User { revision, .. } if auth.is_enabled() => ReadPermit::Revision(*revision),
            _ => ReadPermit::Always,
        })
    }

    /// Fails unless the client may watch a range. `key` is its first key. Returns why not, in the
    /// words of etcd.
    pub(super) fn check_watch(
        &self,
        call: &Admission,
        key: &[u8],
        request: &WatchCreateRequest,
    ) -> Result<(), &'static str> {
        if !self.pipeline.is_auth_enabled() {
            return Ok(());
        }
        let auth = self.pipeline.auth();
        let caller = self.credentials.caller(call, auth.revision());
        caller
            .and_then(|caller| auth.permit(&caller).read(key, &request.range_end))
            .map_err(status::watch_refusal)
    }

    /// Fails unless the client may renew a lease: it needs permission to write its keys.
    pub(super) fn check_lease_renewal(&self, call: &Admission, id: i64) -> Result<(), Status> {
        self.require_client(call)?;
        let permit = self
            .permit_lease(call, id, |permit, has_key_outside| permit.write_all(has_key_outside))?;
        self.confirm(permit)
    }

    /// Permits to see the keys of a lease.
    pub(super) fn permit_lease_keys(
        &self,
        call: &Admission,
        id: i64,
    ) -> Result<ReadPermit, Status> {
        self.permit_lease(call, id, |permit, has_key_outside| permit.read_all(has_key_outside))
    }

    fn permit_lease(
        &self,
        call: &Admission,
        id: i64,
        check: impl FnOnce(&Permit<'_>, &dyn Fn(&Spans) -> bool) -> Result<(), Error>,
    ) -> Result<ReadPermit, Status> {
        if !self.pipeline.is_auth_enabled() {
            return Ok(ReadPermit::WhileDisabled);
        }
        let (caller, auth) = (self.caller(call)?, self.pipeline.auth());
        let has_key_outside = |spans: &Spans| self.pipeline.lease_has_key_outside(id, spans);
        // As in etcd, a lease without keys is not checked, and root needs no current token.
        let has_keys = || has_key_outside(&Spans::default());
        if auth.check_admin(&caller).is_err() && has_keys() {
            check(&auth.permit(&caller), &has_key_outside).map_err(status::from_auth)?;
        }
        Ok(match auth.is_enabled() {
            true => ReadPermit::Revision(auth.revision()),
            false => ReadPermit::WhileDisabled,
        })
    }

    /// Fails unless the caller may see that all leases exist: it needs permission to read all their
    /// keys. `stops` ends the check early; it is called between its steps.
    pub(super) fn check_all_leases(
        &self,
        caller: &Caller,
        stops: &dyn Fn() -> bool,
    ) -> Result<(), pipeline::Error> {
        let auth = self.pipeline.auth();
        let any = |spans: &Spans| self.pipeline.any_lease_key_outside_unless(spans, stops);
        if auth.check_admin(caller).is_ok() || !any(&Spans::default())? {
            return Ok(());
        }
        let mut outside = Ok(false);
        let permitted = auth.permit(caller).read_all(|spans| {
            outside = any(spans);
            !matches!(outside, Ok(false))
        });
        outside?;
        permitted.map_err(mvcc::Error::from)?;
        match auth.revision() == self.pipeline.auth().revision() {
            true => Ok(()),
            false => Err(mvcc::Error::from(Error::OldRevision).into()),
        }
    }
}
