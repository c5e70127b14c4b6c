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

/// The permission to read. It holds for a revision of users and roles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadPermit {
    /// `None` if authentication is disabled.
    revision: Option<u64>,
}

impl ReadPermit {
    /// Fails if users or roles have changed since the permission was given. Call it after the
    /// read.
    pub(super) fn confirm(self, pipeline: &Pipeline) -> Result<(), pipeline::Error> {
        match self.revision {
            Some(revision) if revision != pipeline.auth().revision() => {
                Err(mvcc::Error::from(Error::OldRevision).into())
            }
            _ => Ok(()),
        }
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

    /// Permits to read the keys of a range.
    #[inline]
    pub(super) fn permit_range(
        &self,
        call: &Admission,
        request: &RangeRequest,
    ) -> Result<ReadPermit, Status> {
        if !self.pipeline.is_auth_enabled() {
            return Ok(ReadPermit::default());
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
        if !self.pipeline.is_auth_enabled() || !mvcc::is_read_only(request) {
            return Ok(ReadPermit::default());
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
        let revision = match caller {
            Caller::User { revision, .. } if auth.is_enabled() => Some(*revision),
            _ => None,
        };
        Ok(ReadPermit { revision })
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
            return Ok(ReadPermit::default());
        }
        let (caller, auth) = (self.caller(call)?, self.pipeline.auth());
        let has_key_outside = |spans: &Spans| self.pipeline.lease_has_key_outside(id, spans);
        // As in etcd, a lease without keys is not checked, and root needs no current token.
        let has_keys = || has_key_outside(&Spans::default());
        if auth.check_admin(&caller).is_err() && has_keys() {
            check(&auth.permit(&caller), &has_key_outside).map_err(status::from_auth)?;
        }
        Ok(ReadPermit { revision: auth.is_enabled().then(|| auth.revision()) })
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
