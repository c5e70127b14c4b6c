//! The replay of one unary call.

use std::time::{Duration, Instant};

use etcd_client::{Connection, Failure};
use trace::{Call, Request};

use super::compare::{self, ReplayOutcome};
use super::convert::{self, Raw};
use super::state::{ReplayState, Turn};
use super::translations::add_translations;

/// Replays one call. Waits until the previous call of the same key has ended, sends the
/// request, adds the revisions and lease IDs of the response to the translation, and compares
/// the response with the recorded one.
pub async fn replay_call(
    state: &ReplayState,
    connection: Connection,
    call: &Call,
    request: &Request,
    mut turn: Option<Turn>,
) {
    if let Some(previous) = turn.as_mut().and_then(|turn| turn.previous.take()) {
        // An error also means that the previous call has ended.
        let _ = previous.await;
    }
    let message = convert::encode_request(request, &mut state.revisions.borrow_mut());
    match message {
        None => state.tally.borrow_mut().add_skipped(&call.method),
        Some(message) => {
            let started = Instant::now();
            let response = connection.call::<Raw>(&call.method, &message).await;
            let latency = started.elapsed();
            let outcome: ReplayOutcome = response
                .map(|Raw(bytes)| trace::decode_response(&call.method, bytes))
                .map_err(|Failure(reason)| compare::grpc_code(&reason));
            if let (Some(recorded), Ok(Some(replayed))) = (&call.response, &outcome) {
                add_translations(&mut state.revisions.borrow_mut(), request, recorded, replayed);
            }
            let difference = compare::first_difference(&call.end, call.response.as_ref(), &outcome);
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

/// The key by which a request is ordered: the key of a put, the key of a range or deletion
/// without range end, or the first key of a transaction. `None` for other requests.
pub fn ordering_key(request: &Request) -> Option<&[u8]> {
    let is_ordered = match request {
        Request::Range(range) => range.range_end.is_empty(),
        Request::Delete(delete) => delete.range_end.is_empty(),
        Request::Put(_) | Request::Txn(_) => true,
        _ => false,
    };
    request.key().filter(|_| is_ordered).map(|key| &key.0[..])
}
