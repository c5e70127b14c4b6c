//! etcd's gRPC services. Handlers translate requests to commands and reads of the
//! pipeline, and the results to responses. Each service has its own files. The state of
//! the store is in the pipeline.
//!
//! The handler of Put is `Api::put` in `kv.rs`. It calls `Pipeline::propose`. What a client may do
//! is checked in `access.rs`, or when its command is executed.

mod access;
mod auth;
mod cluster;
mod downgrade;
mod duplicate_keys;
mod hash;
mod health;
mod kv;
mod lease;
mod limited;
mod maintenance;
mod nested_txn;
mod pieces;
mod reflection;
mod service;
mod snapshot;
mod status;
mod validate;
mod watch;
mod watch_events;

use std::sync::Arc;

use grpc::Routes;

pub use self::limited::{Limited, routes as limited_routes};
pub use self::service::Api;

/// Registers every method of etcd's services.
pub fn routes(api: Arc<Api>) -> Routes<Api> {
    Routes::new(api)
        .admitted_unary("/etcdserverpb.KV/Range", Api::range)
        .server_stream("/etcdserverpb.KV/RangeStream", Api::range_stream)
        .admitted_unary("/etcdserverpb.KV/Put", Api::put)
        .admitted_unary("/etcdserverpb.KV/DeleteRange", Api::delete_range)
        .admitted_unary("/etcdserverpb.KV/Txn", Api::txn)
        .admitted_unary("/etcdserverpb.KV/Compact", Api::compact)
        .admitted_bidirectional("/etcdserverpb.Watch/Watch", Api::watch)
        .admitted_unary("/etcdserverpb.Lease/LeaseGrant", Api::lease_grant)
        .admitted_unary("/etcdserverpb.Lease/LeaseRevoke", Api::lease_revoke)
        .admitted_bidirectional("/etcdserverpb.Lease/LeaseKeepAlive", Api::lease_keep_alive)
        .admitted_unary("/etcdserverpb.Lease/LeaseTimeToLive", Api::lease_time_to_live)
        .admitted_unary("/etcdserverpb.Lease/LeaseLeases", Api::lease_leases)
        .admitted_unary("/etcdserverpb.Cluster/MemberList", Api::member_list)
        .admitted_unary("/etcdserverpb.Cluster/MemberAdd", Api::member_add)
        .admitted_unary("/etcdserverpb.Cluster/MemberRemove", Api::member_remove)
        .admitted_unary("/etcdserverpb.Cluster/MemberUpdate", Api::member_update)
        .admitted_unary("/etcdserverpb.Cluster/MemberPromote", Api::member_promote)
        .admitted_unary("/etcdserverpb.Maintenance/Status", Api::status)
        .admitted_unary("/etcdserverpb.Maintenance/Alarm", Api::alarm)
        .admitted_unary("/etcdserverpb.Maintenance/Defragment", Api::defragment)
        .admitted_unary("/etcdserverpb.Maintenance/Hash", Api::hash)
        .admitted_unary("/etcdserverpb.Maintenance/HashKV", Api::hash_kv)
        .server_stream("/etcdserverpb.Maintenance/Snapshot", Api::snapshot)
        .admitted_unary("/etcdserverpb.Maintenance/MoveLeader", Api::move_leader)
        .admitted_unary("/etcdserverpb.Maintenance/Downgrade", Api::downgrade)
        .unary("/grpc.health.v1.Health/Check", Api::health_check)
        .unary("/grpc.health.v1.Health/List", Api::health_list)
        .server_stream("/grpc.health.v1.Health/Watch", Api::health_watch)
        .bidirectional("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Api::reflection)
        .bidirectional(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            Api::reflection,
        )
        .admitted_unary("/etcdserverpb.Auth/AuthEnable", Api::auth_enable)
        .admitted_unary("/etcdserverpb.Auth/AuthDisable", Api::auth_disable)
        .admitted_unary("/etcdserverpb.Auth/AuthStatus", Api::auth_status)
        .admitted_unary("/etcdserverpb.Auth/Authenticate", Api::authenticate)
        .admitted_unary("/etcdserverpb.Auth/UserAdd", Api::user_add)
        .admitted_unary("/etcdserverpb.Auth/UserGet", Api::user_get)
        .admitted_unary("/etcdserverpb.Auth/UserList", Api::user_list)
        .admitted_unary("/etcdserverpb.Auth/UserDelete", Api::user_delete)
        .admitted_unary("/etcdserverpb.Auth/UserChangePassword", Api::user_change_password)
        .admitted_unary("/etcdserverpb.Auth/UserGrantRole", Api::user_grant_role)
        .admitted_unary("/etcdserverpb.Auth/UserRevokeRole", Api::user_revoke_role)
        .admitted_unary("/etcdserverpb.Auth/RoleAdd", Api::role_add)
        .admitted_unary("/etcdserverpb.Auth/RoleGet", Api::role_get)
        .admitted_unary("/etcdserverpb.Auth/RoleList", Api::role_list)
        .admitted_unary("/etcdserverpb.Auth/RoleDelete", Api::role_delete)
        .admitted_unary("/etcdserverpb.Auth/RoleGrantPermission", Api::role_grant_permission)
        .admitted_unary("/etcdserverpb.Auth/RoleRevokePermission", Api::role_revoke_permission)
}
