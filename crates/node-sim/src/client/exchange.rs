//! The open requests of one connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{ErrorCode, Event, StreamMap};
use http2_socket::Channel;
use tls_socket::ClientSide;

use super::answer::{Answer, AnswerHead, Failure, Outcome, Part, Receiver, WatchEnd};
use super::request::{CommonFields, Request};

/// The time limit of kubelet's client for heartbeats.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit of other requests. kubelet has none: the server ends what takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A heartbeat that waits for this time shows that the server takes fewer heartbeats than there are.
const CONGESTED: Duration = Duration::from_secs(1);
/// Bytes of an answer that is kept until it is complete. A watch has no limit.
const MAX_ANSWER: usize = 4 << 20;

/// How long the answer to a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// 10 s from when the request was made. It includes waiting for a connection, as in Go's client.
    Heartbeat,
    /// 60 s from when the request was sent.
    Ordinary,
    /// For ever: the answer is a watch.
    Watch,
}

/// A request that was not sent yet.
pub struct Queued<T> {
    /// The owner's name for the request.
    pub tag: T,
    /// The request.
    pub request: Request,
    /// When the owner made it.
    pub since: Instant,
    /// How long the answer may take.
    pub limit: Limit,
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
    /// Heartbeats that must be answered until a time.
    heartbeats: Deadlines,
    /// Other requests that must be answered until a time.
    others: Deadlines,
}

/// Streams with the times until which they must be answered, in the order of these times. Streams that
/// were answered stay until those before them are.
type Deadlines = VecDeque<(Instant, u32)>;

impl<T> Default for Exchange<T> {
    fn default() -> Self {
        Exchange {
            sent: StreamMap::default(),
            heartbeats: VecDeque::new(),
            others: VecDeque::new(),
        }
    }
}

impl<T> Queued<T> {
    /// Whether the request has waited for too long.
    pub fn is_late(&self, now: Instant) -> bool {
        self.limit == Limit::Heartbeat && now >= self.since + HEARTBEAT_TIMEOUT
    }

    /// Whether the request is a heartbeat that has waited for long. Then the newest one is sent first: if the server
    /// takes fewer than there are, each one that is sent in order is answered too late, and none succeeds.
    pub fn is_congested(&self, now: Instant) -> bool {
        self.limit == Limit::Heartbeat && !self.is_late(now) && now >= self.since + CONGESTED
    }

    /// Reports that the request was not sent.
    pub fn fail(self, failure: Failure, receiver: &dyn Receiver<T>) {
        match self.limit {
            Limit::Watch => receiver.watched(self.tag, Part::Ended(WatchEnd::default())),
            Limit::Heartbeat | Limit::Ordinary => {
                receiver.answered(self.tag, Outcome::Failed(failure))
            }
        }
    }
}

impl<T: Copy + PartialEq> Exchange<T> {
    /// Whether no request is open.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether a request has no answer yet. Watches do not count.
    pub fn expects_answer(&self) -> bool {
        self.sent.values().any(|sent| matches!(sent.kind, Kind::Whole(_)))
    }

    /// When the next request is late.
    pub fn deadline(&self) -> Option<Instant> {
        let fronts = [self.heartbeats.front(), self.others.front()];
        fronts.into_iter().flatten().map(|(deadline, _)| *deadline).min()
    }

