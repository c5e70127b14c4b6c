//! Watches and lists that are served from a watch cache.

use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use http::{Request, StatusCode};
use http2::{Connection, Data, Fields, Headers, ResponseHead};

use super::head::RequestHead;
use super::open_watch::OpenWatch;
use super::session::Session;
use crate::exchange::Exchange;
use crate::forward::watch::MIN_AGE;
use crate::identity::Credential;
use crate::node_path::watches::{
    Begun, Body, Continuation, Frame, GoOn, Item, Opened, Read as ReadRequest, Verb, WaitingRead,
};
use crate::protect::{Admission, List, Refused, Reservation, Waiting};

/// What is due within this time is done together.
const TOLERANCE: Duration = Duration::from_millis(500);
/// Bytes of a watch that wait for the client. Beyond that the watch ends, and the client watches on from
/// the last event that it has read.
const MAX_QUEUED: usize = 256 << 10;

/// Bytes of a watch that pulls its events which wait for the client. Beyond that the others stay in the history of
/// the cache.
const MAX_PULLED: usize = 256 << 10;
/// Bytes of events that are pulled at once.
const PULL: usize = 64 << 10;

/// How a request is answered.
pub(super) enum Read {
    /// From a cache.
    Served(Box<Served>),
    /// From a cache, when its turn has come, or else by an API server, and then perhaps from a cache.
    Waits((Box<WaitingRead>, Waiting), Option<Box<Continuation>>),
    /// Not at all: too many LISTs wait.
    Refused(Refused),
    /// By an API server, and then from a cache.
    Continued(Box<Continuation>),
    /// By an API server.
    Forward,
}

/// A bookmark that is due.
enum Bookmark {
    /// It has this version, and is sent after what is in the mailbox.
    Made(u64, Frame),
    /// It has the version up to which everything was pulled.
    OfPulled,
}

/// What a request gets from a cache.
pub(super) enum Served {
    /// A list: its header and its body.
    List(Fields, Body),
    /// A watch.
    Watch {
        /// How it begins.
        opened: Opened,
        /// Whether bookmarks are wanted.
        bookmarks: bool,
        /// For how long, if the client says so.
        timeout: Option<Duration>,
    },
}

impl Served {
    /// What may have many bytes.
    fn body(&mut self) -> Option<&mut Body> {
        match self {
            Served::List(_, body) => Some(body),
            Served::Watch { opened, .. } => opened.initial.as_mut(),
        }
    }
}

impl Session {
    /// Reads from a cache what a request asks for, if it may be served. `list` is the limit that applies.
    pub(super) fn read(
        &mut self,
        id: u32,
        request: &Request<()>,
        credential: &Credential,
        list: Option<List>,
    ) -> Read {
        let Some(watches) = &self.client.shared.watches else { return Read::Forward };
        let Some(Begun { read, identity, is_allowed }) = watches.begin(request, credential) else {
            return Read::Forward;
        };
        let served = if is_allowed { self.read_cache(id, &read) } else { None };
        let continuation = || Continuation::new(&identity, &read, self.now).map(Box::new);
        let Some(mut served) = served else {
            return continuation().map_or(Read::Forward, Read::Continued);
        };
        let (Some(body), Some(list)) = (served.body(), list) else {
            return Read::Served(Box::new(served));
        };
        let protection = &self.client.shared.protection;
        let bytes = body.len() as u64;
        match protection.lists.enqueue_known(&protection.own_lists, list, bytes) {
            Ok(Admission::Now(reservation)) => {
                self.client.shared.metrics.list_waited(0.0);
                body.reserve(reservation);
                Read::Served(Box::new(served))
            }
            Ok(Admission::Waits(waiting)) => {
                let continuation = continuation();
                Read::Waits((Box::new(WaitingRead { read, identity }), waiting), continuation)
            }
            Err(refused) => Read::Refused(refused),
        }
    }

    /// Reads from a cache; `None` if an API server must answer.
    fn read_cache(&mut self, id: u32, read: &ReadRequest) -> Option<Served> {
        let watches = self.client.shared.watches.as_ref()?;
        match read.verb {
            Verb::WatchList(_) => None,
            Verb::List(at_least) => {
                let (fields, body) = watches.list(read, at_least)?;
                Some(Served::List(fields, body))
            }
            Verb::Watch { start, bookmarks, timeout } => {
                let new = || watches.mailbox(self.client.worker);
                let mailbox = self.mailbox.get_or_insert_with(new);
                let opened = watches.watch(read, start, mailbox, id)?;
                Some(Served::Watch { opened, bookmarks, timeout })
            }
        }
    }

    /// Answers a request whose turn has come. If the cache cannot answer any more, an API server does.
    pub(super) fn take_read_turn(
        &mut self,
        id: u32,
        waiting: &WaitingRead,
        reservation: Reservation,
    ) {
        let watches = self.client.shared.watches.as_ref();
        let is_allowed = watches.is_some_and(|watches| watches.still_allows(waiting));
        let served = if is_allowed { self.read_cache(id, &waiting.read) } else { None };
        let Some(mut served) = served else { return self.submit(id) };
        if let Some(body) = served.body() {
            body.reserve(reservation);
        }
        let Some(stream) = self.streams.remove(&id) else { return };
        self.serve_read(id, served, stream.exchange);
    }

