//! Auth service: users, roles and tokens. The rules are in the crate `auth`.

use std::sync::Arc;

use auth::{Command, Error, ROOT, State};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use etcdpb::authpb;
use etcdpb::authpb::permission::Type;
use etcdpb::rpc::{
    AuthDisableRequest, AuthDisableResponse, AuthEnableRequest, AuthEnableResponse,
    AuthRoleAddRequest, AuthRoleAddResponse, AuthRoleDeleteRequest, AuthRoleDeleteResponse,
    AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
    AuthRoleGrantPermissionResponse, AuthRoleListRequest, AuthRoleListResponse,
    AuthRoleRevokePermissionRequest, AuthRoleRevokePermissionResponse, AuthStatusRequest,
    AuthStatusResponse, AuthUserAddRequest, AuthUserAddResponse, AuthUserChangePasswordRequest,
    AuthUserChangePasswordResponse, AuthUserDeleteRequest, AuthUserDeleteResponse,
    AuthUserGetRequest, AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserGrantRoleResponse,
    AuthUserListRequest, AuthUserListResponse, AuthUserRevokeRoleRequest,
    AuthUserRevokeRoleResponse, AuthenticateRequest, AuthenticateResponse, ResponseHeader,
};
use grpc::{Admission, SlowRead, Status};
use mvcc::Reply;
use prost::Message;

use super::service::Api;
use super::status;
use crate::credentials::password;

type Header = Option<ResponseHeader>;

/// Whether authentication is enabled.
impl Api {
    pub(super) async fn auth_enable(
        self: Arc<Self>,
        request: AuthEnableRequest,
        admission: Admission,
    ) -> Result<AuthEnableResponse, Status> {
        if self.pipeline.raft_term().is_some() && self.credentials.are_local() {
            return Err(Status::failed_precondition(
                "mem_etcd: the members of a cluster do not share simple tokens: start all of them with --auth-token jwt,... or with --auth-token '' and client certificates",
            ));
        }
        let header = self.change_auth(&admission, &request, Command::Enable).await?;
        tracing::info!("enabled authentication");
        Ok(AuthEnableResponse { header })
    }

    pub(super) async fn auth_disable(
        self: Arc<Self>,
        request: AuthDisableRequest,
        admission: Admission,
    ) -> Result<AuthDisableResponse, Status> {
        let header = self.change_auth(&admission, &request, Command::Disable).await?;
        self.credentials.forget_all();
        tracing::info!("disabled authentication");
        Ok(AuthDisableResponse { header })
    }

    pub(super) async fn auth_status(
        self: Arc<Self>,
        _: AuthStatusRequest,
        admission: Admission,
    ) -> Result<AuthStatusResponse, Status> {
        self.caller(&admission)?;
        self.linearize().await?;
        let (auth, header) = (self.pipeline.auth(), self.header_now());
        let (enabled, auth_revision) = (auth.is_enabled(), auth.revision());
        Ok(AuthStatusResponse { header, enabled, auth_revision })
    }

    /// Issues a token for a user and a password.
    pub(super) async fn authenticate(
        self: Arc<Self>,
        request: AuthenticateRequest,
        admission: Admission,
    ) -> Result<AuthenticateResponse, Status> {
        let bytes = request.encoded_len();
        let AuthenticateRequest { name, password } = request;
        loop {
            let auth = self.pipeline.auth();
            let hash = password_hash(&auth, &name)?;
            let given = password.clone();
            let compare = move |_: &SlowRead| password::matches(&given, &hash);
            if !admission.run_slow(bytes, compare).await? {
                tracing::warn!(user_name = name, "invalid password");
                return Err(status::from_auth(Error::AuthFailed));
            }
            let number = self.pipeline.revision();
            let token = self.credentials.issue(&name, auth.revision(), number)?;
            // If the password was changed meanwhile, the token must not be used.
            if auth.revision() == self.pipeline.auth().revision() {
                return Ok(AuthenticateResponse { header: self.header_now(), token });
            }
            self.credentials.forget(&token);
        }
    }
}

/// Users.
impl Api {
    pub(super) async fn user_add(
        self: Arc<Self>,
        request: AuthUserAddRequest,
        admission: Admission,
    ) -> Result<AuthUserAddResponse, Status> {
        let no_password = request.options.as_ref().is_some_and(|options| options.no_password);
        let password_hash = match no_password {
            true => Vec::new(),
            false => self.hash_password(&admission, &request.password).await?,
        };
        let name = request.name.clone();
        let command = Command::UserAdd { name, password_hash, no_password };
        let header = self.change_auth(&admission, &request, command).await?;
        Ok(AuthUserAddResponse { header })
    }

