//! etcd's gRPC services. Handlers translate requests to commands and reads of the
//! pipeline, and the results to responses. Each service has its own files. The state of
//! the store is in the pipeline.
//!
//! The handler of Put is `Api::put` in `kv.rs`. It calls `Pipeline::propose`.

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
    let routes = Routes::new(api)
        .admitted_unary("/etcdserverpb.KV/Range", Api::range)
        .server_stream("/etcdserverpb.KV/RangeStream", Api::range_stream)
        .admitted_unary("/etcdserverpb.KV/Put", Api::put)
        .admitted_unary("/etcdserverpb.KV/DeleteRange", Api::delete_range)
        .admitted_unary("/etcdserverpb.KV/Txn", Api::txn)
        .admitted_unary("/etcdserverpb.KV/Compact", Api::compact)
        .admitted_bidirectional("/etcdserverpb.Watch/Watch", Api::watch)
        .admitted_unary("/etcdserverpb.Lease/LeaseGrant", Api::lease_grant)
        .admitted_unary("/etcdserverpb.Lease/LeaseRevoke", Api::lease_revoke)
        .bidirectional("/etcdserverpb.Lease/LeaseKeepAlive", Api::lease_keep_alive)
        .admitted_unary("/etcdserverpb.Lease/LeaseTimeToLive", Api::lease_time_to_live)
        .admitted_unary("/etcdserverpb.Lease/LeaseLeases", Api::lease_leases)
        .unary("/etcdserverpb.Cluster/MemberList", Api::member_list)
        .unary("/etcdserverpb.Cluster/MemberAdd", Api::member_add)
        .unary("/etcdserverpb.Cluster/MemberRemove", Api::member_remove)
        .unary("/etcdserverpb.Cluster/MemberUpdate", Api::member_update)
        .unary("/etcdserverpb.Cluster/MemberPromote", Api::member_promote)
        .unary("/etcdserverpb.Maintenance/Status", Api::status)
        .admitted_unary("/etcdserverpb.Maintenance/Alarm", Api::alarm)
        .admitted_unary("/etcdserverpb.Maintenance/Defragment", Api::defragment)
        .admitted_unary("/etcdserverpb.Maintenance/Hash", Api::hash)
        .admitted_unary("/etcdserverpb.Maintenance/HashKV", Api::hash_kv)
        .server_stream("/etcdserverpb.Maintenance/Snapshot", Api::snapshot)
        .unary("/etcdserverpb.Maintenance/MoveLeader", Api::move_leader)
        .unary("/etcdserverpb.Maintenance/Downgrade", Api::downgrade)
        .unary("/grpc.health.v1.Health/Check", Api::health_check)
        .unary("/grpc.health.v1.Health/List", Api::health_list)
        .server_stream("/grpc.health.v1.Health/Watch", Api::health_watch)
        .bidirectional("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Api::reflection)
        .bidirectional(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            Api::reflection,
        )
        .unary("/etcdserverpb.Auth/AuthStatus", Api::auth_status);
    REJECTED_AUTH_METHODS.iter().fold(routes, |routes, path| routes.unary(path, Api::reject_auth))
}

/// Methods that return an error, because authentication is not enabled.
const REJECTED_AUTH_METHODS: [&str; 16] = [
    "/etcdserverpb.Auth/AuthEnable",
    "/etcdserverpb.Auth/AuthDisable",
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/UserAdd",
    "/etcdserverpb.Auth/UserGet",
    "/etcdserverpb.Auth/UserList",
    "/etcdserverpb.Auth/UserDelete",
    "/etcdserverpb.Auth/UserChangePassword",
    "/etcdserverpb.Auth/UserGrantRole",
    "/etcdserverpb.Auth/UserRevokeRole",
    "/etcdserverpb.Auth/RoleAdd",
    "/etcdserverpb.Auth/RoleGet",
    "/etcdserverpb.Auth/RoleList",
    "/etcdserverpb.Auth/RoleDelete",
    "/etcdserverpb.Auth/RoleGrantPermission",
    "/etcdserverpb.Auth/RoleRevokePermission",
];
