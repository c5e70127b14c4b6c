//! Requests of nodes that are served without an API server.

mod permission;

pub use permission::Permission;
