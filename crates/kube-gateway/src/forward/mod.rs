//! Forwards requests. Each client connection has one connection to one API server
//! ([`Link`]), of the same HTTP version: one client's reads stay monotonic, and an error that ends a
//! connection ends it for one client only.

mod answer;
mod body;
mod fields;
mod framing;
mod link;
mod list;
mod request;
mod request_body;
mod shared;
mod upgrade;
mod watch;
mod watched_io;

pub use link::Link;
pub use request::{Client, forward};
pub use shared::Shared;
