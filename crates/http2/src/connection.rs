//! The state of one connection and its interface.
//!
//! The submodules handle received frames. `receive` splits the input into frames and
//! dispatches them. `streams` handles DATA, RST_STREAM and PRIORITY, `fields` handles
//! blocks of header fields, and `control` handles SETTINGS, PING and WINDOW_UPDATE.

mod control;
mod field_block;
mod fields;
mod receive;
mod streams;
mod waste;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Config, ConnectMethod, DEFAULT_WINDOW, Limits, Refill, Role};
use crate::event::{ConnectionError, Event};
use crate::fields::Fields;
use crate::frame::{ErrorCode, FrameHeader, setting};
use crate::hpack::Decoder;
use crate::liveness::{DueAction, Liveness};
use crate::output::Output;
use crate::request::RequestBuilder;
use crate::response::{Data, Headers, ResponseHead};
use crate::sender::{DRAIN_PING, Ended, LIVENESS_PING, Sender};
use crate::stream::{Head, STREAM_QUEUE_BYTES, Stream, StreamMap};

use self::waste::Waste;

/// Maximum number of IDs in [`Connection::abandoned`].
const MAX_ABANDONED_STREAMS: usize = 1024;
/// How long a client has to acknowledge the ping of [`Connection::drain`].
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The highest ID that a stream can have (RFC 9113, section 5.1.1).
const MAX_STREAM_ID: u32 = (1 << 31) - 1;

/// One connection. See the [crate's documentation](crate) for how to drive it.
///
/// Methods that take a stream's ID do nothing if that stream is not open.
pub struct Connection<B: RequestBuilder> {
    role: Role,
    limits: Limits,
    max_streams: usize,
    /// How many streams the peer lets this side open. Only a client opens streams.
    peer_max_streams: u32,
    connect_method: ConnectMethod,
    /// The received part of a frame, or of the preface, whose rest has not arrived.
    incomplete_frame: Vec<u8>,
    /// The header of a DATA frame whose rest has not arrived, with the length of the rest. Its
    /// first part was delivered.
    data_rest: Option<FrameHeader>,
    stage: Stage,
    decoder: Decoder,
    /// A block of fields whose last CONTINUATION frame has not arrived.
    incomplete_block: Option<field_block::FieldBlock>,
    /// The highest stream ID that has been used.
    last_stream: u32,
    /// Bytes that the client may still send on all streams together.
    receive_window: i64,
    /// Bytes that the peer may send again, and has not been told by a WINDOW_UPDATE.
    received_bytes: i64,
    streams: StreamMap<Stream>,
    /// IDs of streams that the server ended before the request was complete. Frames that
    /// the client sent before it learned of the end are ignored.
    abandoned: HashSet<u32>,
    /// Whether `abandoned` was full and has been cleared, so that it lacks streams.
    abandoned_overflow: bool,
    waste: Waste,
    /// Set between the two GOAWAY frames of [`Connection::drain`].
    announced_drain: Option<AnnouncedDrain>,
    /// Whether the client has sent GOAWAY, or the server has sent the last one. New streams
    /// are then refused.
    draining: bool,
    sender: Sender,
    liveness: Liveness,
    events: VecDeque<Event<B::Request>>,
    /// Number of [`Event::Request`]s in `events`.
    waiting_requests: usize,
}

/// The first GOAWAY frame of [`Connection::drain`] has been sent.
struct AnnouncedDrain {
    /// When the second frame is sent, even if the ping is not acknowledged.
    deadline: Instant,
    text: &'static str,
}

/// What the client has to send next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Preface,
    FirstSettings,
    /// Any frame.
    Open,
}

/// Consequence of an invalid frame.
enum Fault {
    /// Close the connection.
    Connection(ConnectionError),
    /// Reset the stream.
    Stream(u32, ErrorCode),
}

impl From<ConnectionError> for Fault {
    fn from(error: ConnectionError) -> Self {
        Fault::Connection(error)
    }
}

/// Result of handling a frame.
type FrameResult<T = ()> = Result<T, Fault>;

fn connection_error<T>(code: ErrorCode, message: &'static str) -> FrameResult<T> {
    Err(Fault::Connection(ConnectionError { code, message }))
}

impl<B: RequestBuilder> Connection<B> {
    /// Creates the state of a server's new connection. The output contains its SETTINGS.
    pub fn new(config: &Config, now: Instant) -> Self {
        let mut settings = vec![(setting::MAX_CONCURRENT_STREAMS, config.max_streams)];
        if config.connect_method == ConnectMethod::Deliver {
            settings.push((setting::ENABLE_CONNECT_PROTOCOL, 1));
        }
        let sender = Sender::new(config.limits.output_bytes);
        Connection::with_role(Role::Server, config, sender, settings, now)
    }