    pub(super) async fn user_get(
        self: Arc<Self>,
        request: AuthUserGetRequest,
        admission: Admission,
    ) -> Result<AuthUserGetResponse, Status> {
        self.linearize().await?;
        let caller = self.caller(&admission)?;
        let auth = self.pipeline.auth();
        match auth.check_admin(&caller) {
            // Users may see themselves.
            Err(error) if request.name != caller.name() => return Err(status::from_auth(error)),
            _ => {}
        }
        let user = auth.user(&request.name);
        let user = user.ok_or_else(|| status::from_auth(Error::UserNotFound))?;
        Ok(AuthUserGetResponse { header: self.header_now(), roles: user.roles.clone() })
    }

    pub(super) async fn user_list(
        self: Arc<Self>,
        _: AuthUserListRequest,
        admission: Admission,
    ) -> Result<AuthUserListResponse, Status> {
        self.linearize().await?;
        self.require_admin(&admission)?;
        let users = self.pipeline.auth().users().map(|(name, _)| name.to_string()).collect();
        Ok(AuthUserListResponse { header: self.header_now(), users })
    }

    pub(super) async fn user_delete(
        self: Arc<Self>,
        request: AuthUserDeleteRequest,
        admission: Admission,
    ) -> Result<AuthUserDeleteResponse, Status> {
        let command = Command::UserDelete { name: request.name.clone() };
        let header = self.change_auth(&admission, &request, command).await?;
        self.credentials.forget_user(&request.name);
        Ok(AuthUserDeleteResponse { header })
    }

    pub(super) async fn user_change_password(
        self: Arc<Self>,
        request: AuthUserChangePasswordRequest,
        admission: Admission,
    ) -> Result<AuthUserChangePasswordResponse, Status> {
        let password_hash = match request.password.is_empty() {
            true => self.decode_hash(&admission, &request)?,
            false => self.hash_password(&admission, &request.password).await?,
        };
        let name = request.name.clone();
        let command = Command::UserChangePassword { name, password_hash };
        let header = self.change_auth(&admission, &request, command).await?;
        self.credentials.forget_user(&request.name);
        Ok(AuthUserChangePasswordResponse { header })
    }

    pub(super) async fn user_grant_role(
        self: Arc<Self>,
        request: AuthUserGrantRoleRequest,
        admission: Admission,
    ) -> Result<AuthUserGrantRoleResponse, Status> {
        let (user, role) = (request.user.clone(), request.role.clone());
        let command = Command::UserGrantRole { user, role };
        let header = self.change_auth(&admission, &request, command).await?;
        Ok(AuthUserGrantRoleResponse { header })
    }

    pub(super) async fn user_revoke_role(
        self: Arc<Self>,
        request: AuthUserRevokeRoleRequest,
        admission: Admission,
    ) -> Result<AuthUserRevokeRoleResponse, Status> {
        let (user, role) = (request.name.clone(), request.role.clone());
        let command = Command::UserRevokeRole { user, role };
        let header = self.change_auth(&admission, &request, command).await?;
        Ok(AuthUserRevokeRoleResponse { header })
    }
}

/// Roles.
impl Api {
    pub(super) async fn role_add(
        self: Arc<Self>,
        request: AuthRoleAddRequest,
        admission: Admission,
    ) -> Result<AuthRoleAddResponse, Status> {
        let command = Command::RoleAdd { name: request.name.clone() };
        let header = self.change_auth(&admission, &request, command).await?;
        Ok(AuthRoleAddResponse { header })
    }

    pub(super) async fn role_get(
        self: Arc<Self>,
        request: AuthRoleGetRequest,
        admission: Admission,
    ) -> Result<AuthRoleGetResponse, Status> {
        self.linearize().await?;
        let caller = self.caller(&admission)?;
        let auth = self.pipeline.auth();
        // Users may see their roles.
        let is_own = || auth.user(caller.name()).is_some_and(|user| user.has_role(&request.role));
        match auth.check_admin(&caller) {
            Err(error) if !is_own() => return Err(status::from_auth(error)),
            _ => {}
        }
        let role = auth.role(&request.role);
        let role = role.ok_or_else(|| status::from_auth(Error::RoleNotFound))?;
        let perm = match request.role == ROOT {
            true => vec![root_permission()],
            false => role.permissions.clone(),
        };
        Ok(AuthRoleGetResponse { header: self.header_now(), perm })
    }