    /// Sends a request. The connection must accept one more stream.
    pub fn open(
        &mut self,
        channel: &mut Channel<ClientSide, AnswerHead>,
        queued: Queued<T>,
        common: &CommonFields,
        now: Instant,
    ) {
        let Queued { tag, request, since, limit } = queued;
        let (fields, body) = request.into_parts(common);
        let http = &mut channel.http;
        let Some(stream) = http.open(fields, false) else { return };
        if let Some(body) = body {
            http.send_data(stream, body.into());
        }
        http.finish(stream, None);
        let kind = if limit == Limit::Watch { Kind::Watch } else { Kind::Whole(Vec::new()) };
        self.sent.insert(stream, Sent { tag, since, head: AnswerHead::default(), kind });
        match limit {
            Limit::Heartbeat => self.heartbeats.push_back((since + HEARTBEAT_TIMEOUT, stream)),
            Limit::Ordinary => self.others.push_back((now + TIMEOUT, stream)),
            Limit::Watch => {}
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

    /// Removes a request that has its outcome.
    fn remove(&mut self, stream: u32) -> Option<Sent<T>> {
        let sent = self.sent.remove(&stream)?;
        for deadlines in [&mut self.heartbeats, &mut self.others] {
            while deadlines.front().is_some_and(|(_, first)| !self.sent.contains_key(first)) {
                deadlines.pop_front();
            }
        }
        Some(sent)
    }

    fn complete(&mut self, stream: u32, body: &[u8], receiver: &dyn Receiver<T>) {
        let Some(sent) = self.remove(stream) else { return };
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
        let Some(sent) = self.remove(stream) else { return };
        match sent.kind {
            Kind::Watch => {
                let status = Some(sent.head.status).filter(|status| *status != 0);
                let retry_after = sent.head.retry_after;
                receiver.watched(sent.tag, Part::Ended(WatchEnd { status, retry_after }));
            }
            Kind::Whole(_) => receiver.answered(sent.tag, Outcome::Failed(failure)),
        }
    }

    /// Resets a watch, if it is open.
    pub fn cancel(
        &mut self,
        channel: &mut Channel<ClientSide, AnswerHead>,
        tag: T,
        receiver: &dyn Receiver<T>,
    ) {
        let open = self.sent.iter().find(|(_, sent)| sent.tag == tag).map(|(stream, _)| *stream);
        if let Some(stream) = open {
            channel.http.reset(stream, ErrorCode::Cancel);
            self.fail(stream, Failure::Reset, receiver);
        }
    }

    /// Resets the requests that are late.
    pub fn expire(
        &mut self,
        channel: &mut Channel<ClientSide, AnswerHead>,
        now: Instant,
        receiver: &dyn Receiver<T>,
    ) {
        let late = [
            take_late(&mut self.heartbeats, &self.sent, now),
            take_late(&mut self.others, &self.sent, now),
        ];
        for stream in late.into_iter().flatten() {
            channel.http.reset(stream, ErrorCode::Cancel);
            self.fail(stream, Failure::Timeout, receiver);
        }
    }

    /// Reports that the connection has ended.
    pub fn fail_all(&mut self, receiver: &dyn Receiver<T>) {
        self.heartbeats.clear();
        self.others.clear();
        let streams: Vec<u32> = self.sent.keys().copied().collect();
        for stream in streams {
            self.fail(stream, Failure::Connection, receiver);
        }
    }

    /// Frees memory that is kept for the next requests.
    pub fn release_memory(&mut self) {
        self.sent.shrink_to_fit();
        self.heartbeats.shrink_to_fit();
        self.others.shrink_to_fit();
    }
}

/// Removes the deadlines that are not needed any more. Returns the streams that are late.
fn take_late<T>(deadlines: &mut Deadlines, sent: &StreamMap<Sent<T>>, now: Instant) -> Vec<u32> {
    let mut late = Vec::new();
    while let Some((deadline, stream)) = deadlines.front().copied() {
        let is_open = sent.contains_key(&stream);
        if is_open && now < deadline {
            break;
        }
        deadlines.pop_front();
        late.extend(is_open.then_some(stream));
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_heartbeats_are_late_before_they_are_sent() {
        let since = Instant::now();
        let late = |limit, seconds| {
            let queued = Queued { tag: (), request: Request::get("/".into()), since, limit };
            queued.is_late(since + Duration::from_secs(seconds))
        };
        assert!(late(Limit::Heartbeat, 10) && !late(Limit::Heartbeat, 9));
        assert!(!late(Limit::Ordinary, 1000) && !late(Limit::Watch, 1000));
    }

    #[test]
    fn heartbeats_that_wait_are_congested_until_they_are_late() {
        let since = Instant::now();
        let congested = |limit, millis| {
            let queued = Queued { tag: (), request: Request::get("/".into()), since, limit };
            queued.is_congested(since + Duration::from_millis(millis))
        };
        assert_eq!(
            [999, 1000, 9999, 10_000].map(|it| congested(Limit::Heartbeat, it)),
            [false, true, true, false]
        );
        assert!(!congested(Limit::Ordinary, 5000) && !congested(Limit::Watch, 5000));
    }

    #[test]
    fn streams_are_late_if_they_have_no_answer() {
        let mut sent = StreamMap::default();
        let now = Instant::now();
        let mut deadlines = Deadlines::new();
        for (number, stream) in [1, 3, 5, 7].into_iter().enumerate() {
            deadlines.push_back((now + Duration::from_secs(number as u64), stream));
            let head = AnswerHead::default();
            sent.insert(stream, Sent { tag: (), since: now, head, kind: Kind::Watch });
        }
        sent.remove(&1);
        assert_eq!(take_late(&mut deadlines, &sent, now + Duration::from_secs(2)), [3, 5]);
        assert_eq!(deadlines.len(), 1);
        assert!(take_late(&mut deadlines, &sent, now + Duration::from_secs(2)).is_empty());
    }
}
