//! Limits and pings of the gateway's HTTP/2 connections.

use std::time::Duration;

use http2::{Keepalive, Limits, Refill};

pub use http2_socket::Channel;

/// A connection without any frame for this time is checked by a PING, as client-go does.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Limits of a connection to an API server. The bound over all its answers is that of
/// [`Held`](crate::protect::Held).
pub const LIMITS: Limits = Limits {
    stream_window: 256 << 10,
    connection_window: 16 << 20,
    refill: Refill::OnArrival,
    // kube-apiserver's limit for the header of a request.
    fields_bytes: 1 << 20,
    output_bytes: 32 << 10,
};

/// The pings of a connection that is closed if one is not answered within `timeout`. No ping of the
/// peer is a strike: Go's client pings with each request that it cancels.
pub fn keepalive(timeout: Duration) -> Keepalive {
    Keepalive { interval: PING_AFTER, timeout, min_interval: Duration::ZERO }
}
