//! Lease: keys that end with their owner.

use std::pin::Pin;

use etcdpb::rpc::lease_server::Lease;
use etcdpb::rpc::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use futures_util::{Stream, StreamExt};
use mvcc::Command;
use tonic::{Request, Response, Status, Streaming};

use super::{Api, status};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Lease for Api {
    type LeaseKeepAliveStream =
        Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Answer<LeaseGrantResponse> {
        let result = self.grant(request.into_inner()).await;
        self.outcome("etcdserverpb.Lease", "LeaseGrant", result)
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Answer<LeaseRevokeResponse> {
        let id = request.into_inner().id;
        let result = self.propose_done(Command::LeaseRevoke { id }).await;
        let result = result.map(|revision| LeaseRevokeResponse { header: self.header(revision) });
        self.outcome("etcdserverpb.Lease", "LeaseRevoke", result)
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        let api = self.clone();
        let answers = request.into_inner().then(move |request| {
            let api = api.clone();
            async move {
                let id = request?.id;
                // The header comes before the renewal: whoever sees it knows that
                // the lease lived at that revision.
                let header = api.header_now();
                let renewed = api.pipeline.lease_renew(id).await.map_err(status::from_pipeline)?;
                Ok(LeaseKeepAliveResponse { header, id, ttl: renewed.unwrap_or(0) })
            }
        });
        let stopped = self.stop.clone().cancelled_owned();
        Ok(Response::new(Box::pin(answers.take_until(stopped))))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Answer<LeaseTimeToLiveResponse> {
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
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
        self.outcome("etcdserverpb.Lease", "LeaseTimeToLive", Ok(response))
    }

    async fn lease_leases(&self, _: Request<LeaseLeasesRequest>) -> Answer<LeaseLeasesResponse> {
        let leases = self.pipeline.leases().into_iter().map(|id| LeaseStatus { id }).collect();
        let response = LeaseLeasesResponse { header: self.header_now(), leases };
        self.outcome("etcdserverpb.Lease", "LeaseLeases", Ok(response))
    }
}

impl Api {
    async fn grant(&self, request: LeaseGrantRequest) -> Result<LeaseGrantResponse, Status> {
        let id = if request.id != 0 { request.id } else { rand::random_range(1..=i64::MAX) };
        let ttl_seconds = self.pipeline.lease_ttl_seconds(request.ttl);
        let revision = self.propose_done(Command::LeaseGrant { id, ttl_seconds }).await?;
        let (header, error) = (self.header(revision), String::new());
        Ok(LeaseGrantResponse { header, id, ttl: ttl_seconds, error })
    }
}
