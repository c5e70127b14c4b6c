//! What the client sends.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, DATE, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http2::{Data, ErrorCode, Event, Headers, ResponseHead};

use super::head::{answer_fields, request_fields};
use super::session::Session;
use super::stream::{Body, Pending, Phase, Place, RenewalPhase, Stream, Turn, TurnFrom};
use super::upstreams::SPEAKERS;
use super::watches::Read;
use crate::exchange::Exchange;
use crate::forward::answer;
use crate::forward::followed::watch_of;
use crate::forward::request::{SendError, admit, list_of, own_answer, speaker};
use crate::protect::{Admission, Refused, Reservation, Waiting};
use crate::request_info::RequestInfo;
use crate::upstream::Speaker;

impl Session {
    pub(super) fn on_request_event(&mut self, event: Event<Option<Parts>>) {
        match event {
            Event::Request { stream, request, fields_too_large, end_stream } => match request {
                Some(parts) => self.begin(stream, parts, fields_too_large, end_stream),
                None => self.front.http.reset(stream, ErrorCode::ProtocolError),
            },
            Event::Data { stream, bytes, end_stream } => {
                self.forward_body(stream, bytes);
                if end_stream {
                    self.end_body(stream);
                }
            }
            // Trailers are dropped: kube-apiserver has no use for them, and they could carry fields
            // that are removed from the header.
            Event::Trailers { stream, .. } => self.end_body(stream),
            Event::Reset { stream, .. } => self.abandon(stream),
            Event::Response { .. } | Event::Unprocessed { .. } => {
                unreachable!("only a client has these events")
            }
        }
    }

    fn begin(&mut self, id: u32, parts: Parts, fields_too_large: bool, end_stream: bool) {
        let request = Request::from_parts(parts, ());
        let info = RequestInfo::new(request.method(), request.uri());
        let watch = watch_of(&info, request.uri());
        let shared = &self.client.shared;
        let exchange = Exchange::new(&request, info, shared.sample(), shared.metrics.clone());
        if fields_too_large {
            let code = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            let answer = answer::status(code, "kube-gateway: the header is too large", None);
            return self.answer(id, answer, exchange);
        }
        let credential = match admit(&self.client, &request, exchange.info()) {
            Ok(credential) => credential,
            Err(refusal) => return self.answer(id, *refusal, exchange),
        };
        let list = list_of(&self.client, &request, exchange.info(), &credential);
        let read = match end_stream {
            true => self.read(id, &request, &credential, list),
            false => Read::Forward,
        };
        let (waits, continuation) = match read {
            Read::Served(served) => return self.serve_read(id, *served, exchange),
            Read::Refused(refused) => return self.answer_refused(id, refused, exchange),
            Read::Waits(waits, continuation) => (Some(waits), continuation),
            Read::Continued(continuation) => (None, Some(continuation)),
            Read::Forward => (None, None),
        };
        let (mut parts, ()) = request.into_parts();
        let leases = self.client.shared.leases.as_ref();
        let renewal = leases.and_then(|leases| leases.begin(&parts, &credential));
        if continuation.is_some() {
            // The cache goes on in plain text. A client need not get a compressed answer.
            parts.headers.remove(ACCEPT_ENCODING);
        }
        let body = Body::new(end_stream);
        let (speaker, credential) = (speaker(&credential), Some(credential));
        let (reservation, attempts, given) = (None, 0, None);
        let pending =
            Pending { parts, credential, speaker, list, reservation, watch, body, attempts, given };
        let stream = Stream { continuation, ..Stream::new(exchange, pending) };
        self.streams.insert(id, stream);
        match (renewal, waits) {
            (Some(renewal), _) => self.begin_renewal(id, renewal, end_stream),
            (None, Some((read, waiting))) => self.wait(id, TurnFrom::Cache(read), waiting),
            (None, None) => self.submit(id),
        }
    }

