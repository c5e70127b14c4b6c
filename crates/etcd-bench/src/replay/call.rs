//! The replay of one unary call.

use std::time::{Duration, Instant};

use trace::{Call, Request};

use super::compare::{self, ReplayOutcome};
use super::convert::{self, Raw};
use super::learn::learn;
use super::state::{ReplayState, Turn};
use crate::connection::{Connection, Failure};

/// Replays one call: waits for its turn, sends the request, learns from the response and
/// compares it.
pub async fn perform(
    state: &ReplayState,
    connection: Connection,
    call: &Call,
    request: &Request,
    mut turn: Option<Turn>,
) {
    if let Some(before) = turn.as_mut().and_then(|turn| turn.before.take()) {
        // An error also means that the previous call has ended.
        let _ = before.await;
    }
    let message = convert::message(request, &mut state.revisions.borrow_mut());
    match message {
        None => state.tally.borrow_mut().skip(&call.method),
        Some(message) => {
            let started = Instant::now();
            let response = connection.call::<Raw>(&call.method, &message).await;
            let latency = started.elapsed();
            let outcome: ReplayOutcome = response
                .map(|Raw(bytes)| trace::decode_response(&call.method, bytes))
                .map_err(|Failure(reason)| compare::code(&reason));
            if let (Some(recorded), Ok(Some(replayed))) = (&call.response, &outcome) {
                learn(&mut state.revisions.borrow_mut(), request, recorded, replayed);
            }
            let difference = compare::difference(&call.end, call.response.as_ref(), &outcome);
            let recorded = Duration::from_nanos(call.latency);
            let mut tally = state.tally.borrow_mut();
            tally.add_call(&call.method, recorded, latency, difference, outcome.is_err());
        }
    }
    state.progress.inc(1);
    if let Some(turn) = turn {
        state.end_turn(turn);
    }
}

/// The key of a request for a single key.
pub fn single_key(request: &Request) -> Option<&[u8]> {
    let is_single = match request {
        Request::Range(range) => range.range_end.is_empty(),
        Request::Delete(delete) => delete.range_end.is_empty(),
        Request::Put(_) | Request::Txn(_) => true,
        _ => false,
    };
    request.key().filter(|_| is_single).map(|key| &key.0[..])
}