    /// Answers a request from a cache.
    pub(super) fn serve_read(&mut self, id: u32, served: Served, exchange: Exchange) {
        match served {
            Served::List(fields, body) => self.answer_list(id, fields, body, exchange),
            Served::Watch { opened, bookmarks, timeout } => {
                self.open_watch(id, opened, bookmarks, timeout, exchange);
            }
        }
    }

    fn answer_list(&mut self, id: u32, fields: Fields, body: Body, mut exchange: Exchange) {
        exchange.answered_by_gateway(StatusCode::OK);
        exchange.count(body.len());
        let head = ResponseHead { status: 200, headers: Headers::Fields(fields) };
        self.front.http.respond(id, head, [body.into_data()], None);
    }

    fn open_watch(
        &mut self,
        id: u32,
        opened: Opened,
        bookmarks: bool,
        timeout: Option<Duration>,
        mut exchange: Exchange,
    ) {
        let Opened { fields, initial, frames, floor, registration } = opened;
        exchange.answered_by_gateway(StatusCode::OK);
        let head = ResponseHead { status: 200, headers: Headers::Fields(fields) };
        self.front.http.send_head(id, head);
        if let Some(initial) = initial {
            exchange.count(initial.len());
            self.front.http.send_data(id, initial.into_data());
        }
        for frame in frames {
            send(&mut self.front.http, id, frame, &mut exchange);
        }
        let Some(registration) = registration else {
            return self.front.http.finish(id, None);
        };
        let started = self.now;
        let watch = OpenWatch::new(exchange, registration, floor, started, timeout, bookmarks);
        self.add_watch(id, watch);
    }

    fn add_watch(&mut self, id: u32, mut watch: OpenWatch) {
        watch.plan(self.now);
        self.watch_due = earlier(self.watch_due, watch.due());
        if watch.registration.pulls() {
            self.start_to_pull(id);
        }
        self.watches.insert(id, watch);
    }

    /// Lets a cache go on with a watch that is between two events, if it can. The API server's part ends
    /// then. Otherwise the next event is the next chance.
    pub(super) fn try_to_go_on(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.continuation.take_if(|continuation| continuation.is_lost());
        let Some(continuation) = &stream.continuation else { return };
        let Some(position) = continuation.position() else { return };
        let Some(watches) = &self.client.shared.watches else { return };
        let mailbox = self.mailbox.get_or_insert_with(|| watches.mailbox(self.client.worker));
        let Continuation { identity, read, .. } = &**continuation;
        let (frames, registration, got) = match watches.go_on(identity, read, position, mailbox, id)
        {
            GoOn::Open { frames, registration, got } => (frames, registration, got),
            GoOn::Later => return,
            GoOn::Never => {
                stream.continuation = None;
                return;
            }
        };
        let (floor, started, timeout) =
            (position.version, continuation.started, continuation.timeout);
        let Some(stream) = self.streams.remove(&id) else { return };
        self.cancel(&stream);
        let mut exchange = stream.exchange;
        exchange.unassign();
        for frame in frames {
            send(&mut self.front.http, id, frame, &mut exchange);
        }
        let bookmarks = true;
        let mut watch = OpenWatch::new(exchange, registration, floor, started, timeout, bookmarks);
        watch.got = got;
        self.add_watch(id, watch);
    }

    /// Sends what was delivered and what is due. Returns whether there was anything.
    pub(super) fn poll_watches(&mut self, cx: &mut Context<'_>) -> bool {
        if self.watches.is_empty() && self.mailbox.is_none() {
            return false;
        }
        let due = self.watch_due.is_some_and(|due| due <= self.now);
        // What precedes a bookmark is in the mailbox before the bookmark is made.
        let bookmarks = if due { self.due_bookmarks() } else { Vec::new() };
        let delivered = self.deliver(cx.waker());
        for (id, bookmark) in bookmarks {
            self.send_bookmark(id, bookmark);
        }
        if due {
            self.end_expired();
            self.watch_due = self.watches.values().map(OpenWatch::due).min();
        }
        delivered || due
    }

    /// Makes the bookmarks that are due, and plans the next ones.
    fn due_bookmarks(&mut self) -> Vec<(u32, Bookmark)> {
        let until = self.now + TOLERANCE;
        let mut made = Vec::new();
        for (id, watch) in &mut self.watches {
            if watch.bookmark.is_some_and(|due| due <= until) {
                watch.plan(self.now);
                made.push(*id);
            }
        }
        made.into_iter().filter_map(|id| Some((id, self.make_bookmark(id)?))).collect()
    }