    /// Creates the state of a client's new connection. The output contains the preface and its
    /// SETTINGS. `config.max_streams` and `config.connect_method` have no effect.
    pub fn client(config: &Config, now: Instant) -> Self {
        let mut sender = Sender::new(config.limits.output_bytes);
        sender.preface();
        let settings = vec![(setting::ENABLE_PUSH, 0)];
        Connection::with_role(Role::Client, config, sender, settings, now)
    }

    fn with_role(
        role: Role,
        config: &Config,
        mut sender: Sender,
        mut settings: Vec<(u16, u32)>,
        now: Instant,
    ) -> Self {
        let limits = config.limits;
        settings.push((setting::INITIAL_WINDOW_SIZE, limits.stream_window));
        settings.push((setting::MAX_HEADER_LIST_SIZE, limits.fields_bytes as u32));
        sender.settings(&settings);
        sender.window_update(0, i64::from(limits.connection_window) - DEFAULT_WINDOW);
        Connection {
            role,
            limits,
            peer_max_streams: u32::MAX,
            max_streams: config.max_streams as usize,
            connect_method: config.connect_method,
            incomplete_frame: Vec::new(),
            data_rest: None,
            stage: match role {
                Role::Server => Stage::Preface,
                Role::Client => Stage::FirstSettings,
            },
            decoder: Decoder::new(),
            incomplete_block: None,
            last_stream: 0,
            receive_window: limits.connection_window.into(),
            received_bytes: 0,
            streams: StreamMap::default(),
            abandoned: HashSet::new(),
            abandoned_overflow: false,
            waste: Waste::default(),
            announced_drain: None,
            draining: false,
            sender,
            liveness: Liveness::new(config.keepalive.clone(), now),
            events: VecDeque::new(),
            waiting_requests: 0,
        }
    }

    /// Handles bytes that the peer sent. They may begin and end within a frame. After
    /// an error, the output ends with a GOAWAY frame, and the caller must not call it
    /// again.
    pub fn receive(
        &mut self,
        input: &[u8],
        context: &B::Context,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        self.liveness.received(now);
        let received = self.receive_bytes(input, context, now);
        received.inspect_err(|error| self.go_away(error.code, error.message))
    }

    /// Removes and returns the next event. Events have the order of the received frames.
    pub fn next_event(&mut self) -> Option<Event<B::Request>> {
        let event = self.events.pop_front();
        if matches!(event, Some(Event::Request { .. })) {
            self.waiting_requests -= 1;
        }
        event
    }

    /// Allows the client to send as many more bytes on a stream. `bytes` is a number of
    /// received bytes that are no longer in memory.
    pub fn release(&mut self, id: u32, bytes: i64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let incoming = &mut stream.incoming;
        incoming.held -= bytes;
        incoming.released += bytes;
        if incoming.released >= i64::from(self.limits.stream_window) / 2 && !incoming.ended {
            self.sender.window_update(id, incoming.released);
            incoming.window += std::mem::take(&mut incoming.released);
        }
        if self.limits.refill == Refill::OnRelease {
            self.refill_connection_window(bytes);
        }
    }

    /// Sends GOAWAY. From now on new streams are refused; open streams may finish.
    pub fn go_away(&mut self, code: ErrorCode, text: &str) {
        self.announced_drain = None;
        self.draining = true;
        let last_stream = match self.role {
            Role::Server => self.last_stream,
            // A server opens no streams.
            Role::Client => 0,
        };
        self.sender.go_away(last_stream, code, text);
    }

    /// Ends the connection without a failed request (RFC 9113, section 6.8). Asks the client
    /// to open no more streams, with a GOAWAY frame that names no last stream, and sends a
    /// ping. Streams that the client opened before it got this frame are still served. When
    /// the client has acknowledged the ping, or after [`DRAIN_TIMEOUT`], a second GOAWAY
    /// frame names the last stream.
    pub fn drain(&mut self, text: &'static str, now: Instant) {
        if !self.draining && self.announced_drain.is_none() {
            self.announced_drain = Some(AnnouncedDrain { deadline: now + DRAIN_TIMEOUT, text });
            self.sender.go_away(MAX_STREAM_ID, ErrorCode::NoError, text);
            self.sender.ping(DRAIN_PING);
        }
    }

    /// Sends the second GOAWAY frame of [`Connection::drain`].
    fn finish_drain(&mut self) {
        if let Some(drain) = self.announced_drain.take() {
            self.go_away(ErrorCode::NoError, drain.text);
        }
    }

    /// Whether new streams are refused and no stream is open.
    pub fn is_done(&self) -> bool {
        self.draining && self.streams.is_empty()
    }

