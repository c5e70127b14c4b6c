//! Renewals of node Leases, which may be served without an API server.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use http2::{Data, Headers, ResponseHead};

use super::renewal_turns::Chance;
use super::session::Session;
use super::stream::{Phase, RenewalPhase, Stream};
use crate::exchange::Exchange;
use crate::node_path::leases::{Examined, Forwarded, MAX_BODY, Reason, Renewal, Served};
use crate::protect::RenewalTurn;
use crate::turns;
use crate::upstream::{Server, Speaker};

/// Time in which the body must arrive. After that the request is forwarded as it arrives.
const ARRIVAL: Duration = Duration::from_millis(200);
/// Renewals of one client that have waited and are examined again at once.
const MAX_EXAMINED: usize = 256;

impl Session {
    /// Waits for the body of a request that is a renewal.
    pub(super) fn begin_renewal(&mut self, id: u32, renewal: Renewal, end_stream: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let until = self.now + ARRIVAL;
        stream.renewal = Some(RenewalPhase::Arriving(Box::new(renewal), until));
        match end_stream {
            // Without a body.
            true => self.give_up_renewal(id),
            false => self.arriving.push(id),
        }
    }

    /// Keeps a part of the body. As it is short, the client may send as much again at once: it must
    /// not stop because of bytes that nobody reads yet.
    pub(super) fn continue_renewal(&mut self, id: u32, bytes: Bytes) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Phase::Pending(pending) = &mut stream.phase else { return };
        self.front.http.release(id, bytes.len() as i64);
        pending.body.keep(bytes);
        if pending.body.len() > MAX_BODY {
            self.give_up_renewal(id);
        }
    }

    /// Forwards a request whose body is not as expected.
    fn give_up_renewal(&mut self, id: u32) {
        self.arriving.retain(|other| *other != id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.renewal = None;
        }
        if let Some(leases) = &self.client.shared.leases {
            leases.count_forwarded(Reason::Body);
        }
        self.submit(id);
    }

    /// Decides what happens to a renewal whose body is complete.
    pub(super) fn examine_renewal(&mut self, id: u32) {
        let Some(Stream { phase: Phase::Pending(pending), renewal, .. }) =
            self.streams.get_mut(&id)
        else {
            return;
        };
        let Some(leases) = &self.client.shared.leases else { return };
        let body = pending.body.whole();
        let examined = match renewal.take() {
            Some(RenewalPhase::Arriving(it, _)) if it.candidate.length == body.len() => {
                leases.examine(*it, body, self.client.worker)
            }
            _ => return self.give_up_renewal(id),
        };
        self.arriving.retain(|other| *other != id);
        self.execute_renewal(id, examined);
    }

    fn execute_renewal(&mut self, id: u32, examined: Examined) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match examined {
            Examined::Serve(serving) => {
                turns::renewal_arrived();
                stream.renewal = Some(RenewalPhase::Serving);
                self.servings.push((id, serving));
            }
            Examined::Forward(forwarded) => self.forward_renewal(id, forwarded),
        }
    }

    fn forward_renewal(&mut self, id: u32, forwarded: Box<Forwarded>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.renewal = Some(RenewalPhase::Forwarded(forwarded, None));
            self.submit(id);
        }
    }

    /// Sends renewals whose turn at an API server has come, and serves those that may be served now. Returns whether
    /// there were any.
    pub(super) fn poll_renewal_turns(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Some(chance) = self.waiting.poll_chance(cx) {
            progress = true;
            match chance {
                Chance::Turn(server, turn) => self.take_renewal_turn(&server, turn),
                Chance::Serve => {
                    for id in self.waiting.take(MAX_EXAMINED) {
                        self.examine_again(id);
                    }
                }
            }
        }
        progress
    }

    fn take_renewal_turn(&mut self, server: &Arc<Server>, turn: RenewalTurn) {
        let current = self.upstreams.current(Speaker::FrontProxy);
        if current.is_none_or(|current| !Arc::ptr_eq(current.place.server(), server)) {
            // The connection has ended. All wait at another API server.
            return self.waiting.take(usize::MAX).into_iter().for_each(|id| self.submit(id));
        }
        let Some(&id) = self.waiting.take(1).first() else { return };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(RenewalPhase::Forwarded(forwarded, place)) = &mut stream.renewal else { return };
        *place = Some(turn);
        if let (Some(leases), Some(reason)) = (&self.client.shared.leases, forwarded.reason.take())
        {
            leases.count_forwarded(reason);
        }
        self.transmit(id);
    }

    /// Decides again about a renewal that has waited.
    fn examine_again(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(leases) = &self.client.shared.leases else { return };
        let Some(RenewalPhase::Forwarded(forwarded, None)) = stream.renewal.take() else { return };
        let Forwarded { renewal, body, .. } = *forwarded;
        let examined = leases.examine(renewal, body, self.client.worker);
        self.execute_renewal(id, examined);
    }

    /// Answers the renewals that were written, and forwards those that were not, or are late. Returns
    /// whether there were any.
    pub(super) fn poll_renewals(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Some(id) = self.arriving.first().copied()
            && self.late_renewal().is_some_and(|until| until <= self.now)
        {
            progress = true;
            self.give_up_renewal(id);
        }
        let mut at = 0;
        while let Some((_, serving)) = self.servings.get_mut(at) {
            let Poll::Ready(result) = serving.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            progress = true;
            let (id, _) = self.servings.swap_remove(at);
            match result {
                Ok(served) => self.answer_renewal(id, served),
                Err(forwarded) => self.forward_renewal(id, forwarded),
            }
        }
        progress
    }

    /// When the first one of the renewals that arrive is late.
    pub(super) fn late_renewal(&self) -> Option<Instant> {
        match self.streams.get(self.arriving.first()?)?.renewal {
            Some(RenewalPhase::Arriving(_, until)) => Some(until),
            _ => None,
        }
    }

    fn answer_renewal(&mut self, id: u32, served: Served) {
        let Some(mut stream) = self.streams.remove(&id) else { return };
        stream.exchange.answered_by_gateway(StatusCode::OK);
        stream.exchange.count(served.body.len());
        let headers = Headers::Fields(served.fields);
        let head = ResponseHead { status: StatusCode::OK.as_u16(), headers };
        self.front.http.respond(id, head, [Data::Bytes(served.body)], None);
    }

    /// Learns from the complete answer of an API server.
    pub(super) fn end_renewal(&self, forwarded: Forwarded, exchange: &Exchange) {
        if let Some(leases) = &self.client.shared.leases {
            let version = exchange.server().and_then(|server| server.version());
            leases.answered(forwarded, version, self.client.worker);
        }
    }
}