    /// Makes a bookmark, before what it covers is delivered.
    fn make_bookmark(&mut self, id: u32) -> Option<Bookmark> {
        let watch = self.watches.get(&id)?;
        if watch.registration.pulls() {
            self.start_to_pull(id);
            return Some(Bookmark::OfPulled);
        }
        watch.registration.bookmark().map(|(version, frame)| Bookmark::Made(version, frame))
    }

    fn send_bookmark(&mut self, id: u32, bookmark: Bookmark) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        let (version, frame) = match bookmark {
            Bookmark::Made(version, frame) => (version, Some(frame)),
            Bookmark::OfPulled => {
                let version = watch.got.version;
                (version, watch.registration.bookmark_at(version))
            }
        };
        let Some(frame) = frame.filter(|_| version > watch.floor) else { return };
        send(&mut self.front.http, id, frame, &mut watch.exchange);
    }

    /// Sends the content of the mailbox. Returns whether there was any.
    fn deliver(&mut self, waker: &Waker) -> bool {
        let Some(mailbox) = &self.mailbox else { return false };
        mailbox.register(waker);
        let delivery = mailbox.take();
        let delivered = !delivery.items.is_empty();
        delivery.announced.into_iter().for_each(|id| self.start_to_pull(id));
        for (id, item) in delivery.items {
            match item {
                Item::Event(frame) => self.send_event(id, frame),
                Item::End => self.end_watch(id),
            }
        }
        if delivery.overflowed {
            // Some events are missing, so that no watch can go on.
            let all: Vec<u32> = self.watches.keys().copied().collect();
            all.into_iter().for_each(|id| self.end_watch(id));
            self.mailbox = None;
        }
        self.pull() || delivered
    }

    /// Pulls events of a watch from now on, until there are no more.
    fn start_to_pull(&mut self, id: u32) {
        if !self.pulling.contains(&id) {
            self.pulling.push(id);
        }
    }

    /// Pulls events until clients must take those before. Returns whether there were any.
    fn pull(&mut self) -> bool {
        let mut has_pulled = false;
        for id in std::mem::take(&mut self.pulling) {
            loop {
                if self.front.http.queued_bytes_of(id) > MAX_PULLED {
                    self.pulling.push(id);
                    break;
                }
                let Some(watch) = self.watches.get_mut(&id) else { break };
                let Some(pulled) = watch.registration.pull(watch.got, PULL) else {
                    self.end_watch(id);
                    break;
                };
                watch.got = pulled.got;
                if !pulled.bytes.is_empty() {
                    has_pulled = true;
                    watch.exchange.count(pulled.bytes.len());
                    self.client.shared.metrics.reads.delivered(pulled.events);
                    self.front.http.send_data(id, Data::Bytes(pulled.bytes.into()));
                }
                if pulled.is_complete {
                    break;
                }
            }
        }
        has_pulled
    }

    fn send_event(&mut self, id: u32, frame: Frame) {
        // Initial events are produced when the client has read those before. They do not count.
        if self.front.http.held_bytes_of(id) > MAX_QUEUED {
            return self.end_watch(id);
        }
        let Some(watch) = self.watches.get_mut(&id) else { return };
        send(&mut self.front.http, id, frame, &mut watch.exchange);
    }

    /// Ends a watch after what was sent, as if its time were over.
    fn end_watch(&mut self, id: u32) {
        if self.watches.remove(&id).is_some() {
            self.front.http.finish(id, None);
        }
    }

    fn end_expired(&mut self) {
        let now = self.now;
        let expired = self.watches.iter().filter(|(_, watch)| watch.deadline <= now);
        let expired: Vec<u32> = expired.map(|(id, _)| *id).collect();
        expired.into_iter().for_each(|id| self.end_watch(id));
    }

    /// Ends the watches of a connection that moves, each after a bookmark, from which the client watches
    /// on. One without bookmarks stays until its time is over.
    pub(super) fn end_served_watches(&mut self, waker: &Waker) {
        let now = self.now;
        let may_end = |watch: &OpenWatch| watch.bookmarks && watch.started + MIN_AGE <= now;
        let ending = self.watches.iter().filter(|(_, watch)| may_end(watch));
        let ending: Vec<u32> = ending.map(|(id, _)| *id).collect();
        let bookmarks: Vec<_> =
            ending.into_iter().filter_map(|id| Some((id, self.make_bookmark(id)?))).collect();
        self.deliver(waker);
        for (id, bookmark) in bookmarks {
            self.send_bookmark(id, bookmark);
            self.end_watch(id);
        }
    }
}

fn send(http: &mut Connection<RequestHead>, id: u32, frame: Frame, exchange: &mut Exchange) {
    exchange.count(frame.len());
    http.send_data(id, Data::Bytes(frame.head));
    http.send_data(id, Data::Bytes(frame.object));
}

/// The earlier one of two times, of which the first may be missing.
fn earlier(first: Option<Instant>, second: Instant) -> Option<Instant> {
    Some(first.map_or(second, |first| first.min(second)))
}
