//! Renewals of one client that wait for their turn at an API server.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::forward::shared::Shared;
use crate::node_path::leases::Leases;
use crate::protect::RenewalTurn;
use crate::upstream::Server;

/// The renewals that wait. One place in the queue of the API server is for all of them, so that clients with many
/// renewals take turns with others.
pub struct WaitingRenewals {
    /// The client's streams. The first one has waited longest.
    streams: BTreeSet<u32>,
    /// The API server at which they wait.
    server: Option<Arc<Server>>,
    /// What they wait for, since when that was first asked.
    chance: Option<Pin<Box<dyn Future<Output = Chance> + Send>>>,
    /// `None` if no renewal is served, so that none waits.
    leases: Option<Arc<Leases>>,
}

/// What renewals wait for.
pub enum Chance {
    /// The turn of one at the API server.
    Turn(Arc<Server>, RenewalTurn),
    /// They may be served.
    Serve,
}

impl WaitingRenewals {
    /// None.
    pub fn new(shared: &Shared) -> WaitingRenewals {
        let leases = shared.leases.clone();
        WaitingRenewals { streams: BTreeSet::new(), server: None, chance: None, leases }
    }

    /// Lets one wait for its turn at this API server, to which the client is connected. All others of the client
    /// wait there too.
    pub fn insert(&mut self, stream: u32, server: &Arc<Server>) {
        if self.server.as_ref().is_none_or(|known| !Arc::ptr_eq(known, server)) {
            (self.server, self.chance) = (Some(server.clone()), None);
        }
        if self.streams.insert(stream) {
            self.count(1);
        }
    }

    /// Removes one that need not wait any more.
    pub fn remove(&mut self, stream: u32) {
        if self.streams.remove(&stream) {
            self.count(-1);
        }
    }

    /// Removes those that have waited longest.
    pub fn take(&mut self, count: usize) -> Vec<u32> {
        let taken: Vec<u32> = std::iter::from_fn(|| self.streams.pop_first()).take(count).collect();
        self.count(-(taken.len() as i64));
        taken
    }

    /// Waits for the next chance, if any renewal waits.
    pub fn poll_chance(&mut self, cx: &mut Context<'_>) -> Option<Chance> {
        let (Some(leases), Some(server), false) =
            (&self.leases, &self.server, self.streams.is_empty())
        else {
            self.chance = None;
            return None;
        };
        let chance = self.chance.get_or_insert_with(|| {
            let (leases, server) = (leases.clone(), server.clone());
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = leases.may_serve() => Chance::Serve,
                    turn = server.renewals.turn() => {
                        // If it is free because the API server has died, the client's connection may have ended
                        // too, which is known after the next look at all sockets.
                        tokio::task::yield_now().await;
                        Chance::Turn(server.clone(), turn)
                    }
                }
            })
        });
        let Poll::Ready(chance) = chance.as_mut().poll(cx) else { return None };
        self.chance = None;
        Some(chance)
    }

    fn count(&self, change: i64) {
        if let Some(leases) = &self.leases {
            leases.count_waiting(change);
        }
    }
}

impl Drop for WaitingRenewals {
    fn drop(&mut self) {
        self.count(-(self.streams.len() as i64));
    }
}
