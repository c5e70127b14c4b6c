//! What the tasks of the detection share.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::flags::Expected;
use super::knowledge::Knowledge;
use crate::config::Store;
use crate::node_path::client::Dialer;
use crate::upstream::Pool;

/// What the tasks of the detection share.
pub struct Shared {
    /// The API servers.
    pub pool: Arc<Pool>,
    /// Connects to API servers.
    pub dialer: Dialer,
    /// The store.
    pub store: Store,
    /// What the flags of API servers must be.
    pub expected: Expected,
    /// Whether renewals may be served. Otherwise only what concerns reads is examined.
    pub renewals: bool,
    /// Whether watches and lists of Leases may be served from the store.
    pub lease_reads: bool,
    /// What is known.
    pub knowledge: Mutex<Knowledge>,
    /// Notified after each change of what is known.
    pub changed: Notify,
}

impl Shared {
    /// Changes what is known.
    pub fn change(&self, change: impl FnOnce(&mut Knowledge)) {
        change(&mut self.knowledge.lock());
        self.changed.notify_one();
    }

    /// Returns the addresses of the API servers that are ready.
    pub fn ready_servers(&self) -> Vec<String> {
        let servers = self.pool.servers();
        let ready = servers.iter().filter(|server| server.is_ready());
        ready.map(|server| server.address.clone()).collect()
    }

    /// Returns the addresses of the API servers that get requests of clients: those that are ready, and
    /// those that still have connections.
    pub fn servers_in_use(&self) -> Vec<String> {
        let servers = self.pool.servers();
        let in_use = servers.iter().filter(|server| server.is_ready() || server.connections() > 0);
        in_use.map(|server| server.address.clone()).collect()
    }

    /// Whether the pool has an API server with this address.
    pub fn is_in_pool(&self, address: &str) -> bool {
        self.pool.servers().iter().any(|server| server.address == address)
    }
}
