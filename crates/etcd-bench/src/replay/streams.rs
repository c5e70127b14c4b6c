//! Replays a stream: Watch, LeaseKeepAlive or RangeStream.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use etcd_client::{Connection, Failure, Responses, with_prefix};
use h2::{Reason, SendStream};
use tokio::sync::mpsc::Receiver;

use super::convert::Raw;
use super::state::ReplayState;

/// Opens a stream with the first of `messages`, sends the others, and counts the events that it
/// receives. Ends the stream when the dispatcher drops the sender of `messages`, because the
/// recorded stream has ended. A RangeStream ends when the server has sent all responses.
pub async fn replay_stream(
    connection: Connection,
    method: Rc<str>,
    mut messages: Receiver<Raw>,
    state: Rc<ReplayState>,
) {
    let Some(first) = messages.recv().await else { return };
    let has_one_request = method.ends_with("/RangeStream");
    let started = Instant::now();
    state.tally.borrow_mut().streams += 1;
    let result = match connection.start::<Raw>(&method, &first, has_one_request).await {
        Ok((_, mut responses)) if has_one_request => {
            read_all(&method, &mut responses, &state).await
        }
        Ok((stream, responses)) => exchange(&method, stream, responses, messages, &state).await,
        Err(failure) => Err(failure),
    };
    let mut tally = state.tally.borrow_mut();
    match result {
        Ok(()) if has_one_request => tally.add_completed_stream(&method, started.elapsed()),
        Ok(()) => {}
        Err(Failure(reason)) => tally.add_failed_stream(&method, &reason),
    }
}

/// Reads the responses until the server ends the stream.
async fn read_all(
    method: &str,
    responses: &mut Responses<Raw>,
    state: &ReplayState,
) -> Result<(), Failure> {
    while let Some(response) = responses.next().await? {
        count_events(method, response, state);
    }
    Ok(())
}

/// Sends messages and reads responses at the same time.
async fn exchange(
    method: &str,
    mut stream: SendStream<Bytes>,
    mut responses: Responses<Raw>,
    mut messages: Receiver<Raw>,
    state: &ReplayState,
) -> Result<(), Failure> {
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(message) => stream.send_data(with_prefix(&message), false)?,
                None => {
                    stream.send_reset(Reason::CANCEL);
                    return Ok(());
                }
            },
            response = responses.next() => match response? {
                Some(response) => count_events(method, response, state),
                None => return Ok(()),
            },
        }
    }
}

/// Counts the events and the cancellation in a watch response.
fn count_events(method: &str, Raw(bytes): Raw, state: &ReplayState) {
    let Some(response) = trace::decode_response(method, bytes) else { return };
    let mut tally = state.tally.borrow_mut();
    if let Some(watch) = response.watch {
        tally.events += watch.events.len() as u64;
        tally.cancelled_watches += u64::from(watch.canceled && !watch.reason.is_empty());
    }
}
