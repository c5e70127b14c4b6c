//! What the API servers send.

use http::StatusCode;
use http2::{Data, Event, Fields, Headers, ResponseHead};

use super::session::Session;
use super::stream::{Phase, RenewalPhase, Stream};
use crate::forward::followed::{Content, Followed};

/// The head of an answer.
type Head = (StatusCode, Fields);

impl Session {
    pub(super) fn on_answer_event(&mut self, connection: u64, event: Event<Head>) {
        let (there, ends) = match &event {
            Event::Response { stream, end_stream, .. } | Event::Data { stream, end_stream, .. } => {
                (*stream, *end_stream)
            }
            Event::Trailers { stream, .. }
            | Event::Reset { stream, .. }
            | Event::Unprocessed { stream } => (*stream, true),
            Event::Request { .. } => unreachable!("only a server has this event"),
        };
        let Some(upstream) = self.upstreams.get(connection) else { return };
        let found = match ends {
            true => upstream.streams.remove(&there),
            false => upstream.streams.get(&there).copied(),
        };
        let Some(id) = found else { return };
        match event {
            Event::Response { response: (status, fields), .. } => {
                self.pass_head(id, status, fields);
                if ends {
                    self.end_answer(id, None);
                }
            }
            Event::Data { bytes, .. } => {
                self.pass_data(id, bytes);
                if ends {
                    self.end_answer(id, None);
                }
            }
            Event::Trailers { fields, .. } => self.end_answer(id, Some(fields)),
            Event::Reset { code, .. } => self.answer_was_reset(id, code),
            Event::Unprocessed { .. } => self.send_again(id, "refused by a server that stops"),
            Event::Request { .. } => {}
        }
    }

    fn pass_head(&mut self, id: u32, status: StatusCode, fields: Fields) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let is_given = match stream.given().map(|given| given.is_like(status, &fields)) {
            Some(false) => return self.end_unlike(id),
            is_like => is_like.is_some(),
        };
        stream.exchange.answered(status);
        if let Some(RenewalPhase::Forwarded(forwarded, _)) = &mut stream.renewal {
            forwarded.begin_answer(status, &fields);
        }
        if let Some(continuation) = &mut stream.continuation {
            continuation.begin_answer(status, &fields);
        }
        let Some(place) = stream.place() else { return };
        let sent = stream.begin_answer(place);
        if let (Some(mut pending), Phase::Answering(_, answering)) = (sent, &mut stream.phase) {
            let (shared, reservation) = (&self.client.shared, pending.reservation.take());
            let content = || Content {
                media_type: fields.get(b"content-type").unwrap_or_default(),
                encoding: fields.get(b"content-encoding").unwrap_or_default(),
            };
            answering.followed = Followed::new(shared, status, content, reservation, pending.watch);
            answering.again = pending.keep(status, &fields, self.now);
        }
        if is_given {
            return;
        }
        let headers = Headers::Fields(fields);
        self.front.http.send_head(id, ResponseHead { status: status.as_u16(), headers });
    }

    /// Ends a watch whose second answer is not like the first one.
    fn end_unlike(&mut self, id: u32) {
        let Some(mut stream) = self.streams.remove(&id) else { return };
        self.cancel(&stream);
        stream.exchange.failed();
        self.front.http.finish(id, None);
    }

    fn pass_data(&mut self, id: u32, bytes: bytes::Bytes) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Stream { phase: Phase::Answering(_, answering), exchange, .. } = stream else { return };
        if !bytes.is_empty() {
            answering.again = None;
        }
        answering.followed.follow(&bytes);
        if let Some(RenewalPhase::Forwarded(forwarded, _)) = &mut stream.renewal {
            forwarded.continue_answer(&bytes);
        }
        let continues = stream.continuation.is_some();
        if let Some(continuation) = &mut stream.continuation {
            continuation.continue_answer(&bytes);
        }
        exchange.count(bytes.len());
        answering.unreleased += bytes.len();
        self.unreleased.push(id);
        self.front.http.send_data(id, Data::Bytes(bytes));
        if continues {
            self.try_to_go_on(id);
        }
    }

    fn end_answer(&mut self, id: u32, trailers: Option<Fields>) {
        let Some(mut stream) = self.streams.remove(&id) else { return };
        if let Phase::Answering(_, answering) = &mut stream.phase {
            answering.followed.complete();
        }
        if let Some(RenewalPhase::Forwarded(forwarded, _)) = stream.renewal.take() {
            self.end_renewal(*forwarded, &stream.exchange);
        }
        self.front.http.finish(id, trailers.map(Headers::Fields));
    }

    /// Releases to the API servers what was framed for the client, and to the client what was framed
    /// for the API servers.
    pub(super) fn release(&mut self) {
        let mut looked_at = std::mem::take(&mut self.unreleased);
        looked_at.sort_unstable();
        looked_at.dedup();
        looked_at.retain(|id| self.release_one(*id));
        self.unreleased = looked_at;
    }

    /// Returns whether the stream has bytes that are not released.
    fn release_one(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let Some(place) = stream.place() else { return stream.unreleased > 0 };
        let mut upstream = self.upstreams.get(place.connection);
        let mut left = 0;
        if let Phase::Answering(_, answering) = &mut stream.phase
            && answering.unreleased > 0
        {
            let queued = self.front.http.queued_bytes_of(id);
            let framed = answering.unreleased.saturating_sub(queued);
            answering.unreleased -= framed;
            left += answering.unreleased;
            if let Some(upstream) = &mut upstream {
                upstream.channel.http.release(place.stream, framed as i64);
            }
        }
        if stream.unreleased > 0 {
            let queued = upstream.map_or(0, |it| it.channel.http.queued_bytes_of(place.stream));
            let framed = stream.unreleased.saturating_sub(queued);
            stream.unreleased -= framed;
            left += stream.unreleased;
            self.front.http.release(id, framed as i64);
        }
        left > 0
    }
}
