//! Auth service. Authentication is not implemented. The responses are those of an etcd on
//! which authentication was never enabled.

use std::sync::Arc;

use etcdpb::rpc::{AuthMessage, AuthStatusRequest, AuthStatusResponse};
use grpc::Status;

use super::service::Api;
use super::status;

impl Api {
    pub(super) async fn auth_status(
        self: Arc<Self>,
        _: AuthStatusRequest,
    ) -> Result<AuthStatusResponse, Status> {
        let header = self.header_now();
        Ok(AuthStatusResponse { header, enabled: false, auth_revision: 1 })
    }

    /// Responds to all other methods of the service: users, roles, tokens.
    pub(super) async fn reject_auth(
        self: Arc<Self>,
        _: AuthMessage,
    ) -> Result<AuthMessage, Status> {
        Err(status::auth_not_enabled())
    }
}