    pub(super) async fn role_list(
        self: Arc<Self>,
        _: AuthRoleListRequest,
        admission: Admission,
    ) -> Result<AuthRoleListResponse, Status> {
        self.linearize().await?;
        self.require_admin(&admission)?;
        let roles = self.pipeline.auth().roles().map(|(name, _)| name.to_string()).collect();
        Ok(AuthRoleListResponse { header: self.header_now(), roles })
    }

    pub(super) async fn role_delete(
        self: Arc<Self>,
        request: AuthRoleDeleteRequest,
        admission: Admission,
    ) -> Result<AuthRoleDeleteResponse, Status> {
        let command = Command::RoleDelete { name: request.role.clone() };
        let header = self.change_auth(&admission, &request, command).await?;
        Ok(AuthRoleDeleteResponse { header })
    }

    pub(super) async fn role_grant_permission(
        self: Arc<Self>,
        request: AuthRoleGrantPermissionRequest,
        admission: Admission,
    ) -> Result<AuthRoleGrantPermissionResponse, Status> {
        let (role, permission) = (request.name.clone(), request.perm.clone());
        let command = Command::RoleGrantPermission { role, permission };
        let header = self.change_auth(&admission, &request, command).await?;
        Ok(AuthRoleGrantPermissionResponse { header })
    }

    pub(super) async fn role_revoke_permission(
        self: Arc<Self>,
        request: AuthRoleRevokePermissionRequest,
        admission: Admission,
    ) -> Result<AuthRoleRevokePermissionResponse, Status> {
        let (key, range_end) = (request.key.to_vec(), request.range_end.to_vec());
        let role = request.role.clone();
        let command = Command::RoleRevokePermission { role, key, range_end };
        let header = self.change_auth(&admission, &request, command).await?;
        Ok(AuthRoleRevokePermissionResponse { header })
    }
}

impl Api {
    /// Executes a command that changes users or roles. Returns the header of the response.
    async fn change_auth(
        &self,
        admission: &Admission,
        request: &impl Message,
        command: Command,
    ) -> Result<Header, Status> {
        let origin = self.origin(admission)?;
        let bytes = self.checked_size(request)?;
        match self.propose(origin, mvcc::Command::Auth(command), bytes).await? {
            Reply::Done { revision } => Ok(self.header(revision)),
            other => unreachable!("not the reply to a command without a result: {other:?}"),
        }
    }

    /// Hashes a new password. Only for clients that may set one: hashing takes long.
    async fn hash_password(
        &self,
        admission: &Admission,
        password: &str,
    ) -> Result<Vec<u8>, Status> {
        if password.len() > password::MAX_BYTES {
            return Err(Status::unknown("bcrypt: password length exceeds 72 bytes"));
        }
        self.require_admin(admission)?;
        let (password, cost) = (password.to_owned(), self.credentials.bcrypt_cost());
        let bytes = password.len();
        admission.run_slow(bytes, move |_: &SlowRead| password::hash(&password, cost)).await
    }

    /// Returns the hash that a request has instead of a password. Without either, the user can no
    /// longer authenticate with a password.
    fn decode_hash(
        &self,
        admission: &Admission,
        request: &AuthUserChangePasswordRequest,
    ) -> Result<Vec<u8>, Status> {
        if let Ok(hash) = BASE64_STANDARD.decode(&request.hashed_password) {
            return Ok(hash);
        }
        self.require_admin(admission)?;
        match self.pipeline.auth().user(&request.name) {
            None => Err(status::from_auth(Error::UserNotFound)),
            Some(user) if user.no_password => Ok(Vec::new()),
            Some(_) => Err(no_password_user()),
        }
    }
}

/// Returns the password hash of a user who may authenticate with a password.
fn password_hash(auth: &State, name: &str) -> Result<Vec<u8>, Status> {
    if !auth.is_enabled() {
        return Err(status::from_auth(Error::NotEnabled));
    }
    let user = auth.user(name).ok_or_else(|| status::from_auth(Error::AuthFailed))?;
    match user.no_password {
        true => Err(no_password_user()),
        false => Ok(user.password_hash.clone()),
    }
}

fn no_password_user() -> Status {
    Status::unknown("auth: authentication failed, password was given for no password user")
}

/// The permission of the role root, which is not stored.
fn root_permission() -> authpb::Permission {
    let (key, range_end) = ("".into(), "\0".into());
    authpb::Permission { perm_type: Type::Readwrite as i32, key, range_end }
}
