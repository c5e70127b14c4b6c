//! Decides when a watch ends whose connection moves to another API server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::framing::{Framing, InitialProgress};
use crate::balance::Freshness;
use crate::protect::Reservation;

/// A younger watch is not ended: client-go lists again after a watch of less than a second without
/// an event.
pub const MIN_AGE: Duration = Duration::from_secs(5);
/// How often a watch that could not end yet is looked at again.
pub const RETRY: Duration = Duration::from_secs(1);

/// Decides when a watch ends early.
///
/// It ends after a whole event, as if its timeout had expired. The client then watches again from
/// its last resource version. Another API server can only serve that version if its watch cache is
/// not younger. The watch must therefore have had an event or a bookmark after the youngest API
/// server became ready ([`Freshness`]); otherwise the client would have to list again.
pub struct WatchEnd {
    framing: Framing,
    /// The reservation of a WatchList until its initial events are complete.
    reservation: Option<Reservation>,
    started: Instant,
    last_event: Option<Instant>,
    freshness: Arc<Freshness>,
}

impl WatchEnd {
    /// Creates the decision for a watch that starts now.
    pub fn new(
        framing: Framing,
        reservation: Option<Reservation>,
        freshness: Arc<Freshness>,
    ) -> WatchEnd {
        let started = Instant::now();
        WatchEnd { framing, reservation, started, last_event: None, freshness }
    }

    /// Follows bytes of the watch.
    pub fn follow(&mut self, bytes: &[u8]) {
        self.framing.follow(bytes);
        self.last_event = Some(Instant::now());
        let Some(mut reservation) = self.reservation.take() else { return };
        match self.framing.initial_events() {
            InitialProgress::Going(bytes) => {
                reservation.received(bytes);
                self.reservation = Some(reservation);
            }
            InitialProgress::Complete(bytes) => reservation.complete(bytes, None),
            // Nothing is learned.
            InitialProgress::Lost => {}
        }
    }

    /// Whether the watch can end now.
    pub fn may_end(&self) -> bool {
        self.started.elapsed() >= MIN_AGE
            && self.last_event.is_some_and(|event| {
                self.framing.can_end(event.elapsed()) && self.freshness.allows(event)
            })
    }
}