    /// The time at which the caller must call [`Connection::on_alarm`]; `None` without
    /// keepalive pings.
    pub fn alarm(&self) -> Option<Instant> {
        let drain = self.announced_drain.as_ref().map(|drain| drain.deadline);
        self.liveness.alarm().into_iter().chain(drain).min()
    }

    /// Sends a keepalive ping or the second GOAWAY frame, if one is due. Returns false if the
    /// client has not responded to the last ping within
    /// [`Keepalive::timeout`](crate::Keepalive::timeout). The caller then closes the
    /// connection.
    pub fn on_alarm(&mut self, now: Instant) -> bool {
        if self.announced_drain.as_ref().is_some_and(|drain| drain.deadline <= now) {
            self.finish_drain();
        }
        let due = self.liveness.on_alarm(now);
        if due == DueAction::SendPing {
            self.sender.ping(LIVENESS_PING);
        }
        due != DueAction::Disconnect
    }
}

/// Requests of a client.
impl<B: RequestBuilder> Connection<B> {
    /// Whether a request could be sent now: the server has not sent GOAWAY, and it accepts one
    /// more stream.
    pub fn can_open(&self) -> bool {
        !self.is_ending() && self.streams.len() < self.peer_max_streams as usize
    }

    /// Whether the server's SETTINGS have arrived. Before that, its limit on streams is not known, and
    /// it may refuse streams.
    pub fn is_established(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether no new stream can be opened any more.
    pub fn is_ending(&self) -> bool {
        self.draining || self.last_stream >= MAX_STREAM_ID - 1
    }

    /// Opens a stream with a request and returns its ID, or `None` if
    /// [`can_open`](Self::can_open) is false. `fields` are all fields, pseudo-header fields
    /// first. `answers_head` says that the response has no body, whatever its content-length
    /// says, because the request's method is HEAD. The body follows with
    /// [`send_data`](Self::send_data) and [`finish`](Self::finish).
    pub fn open(&mut self, fields: Fields, answers_head: bool) -> Option<u32> {
        self.open_with(Head::Request(fields), answers_head)
    }

    /// As [`open`](Self::open), for a request whose fields are those of many others. They take a byte each from the
    /// second one on. A program should have few such lists of fields for a connection.
    pub fn open_repeated(&mut self, fields: &Arc<Fields>) -> Option<u32> {
        self.open_with(Head::Repeated(fields.clone()), false)
    }

    fn open_with(&mut self, head: Head, answers_head: bool) -> Option<u32> {
        if !self.can_open() {
            return None;
        }
        let id = match self.last_stream {
            0 => 1,
            last => last + 2,
        };
        self.last_stream = id;
        let window = self.limits.stream_window.into();
        let mut stream = Stream::new(window, self.sender.initial_window(), None);
        stream.incoming.answers_head = answers_head;
        self.sender.queue_head(&mut stream.outgoing, head);
        self.streams.insert(id, stream);
        Some(id)
    }

    /// Lets the head of a request be sent even if its body has not arrived.
    pub fn send_request(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.sender.schedule(id, &mut stream.outgoing);
    }
}

/// Responses, and bodies of requests.
impl<B: RequestBuilder> Connection<B> {
    /// Sends the status and header fields of a response. The caller must call it once for
    /// each stream, before it sends data and trailers.
    pub fn send_head(&mut self, id: u32, head: ResponseHead) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.sender.queue_head(&mut stream.outgoing, Head::Response(head));
        self.sender.schedule(id, &mut stream.outgoing);
    }

