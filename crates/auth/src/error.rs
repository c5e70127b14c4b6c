//! The errors of commands and checks.

/// The reason for rejecting a command, or a request of a client.
///
/// The texts are exactly those of etcd, because clients compare them. Source:
/// `go.etcd.io/etcd/api/v3@v3.7.3/v3rpc/rpctypes/error.go`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Authentication cannot be enabled without the user root.
    #[error("etcdserver: root user does not exist")]
    RootUserNotFound,
    /// Authentication cannot be enabled if the user root does not have the role root.
    #[error("etcdserver: root user does not have root role")]
    RootRoleNotGranted,
    /// A user with this name exists.
    #[error("etcdserver: user name already exists")]
    UserExists,
    /// The name of the new user is empty, or the client has not said who it is.
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    /// There is no user with this name.
    #[error("etcdserver: user name not found")]
    UserNotFound,
    /// A role with this name exists.
    #[error("etcdserver: role name already exists")]
    RoleExists,
    /// There is no role with this name.
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    /// The name of the new role is empty.
    #[error("etcdserver: role name is empty")]
    RoleEmpty,
    /// The user does not exist, has no password, or has another one.
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    AuthFailed,
    /// The request grants a permission without naming it.
    #[error("etcdserver: permission not given")]
    PermissionNotGiven,
    /// The client may not do this.
    #[error("etcdserver: permission denied")]
    PermissionDenied,
    /// The user does not have the role.
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    /// The role does not have the permission.
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    /// Authentication is disabled.
    #[error("etcdserver: authentication is not enabled")]
    NotEnabled,
    /// The token is unknown, has expired, or has a wrong signature.
    #[error("etcdserver: invalid auth token")]
    InvalidToken,
    /// While authentication is enabled, the user root keeps the role root. Also a range of keys
    /// that is empty.
    #[error("etcdserver: invalid auth management")]
    InvalidManagement,
    /// Users or roles have changed since the client authenticated.
    #[error("etcdserver: revision of auth store is old")]
    OldRevision,
}
