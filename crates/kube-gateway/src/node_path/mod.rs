//! Requests of nodes that are served without an API server.

pub mod leases;
mod permission;

pub use permission::Permission;