    fn forward_body(&mut self, id: u32, bytes: Bytes) {
        let Some(stream) = self.streams.get_mut(&id) else {
            // The answer is complete.
            return self.front.http.release(id, bytes.len() as i64);
        };
        if bytes.is_empty() {
            return;
        }
        if matches!(stream.renewal, Some(RenewalPhase::Arriving(..))) {
            return self.continue_renewal(id, bytes);
        }
        stream.unreleased += bytes.len();
        self.unreleased.push(id);
        let place = match &mut stream.phase {
            Phase::Pending(pending) => return pending.body.keep(bytes),
            Phase::Sent(place, pending) => {
                pending.body.pass(&bytes);
                *place
            }
            Phase::Answering(place, _) => *place,
        };
        if let Some(upstream) = self.upstreams.get(place.connection) {
            upstream.channel.http.send_data(place.stream, Data::Bytes(bytes));
        }
    }

    fn end_body(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Phase::Pending(pending) | Phase::Sent(_, pending) = &mut stream.phase {
            pending.body.is_complete = true;
        }
        if matches!(stream.renewal, Some(RenewalPhase::Arriving(..))) {
            return self.examine_renewal(id);
        }
        if let Some(place) = stream.place()
            && let Some(upstream) = self.upstreams.get(place.connection)
        {
            upstream.channel.http.finish(place.stream, None);
        }
    }

    /// The client has reset a stream.
    fn abandon(&mut self, id: u32) {
        self.watches.remove(&id);
        let Some(mut stream) = self.streams.remove(&id) else { return };
        self.turns.retain(|turn| turn.stream != id);
        self.arriving.retain(|other| *other != id);
        // A write that was sent may happen, as in an API server.
        self.servings.retain(|(other, _)| *other != id);
        self.waiting.remove(id);
        self.cancel(&stream);
        if matches!(stream.phase, Phase::Answering(..)) || stream.given().is_some() {
            stream.exchange.failed();
        }
    }

    /// Tells the API server that nobody waits for an answer.
    pub(super) fn cancel(&mut self, stream: &Stream) {
        if let Some(place) = stream.place()
            && let Some(upstream) = self.upstreams.get(place.connection)
        {
            upstream.channel.http.reset(place.stream, ErrorCode::Cancel);
            upstream.streams.remove(&place.stream);
        }
    }

    /// Sends a request that is pending, or lets it wait for a connection or for its turn.
    pub(super) fn submit(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let needs_turn = stream.needs_turn();
        let Stream { phase: Phase::Pending(pending), exchange, .. } = stream else { return };
        pending.prepare(&self.client);
        let speaker = pending.speaker;
        let Some(upstream) = self.upstreams.current(speaker) else {
            self.upstreams.queues[speaker as usize].push_back(id);
            self.is_unpolled = true;
            return self.upstreams.dial(speaker, &self.client.shared, &self.moved);
        };
        if needs_turn {
            self.is_unpolled = true;
            exchange.unassign();
            return self.waiting.insert(id, upstream.place.server());
        }
        let Some(list) = pending.list.filter(|_| pending.reservation.is_none()) else {
            return self.transmit(id);
        };
        exchange.unassign();
        let lists = &self.client.shared.protection.lists;
        match lists.enqueue(&upstream.place.server().lists, list) {
            Ok(Admission::Now(reservation)) => {
                self.client.shared.metrics.list_waited(0.0);
                pending.reservation = Some(reservation);
                self.transmit(id);
            }
            Ok(Admission::Waits(waiting)) => {
                let from = TurnFrom::Server(upstream.number);
                self.wait(id, from, waiting);
            }
            Err(refused) => self.refuse_list(id, refused),
        }
    }

    /// Lets a LIST wait for its turn.
    fn wait(&mut self, id: u32, from: TurnFrom, waiting: Waiting) {
        self.is_unpolled = true;
        let (started, granted) = (self.now, Box::pin(waiting.granted()));
        self.turns.push(Turn { stream: id, from, started, granted });
    }

    /// Refuses a LIST before there is a stream.
    fn answer_refused(&mut self, id: u32, refused: Refused, exchange: Exchange) {
        self.client.shared.metrics.list_refused();
        self.answer(id, own_answer(SendError::Refused(refused)), exchange);
    }

    fn refuse_list(&mut self, id: u32, refused: Refused) {
        self.client.shared.metrics.list_refused();
        self.refuse(id, SendError::Refused(refused));
    }

    /// Answers a request that has no answer of an API server.
    pub(super) fn refuse(&mut self, id: u32, error: SendError) {
        if self.streams.get(&id).is_some_and(|stream| stream.given().is_some()) {
            return self.break_off(id, ErrorCode::InternalError);
        }
        if let Some(stream) = self.streams.remove(&id) {
            self.answer(id, own_answer(error), stream.exchange);
        }
    }

