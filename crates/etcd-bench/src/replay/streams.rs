//! Streams of messages: watches, keepalives, ranges in chunks.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use h2::{Reason, SendStream};
use tokio::sync::mpsc::Receiver;

use super::convert::Raw;
use super::dispatch::Shared;
use crate::connection::{Connection, Failure, Responses, frame};

/// Opens a stream with its first message, says the others, and counts what it is told,
/// until the recorded one ended.
pub async fn run(
    connection: Connection,
    method: Rc<str>,
    mut messages: Receiver<Raw>,
    shared: Rc<Shared>,
) {
    let Some(first) = messages.recv().await else { return };
    // What answers a single request ends by itself.
    let is_answer = method.ends_with("/RangeStream");
    let begun = Instant::now();
    shared.tally.borrow_mut().streams += 1;
    let told = match connection.start::<Raw>(&method, &first, is_answer).await {
        Ok((_, mut answers)) if is_answer => read_all(&method, &mut answers, &shared).await,
        Ok((stream, answers)) => converse(&method, stream, answers, messages, &shared).await,
        Err(failure) => Err(failure),
    };
    let mut tally = shared.tally.borrow_mut();
    match told {
        Ok(()) if is_answer => tally.streamed(&method, begun.elapsed()),
        Ok(()) => {}
        Err(Failure(reason)) => tally.broke(&method, &reason),
    }
}

async fn read_all(
    method: &str,
    answers: &mut Responses<Raw>,
    shared: &Shared,
) -> Result<(), Failure> {
    while let Some(answer) = answers.next().await? {
        count(method, answer, shared);
    }
    Ok(())
}

async fn converse(
    method: &str,
    mut stream: SendStream<Bytes>,
    mut answers: Responses<Raw>,
    mut messages: Receiver<Raw>,
    shared: &Shared,
) -> Result<(), Failure> {
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(message) => stream.send_data(frame(&message), false)?,
                None => {
                    stream.send_reset(Reason::CANCEL);
                    return Ok(());
                }
            },
            answer = answers.next() => match answer? {
                Some(answer) => count(method, answer, shared),
                None => return Ok(()),
            },
        }
    }
}

fn count(method: &str, Raw(bytes): Raw, shared: &Shared) {
    let Some(response) = trace::response(method, bytes) else { return };
    let mut tally = shared.tally.borrow_mut();
    if let Some(watch) = response.watch {
        tally.events += watch.events.len() as u64;
        tally.cancelled_watches += u64::from(watch.canceled && !watch.reason.is_empty());
    }
}
