//! Lease service.

use std::sync::Arc;

use etcdpb::rpc::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use futures_util::{Stream, StreamExt};
use grpc::{Admission, Encoded, Requests, SlowRead, Status};
use mvcc::Command;

use super::access::ReadPermit;
use super::service::{Api, SMALL_REQUEST_BYTES};
use super::{pieces, status};

impl Api {
    pub(super) async fn lease_grant(
        self: Arc<Self>,
        request: LeaseGrantRequest,
        admission: Admission,
    ) -> Result<LeaseGrantResponse, Status> {
        self.require_client(&admission)?;
        self.check_leader(&admission)?;
        let id = if request.id != 0 { request.id } else { rand::random_range(1..=i64::MAX) };
        let ttl_seconds = self.pipeline.lease_ttl_seconds(request.ttl);
        let grant = Command::LeaseGrant { id, ttl_seconds };
        let origin = self.origin(&admission)?;
        let revision = self.propose_without_result(origin, grant).await?;
        let (header, error) = (self.header(revision), String::new());
        Ok(LeaseGrantResponse { header, id, ttl: ttl_seconds, error })
    }

    pub(super) async fn lease_revoke(
        self: Arc<Self>,
        request: LeaseRevokeRequest,
        admission: Admission,
    ) -> Result<LeaseRevokeResponse, Status> {
        self.require_client(&admission)?;
        let revoke = Command::LeaseRevoke { id: request.id };
        let origin = self.origin(&admission)?;
        let revision = self.propose_without_result(origin, revoke).await?;
        Ok(LeaseRevokeResponse { header: self.header(revision) })
    }

    pub(super) fn lease_keep_alive(
        self: Arc<Self>,
        requests: Requests<LeaseKeepAliveRequest>,
        admission: Admission,
    ) -> impl Stream<Item = Result<LeaseKeepAliveResponse, Status>> {
        requests.then(move |request| {
            let (api, admission) = (self.clone(), admission.clone());
            async move {
                let id = request?.id;
                api.check_leader(&admission)?;
                // As in etcd, the header is taken before the renewal. Otherwise its
                // revision could be one at which the lease was already revoked.
                let header = api.header_now();
                api.check_lease_renewal(&admission, id)?;
                let renewed = api.pipeline.lease_renew(id).await.map_err(status::from_pipeline)?;
                Ok(LeaseKeepAliveResponse { header, id, ttl: renewed.unwrap_or(0) })
            }
        })
    }

    pub(super) async fn lease_time_to_live(
        self: Arc<Self>,
        request: LeaseTimeToLiveRequest,
        admission: Admission,
    ) -> Result<Encoded, Status> {
        self.require_client(&admission)?;
        let LeaseTimeToLiveRequest { id, keys } = request;
        self.linearize().await?;
        let permit = match keys {
            true => self.permit_lease_keys(&admission, id)?,
            false => ReadPermit::Always,
        };
        let mut response = LeaseTimeToLiveResponse {
            header: self.header_now(),
            id,
            ttl: -1,
            ..Default::default()
        };
        let Some((ttl, granted)) = self.pipeline.lease_time_to_live(id) else {
            return Ok(Encoded::new(&response));
        };
        (response.ttl, response.granted_ttl) = (ttl, granted);
        if !keys {
            return Ok(Encoded::new(&response));
        }
        let start = self.pipeline.read_start();
        if let Some(few) = self.pipeline.few_lease_keys(id) {
            self.confirm(permit)?;
            return Ok(pieces::encode_lease(&self.pipeline, start, response, few));
        }
        let read = move |slow: &SlowRead| {
            let stops = |held| slow.give_way_holding(held);
            let start = self.pipeline.read_start();
            let keys = self.pipeline.lease_keys_unless(id, &stops)?;
            permit.confirm(&self.pipeline)?;
            Ok(pieces::encode_lease(&self.pipeline, start, response, keys))
        };
        admission.run_slow(SMALL_REQUEST_BYTES, read).await?.map_err(status::from_pipeline)
    }

    pub(super) async fn lease_leases(
        self: Arc<Self>,
        _: LeaseLeasesRequest,
        admission: Admission,
    ) -> Result<Encoded, Status> {
        self.linearize().await?;
        let auth_enabled = self.pipeline.is_auth_enabled();
        if !auth_enabled && let Some(few) = self.pipeline.few_leases() {
            return Ok(self.encode_leases(few));
        }
        self.require_client(&admission)?;
        let caller = self.caller(&admission)?;
        let read = move |slow: &SlowRead| {
            if auth_enabled {
                self.check_all_leases(&caller, &|| slow.give_way())?;
            }
            let leases = self.pipeline.leases_unless(&|held| slow.give_way_holding(held))?;
            Ok(self.encode_leases(leases))
        };
        admission.run_slow(SMALL_REQUEST_BYTES, read).await?.map_err(status::from_pipeline)
    }

    fn encode_leases(&self, leases: Vec<i64>) -> Encoded {
        let leases = leases.into_iter().map(|id| LeaseStatus { id }).collect();
        Encoded::new(&LeaseLeasesResponse { header: self.header_now(), leases })
    }
}
