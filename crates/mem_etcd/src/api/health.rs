//! gRPC's health service. As in etcd, the only service that it knows is the one with an
//! empty name, which is the whole server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcdpb::health::health_check_response::ServingStatus;
use etcdpb::health::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use futures_util::stream::{self, Stream};
use grpc::{Admission, Status};

use super::service::Api;
use super::status;

/// Interval at which a health watch checks for a change.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Api {
    pub(super) async fn health_check(
        self: Arc<Self>,
        request: HealthCheckRequest,
    ) -> Result<HealthCheckResponse, Status> {
        match self.health_of(&request.service) {
            ServingStatus::ServiceUnknown => Err(status::unknown_service()),
            health => Ok(HealthCheckResponse { status: health as i32 }),
        }
    }

    pub(super) async fn health_list(
        self: Arc<Self>,
        _: HealthListRequest,
    ) -> Result<HealthListResponse, Status> {
        let status = HealthCheckResponse { status: self.health_of("") as i32 };
        Ok(HealthListResponse { statuses: HashMap::from([(String::new(), status)]) })
    }

    /// Streams the current health, and then each change.
    pub(super) fn health_watch(
        self: Arc<Self>,
        request: HealthCheckRequest,
        _: Admission,
    ) -> impl Stream<Item = Result<HealthCheckResponse, Status>> {
        let before = None;
        stream::unfold((self, request, before), |(api, request, before)| async move {
            let mut now = api.health_of(&request.service);
            while before == Some(now) {
                tokio::time::sleep(CHECK_INTERVAL).await;
                now = api.health_of(&request.service);
            }
            let response = HealthCheckResponse { status: now as i32 };
            Some((Ok(response), (api, request, Some(now))))
        })
    }

    /// Returns the health of a service. The server is not serving after the log has
    /// failed.
    fn health_of(&self, service: &str) -> ServingStatus {
        match () {
            () if !service.is_empty() => ServingStatus::ServiceUnknown,
            () if self.pipeline.status().failure.is_some() => ServingStatus::NotServing,
            () => ServingStatus::Serving,
        }
    }
}
