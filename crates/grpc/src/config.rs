//! Configuration of a server.

use std::sync::Arc;
use std::time::Duration;

use http2::Keepalive;

use crate::admission::Capacity;
use crate::budget::Budget;

/// Configuration of [`serve`](crate::serve()).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Maximum number of open streams of a connection.
    pub max_streams: u32,
    /// The largest message that is accepted, in bytes.
    pub message_bytes: usize,
    /// Limit on the memory for incomplete and unread messages of all connections.
    pub budget: Arc<Budget>,
    /// Limit on the responses and the slow reads of all connections.
    pub capacity: Arc<Capacity>,
    /// How long a client may leave many responses unread before its connection is closed. If memory
    /// is scarce: a twelfth of it. The same applies to incomplete requests.
    pub stall_timeout: Duration,
    /// When to ping silent clients, and how often clients may ping.
    pub keepalive: Keepalive,
}
