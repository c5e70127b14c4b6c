//! Lease service.

use std::sync::Arc;

use etcdpb::rpc::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use futures_util::{Stream, StreamExt};
use grpc::{Requests, Status};
use mvcc::Command;

use super::service::Api;
use super::status;

impl Api {
    pub(super) async fn lease_grant(
        self: Arc<Self>,
        request: LeaseGrantRequest,
    ) -> Result<LeaseGrantResponse, Status> {
        let id = if request.id != 0 { request.id } else { rand::random_range(1..=i64::MAX) };
        let ttl_seconds = self.pipeline.lease_ttl_seconds(request.ttl);
        let revision = self.propose_without_result(Command::LeaseGrant { id, ttl_seconds }).await?;
        let (header, error) = (self.header(revision), String::new());
        Ok(LeaseGrantResponse { header, id, ttl: ttl_seconds, error })
    }

    pub(super) async fn lease_revoke(
        self: Arc<Self>,
        request: LeaseRevokeRequest,
    ) -> Result<LeaseRevokeResponse, Status> {
        let revision = self.propose_without_result(Command::LeaseRevoke { id: request.id }).await?;
        Ok(LeaseRevokeResponse { header: self.header(revision) })
    }

    pub(super) fn lease_keep_alive(
        self: Arc<Self>,
        requests: Requests<LeaseKeepAliveRequest>,
    ) -> impl Stream<Item = Result<LeaseKeepAliveResponse, Status>> {
        requests.then(move |request| {
            let api = self.clone();
            async move {
                let id = request?.id;
                // As in etcd, the header is taken before the renewal. Otherwise its
                // revision could be one at which the lease was already revoked.
                let header = api.header_now();
                let renewed = api.pipeline.lease_renew(id).await.map_err(status::from_pipeline)?;
                Ok(LeaseKeepAliveResponse { header, id, ttl: renewed.unwrap_or(0) })
            }
        })
    }

    pub(super) async fn lease_time_to_live(
        self: Arc<Self>,
        request: LeaseTimeToLiveRequest,
    ) -> Result<LeaseTimeToLiveResponse, Status> {
        let LeaseTimeToLiveRequest { id, keys } = request;
        let mut response = LeaseTimeToLiveResponse {
            header: self.header_now(),
            id,
            ttl: -1,
            ..Default::default()
        };
        if let Some((ttl, granted, attached)) = self.pipeline.lease_time_to_live(id) {
            (response.ttl, response.granted_ttl) = (ttl, granted);
            if keys {
                let copy = |key: &etcdpb::Key| key.as_bytes().to_vec().into();
                response.keys = attached.iter().map(copy).collect();
            }
        }
        Ok(response)
    }

    pub(super) async fn lease_leases(
        self: Arc<Self>,
        _: LeaseLeasesRequest,
    ) -> Result<LeaseLeasesResponse, Status> {
        let leases = self.pipeline.leases().into_iter().map(|id| LeaseStatus { id }).collect();
        Ok(LeaseLeasesResponse { header: self.header_now(), leases })
    }
}