    /// Appends data to the body of a response. The amount is not limited; a caller that
    /// produces much data checks [`Connection::send_capacity`] first.
    pub fn send_data(&mut self, id: u32, data: Data) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.sender.queue_data(&mut stream.outgoing, data);
        self.sender.schedule(id, &mut stream.outgoing);
    }

    /// Completes a response, with trailers if there are any. If the whole response has
    /// been framed before the request is complete, RST_STREAM with NO_ERROR follows, and
    /// the rest of the request is ignored.
    pub fn finish(&mut self, id: u32, trailers: Option<Headers>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.outgoing.end().is_none() {
            self.sender.queue_end(&mut stream.outgoing, trailers);
            self.sender.schedule(id, &mut stream.outgoing);
        }
    }

    /// Sends a complete response: head, body and trailers. Has no effect if the response of the
    /// stream is already complete.
    pub fn respond(
        &mut self,
        id: u32,
        head: ResponseHead,
        body: impl IntoIterator<Item = Data>,
        trailers: Option<Headers>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let outgoing = &mut stream.outgoing;
        if outgoing.end().is_some() {
            return;
        }
        self.sender.queue_head(outgoing, Head::Response(head));
        body.into_iter().for_each(|data| self.sender.queue_data(outgoing, data));
        self.sender.queue_end(outgoing, trailers);
        self.sender.schedule(id, outgoing);
    }

    /// Resets a stream and discards its unsent data. The peer does not learn of a request of which nothing was framed: a
    /// reset of a stream that was never opened would end the connection.
    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        let Some(stream) = self.streams.get(&id) else { return };
        if self.role == Role::Client && stream.outgoing.has_head() {
            self.forget(id);
            return;
        }
        let ended = stream.incoming.ended;
        self.sender.rst_stream(id, code);
        self.forget(id);
        if !ended {
            self.abandon(id);
        }
    }

    /// The number of bytes that the caller should append to a stream's body at most,
    /// before it waits for the client to read; 0 if the stream is not open.
    pub fn send_capacity(&self, id: u32) -> usize {
        let queued = self.streams.get(&id).map(|stream| stream.outgoing.queued_bytes());
        queued.map_or(0, |queued| STREAM_QUEUE_BYTES.saturating_sub(queued))
    }

    /// Removes and returns the streams whose [`Connection::send_capacity`] was 0 and is not
    /// any more. A caller that waits for capacity must call it after each
    /// [`Connection::fill_output`].
    pub fn take_writable(&mut self) -> Vec<u32> {
        self.sender.take_writable()
    }

    /// The number of body bytes of a stream that have not been framed yet; 0 if the stream is
    /// not open.
    pub fn queued_bytes_of(&self, id: u32) -> usize {
        self.streams.get(&id).map_or(0, |stream| stream.outgoing.queued_bytes())
    }

    /// Approximate memory in bytes of what a stream has not framed yet; 0 if the stream is not open. Bodies that are
    /// [produced](Data::Lazy) later count little.
    pub fn held_bytes_of(&self, id: u32) -> usize {
        self.streams.get(&id).map_or(0, |stream| stream.outgoing.held_bytes())
    }

    /// Whether nothing of a stream has been framed yet.
    pub fn is_unsent(&self, id: u32) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.outgoing.has_head())
    }

    /// The number of open streams whose [`Event::Request`] was returned.
    pub fn open_streams(&self) -> usize {
        self.streams.len().saturating_sub(self.waiting_requests)
    }

    /// Whether a stream is open.
    pub fn is_open(&self, id: u32) -> bool {
        self.streams.contains_key(&id)
    }

    /// Frees memory that is kept for the next frames. A caller with many idle connections calls
    /// it when a connection becomes idle.
    pub fn release_memory(&mut self) {
        self.sender.release_memory();
        self.decoder.release_memory();
        if self.incomplete_frame.is_empty() {
            self.incomplete_frame = Vec::new();
        }
    }

    /// The number of body bytes of all streams that have not been framed yet, mostly
    /// because the client has not read enough.
    pub fn queued_bytes(&self) -> usize {
        self.sender.queued_bytes()
    }

    /// Approximate memory in bytes of all heads, bodies and trailers that have not been framed
    /// yet.
    pub fn held_bytes(&self) -> usize {
        self.sender.held_bytes()
    }

    /// The part of [`Connection::held_bytes`] that heads have. They wait until the output has
    /// been written, not until the client enlarges a window. So a caller may stop reading
    /// while this is much, or else a client makes it grow without limit.
    pub fn head_bytes(&self) -> usize {
        self.sender.head_bytes()
    }

    /// Appends frames of responses to the output, as far as the windows and the limit on
    /// the output's size allow.
    pub fn fill_output(&mut self) {
        while let Some(ended) = self.sender.fill_output(&mut self.streams) {
            let id = match ended {
                Ended::Complete(id) => id,
                Ended::Failed(id) => {
                    self.reset_stream(id, ErrorCode::EnhanceYourCalm);
                    continue;
                }
            };
            if self.role == Role::Client {
                // The stream stays open for the response.
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.outgoing.complete = true;
                }
                continue;
            }
            let ended = self.streams.get(&id).is_none_or(|stream| stream.incoming.ended);
            self.remove(id);
            if !ended {
                self.sender.rst_stream(id, ErrorCode::NoError);
                self.abandon(id);
            }
        }
    }

    /// The bytes to be written to the socket.
    pub fn output(&mut self) -> &mut Output {
        self.sender.output()
    }

    /// Ignores further frames of a request that the server has ended.
    fn abandon(&mut self, id: u32) {
        if self.abandoned.len() == MAX_ABANDONED_STREAMS {
            self.abandoned.clear();
            self.abandoned_overflow = true;
        }
        self.abandoned.insert(id);
    }
}
