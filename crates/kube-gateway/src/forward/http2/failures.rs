//! What ends early: connections that fail, streams that are reset, watches that move.

use http2::ErrorCode;

use super::session::Session;
use super::stream::{Phase, Stream};
use crate::forward::request::SendError;
use crate::forward::watch::WatchEnd;

/// Attempts to send one request. An API server that closes its connections while it stops can cost a
/// few, and other requests of the same client that it answers with 401 too.
const MAX_ATTEMPTS: usize = 12;

impl Session {
    /// A connection to an API server has ended. A request without an answer is sent again if it was
    /// not sent, or if it reads.
    pub(super) fn lose(&mut self, connection: u64, error: anyhow::Error) {
        let Some(upstream) = self.upstreams.remove(connection) else { return };
        let error = format!("{error:#}");
        tracing::debug!(error, "connection to an API server");
        for (there, id) in &upstream.streams {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            match &stream.phase {
                Phase::Sent(_, pending)
                    if pending.reads() || upstream.channel.http.is_unsent(*there) =>
                {
                    self.send_again(*id, &error);
                }
                Phase::Sent(..) => self.refuse_broken(*id, &error),
                Phase::Answering(..) => self.go_on(*id, ErrorCode::InternalError),
                Phase::Pending(_) => {}
            }
        }
    }

    /// Sends a request again that an API server did not process, or that may be processed twice.
    pub(super) fn send_again(&mut self, id: u32, error: &str) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(place) = stream.place() else { return };
        let Some(mut pending) = stream.begin_answer(place) else {
            return self.break_off(id, ErrorCode::InternalError);
        };
        // Another API server has queues of its own.
        pending.reservation = None;
        stream.return_turn();
        let repeatable = pending.attempts < MAX_ATTEMPTS && pending.body.is_kept();
        if repeatable {
            stream.phase = Phase::Pending(pending);
            return self.submit(id);
        }
        self.refuse(id, SendError::NoServer(anyhow::anyhow!("{error}")));
    }

    fn refuse_broken(&mut self, id: u32, error: &str) {
        self.refuse(id, SendError::Broken(anyhow::anyhow!("{error}")));
    }

    /// The API server has reset a stream.
    pub(super) fn answer_was_reset(&mut self, id: u32, code: u32) {
        let Some(stream) = self.streams.get(&id) else { return };
        if matches!(stream.phase, Phase::Sent(..)) && code == ErrorCode::RefusedStream as u32 {
            return self.send_again(id, "refused by the API server");
        }
        self.go_on(id, known_code(code));
    }

    /// Sends a watch again that has not sent anything yet, and breaks off what else has begun.
    fn go_on(&mut self, id: u32, code: ErrorCode) {
        let now = self.now;
        match self.streams.get_mut(&id).is_some_and(|stream| stream.begin_again(now)) {
            true => self.submit(id),
            false => self.break_off(id, code),
        }
    }

    /// Ends an answer that is not complete. client-go watches on from its last event after an end in
    /// any place; a reset stream is an internal error to it, after which it lists again.
    pub(super) fn break_off(&mut self, id: u32, code: ErrorCode) {
        let Some(mut stream) = self.streams.remove(&id) else { return };
        stream.exchange.failed();
        match stream.watch().is_some() || stream.given().is_some() {
            true => self.front.http.finish(id, None),
            false => self.front.http.reset(id, code),
        }
    }

    /// Ends the watches that can go on at another API server.
    pub(super) fn end_watches(&mut self) {
        let may_end = |stream: &Stream| stream.watch().is_some_and(WatchEnd::may_end);
        let ending = self.streams.iter().filter(|(_, stream)| may_end(stream));
        let ending: Vec<u32> = ending.map(|(id, _)| *id).collect();
        for id in ending {
            if let Some(stream) = self.streams.remove(&id) {
                self.cancel(&stream);
                self.front.http.finish(id, None);
            }
        }
    }
}

fn known_code(code: u32) -> ErrorCode {
    const KNOWN: [ErrorCode; 6] = [
        ErrorCode::NoError,
        ErrorCode::RefusedStream,
        ErrorCode::Cancel,
        ErrorCode::EnhanceYourCalm,
        ErrorCode::InadequateSecurity,
        ErrorCode::Http11Required,
    ];
    KNOWN.into_iter().find(|known| *known as u32 == code).unwrap_or(ErrorCode::InternalError)
}
