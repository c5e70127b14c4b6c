//! Requests of nodes that are served without an API server.

mod detect;
pub mod leases;
mod permission;

pub use detect::Detection;
pub use permission::Permission;