    /// Sends the LISTs whose turn has come.
    pub(super) fn poll_turns(&mut self, cx: &mut Context<'_>) -> bool {
        let mut at = 0;
        let before = self.turns.len();
        while let Some(turn) = self.turns.get_mut(at) {
            let Poll::Ready(granted) = turn.granted.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            let Turn { stream, from, started, .. } = self.turns.swap_remove(at);
            self.client.shared.metrics.list_waited(started.elapsed().as_secs_f64());
            match (granted, from) {
                (Ok(reservation), TurnFrom::Server(connection)) => {
                    self.take_turn(stream, connection, reservation);
                }
                (Ok(reservation), TurnFrom::Cache(read)) => {
                    self.take_read_turn(stream, &read, reservation);
                }
                (Err(refused), _) => self.refuse_list(stream, refused),
            }
        }
        before > self.turns.len()
    }

    fn take_turn(&mut self, id: u32, connection: u64, reservation: Reservation) {
        let Some(Stream { phase: Phase::Pending(pending), .. }) = self.streams.get_mut(&id) else {
            return;
        };
        // The reservation is for one API server.
        let current = self.upstreams.current(pending.speaker);
        if current.is_some_and(|current| current.number == connection) {
            pending.reservation = Some(reservation);
        }
        self.submit(id);
    }

    /// Sends a request over the current connection, which exists.
    pub(super) fn transmit(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Phase::Pending(pending) = &mut stream.phase else { return };
        let Some(upstream) = self.upstreams.current(pending.speaker) else { return };
        let http = &mut upstream.channel.http;
        let Some(there) = http.open(request_fields(&pending.parts), pending.answers_head()) else {
            let queue = pending.speaker as usize;
            return self.upstreams.queues[queue].push_back(id);
        };
        for bytes in pending.body.attempt().unwrap_or_default() {
            http.send_data(there, Data::Bytes(bytes));
        }
        match pending.body.is_complete {
            true => http.finish(there, None),
            false => http.send_request(there),
        }
        pending.attempts += 1;
        stream.exchange.assign(&upstream.place);
        upstream.streams.insert(there, id);
        let place = Place { connection: upstream.number, stream: there };
        if let Some(pending) = stream.begin_answer(place) {
            stream.phase = Phase::Sent(place, pending);
        }
    }

    /// Sends requests that wait, as far as the API servers allow more streams.
    pub(super) fn start_queued(&mut self) {
        for speaker in SPEAKERS {
            let mut waiting = self.upstreams.queues[speaker as usize].len();
            while waiting > 0 && self.may_start(speaker) {
                waiting -= 1;
                if let Some(id) = self.upstreams.queues[speaker as usize].pop_front() {
                    self.submit(id);
                }
            }
        }
    }

    /// Whether a request can be sent, or a connection for it must be opened.
    fn may_start(&mut self, speaker: Speaker) -> bool {
        match self.upstreams.current(speaker) {
            Some(upstream) => upstream.channel.http.can_open(),
            None => !self.upstreams.is_dialing(speaker),
        }
    }

    /// Answers all requests that wait for a connection that cannot be opened.
    pub(super) fn refuse_queued(&mut self, speaker: Speaker, error: &anyhow::Error) {
        for id in std::mem::take(&mut self.upstreams.queues[speaker as usize]) {
            self.refuse(id, SendError::NoServer(anyhow::anyhow!("{error:#}")));
        }
    }

    /// Answers a request in place of an API server.
    fn answer(&mut self, id: u32, answer: Response<String>, mut exchange: Exchange) {
        exchange.answered_by_gateway(answer.status());
        let (mut parts, text) = answer.into_parts();
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        let date = httpdate::fmt_http_date(std::time::SystemTime::now());
        if let Ok(date) = HeaderValue::try_from(date) {
            parts.headers.insert(DATE, date);
        }
        let headers = Headers::Fields(answer_fields(&parts.headers));
        let head = ResponseHead { status: parts.status.as_u16(), headers };
        let text = if exchange.method() == http::Method::HEAD { String::new() } else { text };
        exchange.count(text.len());
        self.front.http.respond(id, head, [Data::Bytes(text.into())], None);
    }
}
