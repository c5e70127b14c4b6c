//! Auth: not built. Every request is answered as by an etcd on which
//! authentication was never enabled.

use etcdpb::rpc::auth_server::Auth;
use etcdpb::rpc::{AuthMessage, AuthStatusRequest, AuthStatusResponse};
use tonic::{Request, Response, Status};

use super::{Api, status};

const SERVICE: &str = "etcdserverpb.Auth";

macro_rules! refuse {
    ($($method:ident $name:literal,)*) => {
        #[tonic::async_trait]
        impl Auth for Api {
            async fn auth_status(
                &self,
                _: Request<AuthStatusRequest>,
            ) -> Result<Response<AuthStatusResponse>, Status> {
                let header = self.header_now();
                let response = AuthStatusResponse { header, enabled: false, auth_revision: 1 };
                self.outcome(SERVICE, "AuthStatus", Ok(response))
            }

            $(async fn $method(
                &self,
                _: Request<AuthMessage>,
            ) -> Result<Response<AuthMessage>, Status> {
                self.outcome(SERVICE, $name, Err(status::auth_not_enabled()))
            })*
        }
    };
}

refuse! {
    auth_enable "AuthEnable",
    auth_disable "AuthDisable",
    authenticate "Authenticate",
    user_add "UserAdd",
    user_get "UserGet",
    user_list "UserList",
    user_delete "UserDelete",
    user_change_password "UserChangePassword",
    user_grant_role "UserGrantRole",
    user_revoke_role "UserRevokeRole",
    role_add "RoleAdd",
    role_get "RoleGet",
    role_list "RoleList",
    role_delete "RoleDelete",
    role_grant_permission "RoleGrantPermission",
    role_revoke_permission "RoleRevokePermission",
}
