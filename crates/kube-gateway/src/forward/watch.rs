//! Ends a watch whose connection moves to another API server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::framing::{Framing, InitialProgress};
use crate::balance::Freshness;
use crate::protect::Reservation;

/// A younger watch is not ended: client-go lists again after a watch of less than a second without
/// an event.
const MIN_AGE: Duration = Duration::from_secs(5);
/// How often a watch that could not end yet looks again.
const RETRY: Duration = Duration::from_secs(1);

type Wait = Pin<Box<WaitForCancellationFutureOwned>>;

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
    moved: Wait,
    is_moved: bool,
    retry: Option<Pin<Box<Sleep>>>,
}

impl WatchEnd {
    /// Creates the decision for a watch whose connection is told to move by `moved`.
    pub fn new(
        framing: Framing,
        reservation: Option<Reservation>,
        freshness: Arc<Freshness>,
        moved: CancellationToken,
    ) -> WatchEnd {
        WatchEnd {
            framing,
            reservation,
            started: Instant::now(),
            last_event: None,
            freshness,
            moved: Box::pin(moved.cancelled_owned()),
            is_moved: false,
            retry: None,
        }
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

    /// Whether the watch ends now. Otherwise the task is woken when it may.
    pub fn poll_end(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_moved {
            self.is_moved = self.moved.as_mut().poll(cx).is_ready();
        }
        if !self.is_moved {
            return false;
        }
        if self.may_end() {
            return true;
        }
        let retry = self.retry.get_or_insert_with(|| Box::pin(sleep_until(next_look())));
        while retry.as_mut().poll(cx).is_ready() {
            retry.as_mut().reset(next_look());
        }
        false
    }

    fn may_end(&self) -> bool {
        self.started.elapsed() >= MIN_AGE
            && self.last_event.is_some_and(|event| {
                self.framing.can_end(event.elapsed()) && self.freshness.allows(event)
            })
    }
}

fn next_look() -> tokio::time::Instant {
    tokio::time::Instant::now() + RETRY
}
