//! Forwards requests. Each client connection has one connection to one API server, of the same HTTP
//! version: one client's reads stay monotonic, and an error that ends a connection ends it for one
//! client only.
//!
//! `request` judges a request and prepares it, `followed` follows the answer. They serve both
//! versions: [`http2`], which nearly all clients use and which is therefore our own, and [`http1`],
//! which is hyper's.

mod answer;
mod dial;
mod fields;
mod followed;
mod framing;
pub mod http1;
pub mod http2;
mod list;
mod request;
mod shared;
mod watch;

pub use request::Client;
pub use shared::Shared;
