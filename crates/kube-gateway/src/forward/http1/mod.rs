//! HTTP/1.1: requests in sequence, and the only ones that can be upgraded.

mod body;
mod early_end;
mod link;
mod request;
mod request_body;
mod upgrade;

pub use link::Link;
pub use request::{Http1Client, forward};
