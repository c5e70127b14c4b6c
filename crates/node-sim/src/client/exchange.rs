//! The open requests of one connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{ErrorCode, Event, StreamMap};
use http2_socket::Channel;
use tls_socket::ClientSide;

use super::answer::{Answer, AnswerHead, Failure, Outcome, Part, Receiver, WatchEnd};
use super::request::{CommonFields, Request};

/// The time in which a request must be answered: that of kubelet's heartbeats.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer that is kept until it is complete. A watch has no limit.
const MAX_ANSWER: usize = 4 << 20;

/// A request that was not sent yet.
pub struct Queued<T> {
    /// The owner's name for the request.
    pub tag: T,
    /// The request.
    pub request: Request,
    /// When the owner made it.
    pub since: Instant,
    /// Whether the answer is a watch.
    pub is_watch: bool,
}

/// A request that was sent.
struct Sent<T> {
    tag: T,
    since: Instant,
    head: AnswerHead,
    kind: Kind,
}

enum Kind {
    /// An answer whose body is kept until it is complete.
    Whole(Vec<u8>),
    Watch,
}

/// The open requests of a connection.
pub struct Exchange<T> {
    sent: StreamMap<Sent<T>>,
    /// Streams that must be answered until a time. Streams that were answered stay until then.
    deadlines: VecDeque<(Instant, u32)>,
}

impl<T> Default for Exchange<T> {
    fn default() -> Self {
        Exchange { sent: StreamMap::default(), deadlines: VecDeque::new() }
    }
}

impl<T> Queued<T> {
    /// Whether the request has waited for too long.
    pub fn is_late(&self, now: Instant) -> bool {
        !self.is_watch && now >= self.since + TIMEOUT
    }

    /// Reports that the request was not sent.
    pub fn fail(self, failure: Failure, receiver: &dyn Receiver<T>) {
        match self.is_watch {
            true => receiver.watched(self.tag, Part::Ended(WatchEnd::default())),
            false => receiver.answered(self.tag, Outcome::Failed(failure)),
        }
    }
}

impl<T: Copy> Exchange<T> {
    /// Whether no request is open.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// When the next request is late.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Sends a request. The connection must accept one more stream.
    pub fn open(
        &mut self,
        channel: &mut Channel<ClientSide, AnswerHead>,
        queued: Queued<T>,
        common: &CommonFields,
    ) {
        let Queued { tag, request, since, is_watch } = queued;
        let (fields, body) = request.into_parts(common);
        let http = &mut channel.http;
        let Some(stream) = http.open(fields, false) else { return };
        if let Some(body) = body {
            http.send_data(stream, body.into());
        }
        http.finish(stream, None);
        let kind = if is_watch { Kind::Watch } else { Kind::Whole(Vec::new()) };
        self.sent.insert(stream, Sent { tag, since, head: AnswerHead::default(), kind });
        if !is_watch {
            self.deadlines.push_back((since + TIMEOUT, stream));
        }
    }

    /// Handles an event of the connection.
    pub fn handle(
        &mut self,
        channel: &mut Channel<ClientSide, AnswerHead>,
        event: Event<AnswerHead>,
        receiver: &dyn Receiver<T>,
    ) {
        match event {
            Event::Response { stream, response, end_stream } => {
                if let Some(sent) = self.sent.get_mut(&stream) {
                    sent.head = response;
                }
                if end_stream {
                    self.complete(stream, &[], receiver);
                }
            }
            Event::Data { stream, bytes, end_stream } => {
                channel.http.release(stream, bytes.len() as i64);
                if self.data(stream, &bytes, end_stream, receiver) == Err(Failure::TooLarge) {
                    channel.http.reset(stream, ErrorCode::Cancel);
                    self.fail(stream, Failure::TooLarge, receiver);
                }
            }
            Event::Trailers { stream, .. } => self.complete(stream, &[], receiver),
            Event::Reset { stream, .. } => self.fail(stream, Failure::Reset, receiver),
            Event::Unprocessed { stream } => self.fail(stream, Failure::Connection, receiver),
            // A server sends no requests.
            Event::Request { .. } => {}
        }
    }

    fn data(
        &mut self,
        stream: u32,
        bytes: &Bytes,
        end_stream: bool,
        receiver: &dyn Receiver<T>,
    ) -> Result<(), Failure> {
        let Some(sent) = self.sent.get_mut(&stream) else { return Ok(()) };
        let tag = sent.tag;
        match &mut sent.kind {
            Kind::Watch => {
                if sent.head.status == 200 {
                    receiver.watched(tag, Part::Bytes(bytes));
                }
                if end_stream {
                    self.complete(stream, &[], receiver);
                }
            }
            Kind::Whole(body) if end_stream && body.is_empty() => {
                self.complete(stream, bytes, receiver);
            }
            Kind::Whole(body) => {
                if body.len() + bytes.len() > MAX_ANSWER {
                    return Err(Failure::TooLarge);
                }
                body.extend_from_slice(bytes);
                if end_stream {
                    let body = std::mem::take(body);
                    self.complete(stream, &body, receiver);
                }
            }
        }
        Ok(())
    }

    fn complete(&mut self, stream: u32, body: &[u8], receiver: &dyn Receiver<T>) {
        let Some(sent) = self.sent.remove(&stream) else { return };
        let AnswerHead { status, retry_after } = sent.head;
        match &sent.kind {
            Kind::Watch => {
                let end = WatchEnd { status: Some(status), retry_after };
                receiver.watched(sent.tag, Part::Ended(end));
            }
            Kind::Whole(kept) => {
                let body = if body.is_empty() { kept } else { body };
                let elapsed = sent.since.elapsed();
                let answer = Answer { status, retry_after, body, elapsed };
                receiver.answered(sent.tag, Outcome::Answered(answer));
            }
        }
    }

    fn fail(&mut self, stream: u32, failure: Failure, receiver: &dyn Receiver<T>) {
        let Some(sent) = self.sent.remove(&stream) else { return };
        match sent.kind {
            Kind::Watch => {
                let status = Some(sent.head.status).filter(|status| *status != 0);
                let retry_after = sent.head.retry_after;
                receiver.watched(sent.tag, Part::Ended(WatchEnd { status, retry_after }));
            }
            Kind::Whole(_) => receiver.answered(sent.tag, Outcome::Failed(failure)),
        }
    }

    /// Resets the requests that are late.
    pub fn expire(
        &mut self,
        channel: &mut Channel<ClientSide, AnswerHead>,
        now: Instant,
        receiver: &dyn Receiver<T>,
    ) {
        while let Some((deadline, stream)) = self.deadlines.front().copied() {
            let is_answered = !self.sent.contains_key(&stream);
            if !is_answered && now < deadline {
                return;
            }
            self.deadlines.pop_front();
            if !is_answered {
                channel.http.reset(stream, ErrorCode::Cancel);
                self.fail(stream, Failure::Timeout, receiver);
            }
        }
    }

    /// Reports that the connection has ended.
    pub fn fail_all(&mut self, receiver: &dyn Receiver<T>) {
        self.deadlines.clear();
        let streams: Vec<u32> = self.sent.keys().copied().collect();
        for stream in streams {
            self.fail(stream, Failure::Connection, receiver);
        }
    }

    /// Frees memory that is kept for the next requests.
    pub fn release_memory(&mut self) {
        self.sent.shrink_to_fit();
        self.deadlines.shrink_to_fit();
    }
}
