//! The state of one connection and its interface.
//!
//! The submodules handle received frames: `receive` finds them in the input and
//! dispatches them, `streams` handles frames of streams, `fields` blocks of header
//! fields, and `control` frames of the connection.

mod control;
mod field_block;
mod fields;
mod receive;
mod streams;

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use crate::config::{
    CONNECTION_WINDOW, Config, ConnectMethod, DEFAULT_WINDOW, MAX_FIELDS_BYTES, STREAM_WINDOW,
};
use crate::event::{ConnectionError, Event};
use crate::frame::{ErrorCode, setting};
use crate::hpack::Decoder;
use crate::liveness::{DueAction, Liveness};
use crate::output::Output;
use crate::request::RequestBuilder;
use crate::response::{Data, Headers, ResponseHead};
use crate::sender::Sender;
use crate::stream::{End, Stream, StreamMap};

/// Number of abandoned streams that are remembered by ID.
const MAX_ABANDONED_STREAMS: usize = 1024;
/// Unframed bytes of one stream's body at which [`Connection::send_capacity`] is zero.
const STREAM_QUEUE_BYTES: usize = 64 << 10;

/// One connection. See the [crate's documentation](crate) for how to drive it.
///
/// Methods that take a stream's ID do nothing if the stream is closed.
pub struct Connection<B: RequestBuilder> {
    max_streams: usize,
    connect: ConnectMethod,
    /// Bytes of an incomplete frame.
    rest: Vec<u8>,
    stage: Stage,
    decoder: Decoder,
    /// An incomplete block of fields.
    block: Option<field_block::FieldBlock>,
    /// The highest stream ID that the client has used.
    last_stream: u32,
    /// Bytes that the client may still send over all streams.
    window: i64,
    /// Bytes received since the last WINDOW_UPDATE of the connection.
    received: i64,
    streams: StreamMap<Stream>,
    /// Streams that the server ended before the request was complete. Frames that the
    /// client had already sent on them are ignored.
    abandoned: HashSet<u32>,
    /// Whether `abandoned` overflowed and lacks some streams.
    abandoned_overflow: bool,
    window_changes: usize,
    /// Whether new streams are refused.
    draining: bool,
    sender: Sender,
    liveness: Liveness,
    events: VecDeque<Event<B::Request>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Preface,
    FirstSettings,
    Open,
}

/// Consequence of an invalid frame.
enum Fault {
    /// Close the connection.
    Connection(ConnectionError),
    /// Reset the stream.
    Stream(u32, ErrorCode),
}

type Checked<T = ()> = Result<T, Fault>;

fn connection_error<T>(code: ErrorCode, message: &'static str) -> Checked<T> {
    Err(Fault::Connection(ConnectionError { code, message }))
}

impl<B: RequestBuilder> Connection<B> {
    /// Creates the state of a new connection. The server's SETTINGS are in the output.
    pub fn new(config: &Config, now: Instant) -> Self {
        let mut sender = Sender::new();
        let mut settings = vec![
            (setting::MAX_CONCURRENT_STREAMS, config.max_streams),
            (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW as u32),
            (setting::MAX_HEADER_LIST_SIZE, MAX_FIELDS_BYTES as u32),
        ];
        if config.connect_method == ConnectMethod::Deliver {
            settings.push((setting::ENABLE_CONNECT_PROTOCOL, 1));
        }
        sender.settings(&settings);
        sender.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW);
        Connection {
            max_streams: config.max_streams as usize,
            connect: config.connect_method,
            rest: Vec::new(),
            stage: Stage::Preface,
            decoder: Decoder::new(),
            block: None,
            last_stream: 0,
            window: CONNECTION_WINDOW,
            received: 0,
            streams: StreamMap::default(),
            abandoned: HashSet::new(),
            abandoned_overflow: false,
            window_changes: 0,
            draining: false,
            sender,
            liveness: Liveness::new(config.keepalive.clone(), now),
            events: VecDeque::new(),
        }
    }

    /// Handles bytes that the client sent, cut anywhere. After an error the output ends
    /// with a GOAWAY frame, and no more bytes may be passed.
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

    /// The next event, in the order of arrival.
    pub fn next_event(&mut self) -> Option<Event<B::Request>> {
        self.events.pop_front()
    }

    /// Allows the client to send `bytes` more on a stream: they have been received and
    /// are no longer in memory.
    pub fn release(&mut self, id: u32, bytes: i64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let incoming = &mut stream.incoming;
        incoming.released += bytes;
        if incoming.released >= STREAM_WINDOW / 2 && !incoming.ended {
            self.sender.window_update(id, incoming.released);
            incoming.window += std::mem::take(&mut incoming.released);
        }
    }

    /// Sends GOAWAY: new streams are refused, open ones may finish.
    pub fn go_away(&mut self, code: ErrorCode, text: &str) {
        self.draining = true;
        self.sender.go_away(self.last_stream, code, text);
    }

    /// Whether either side sent GOAWAY and all streams are finished.
    pub fn is_done(&self) -> bool {
        self.draining && self.streams.is_empty()
    }

    /// When [`Connection::on_time`] is to be called next.
    pub fn alarm(&self) -> Option<Instant> {
        self.liveness.alarm()
    }

    /// Sends a ping if one is due. Returns false if the client has not responded to one
    /// in time, and the connection is to be closed.
    pub fn on_time(&mut self, now: Instant) -> bool {
        let due = self.liveness.on_time(now);
        if due == DueAction::SendPing {
            self.sender.ping();
        }
        due != DueAction::Disconnect
    }
}

/// Responses.
impl<B: RequestBuilder> Connection<B> {
    /// Sends the status and header fields of a response. It must be called once for each
    /// stream, before data and trailers.
    pub fn send_head(&mut self, id: u32, head: ResponseHead) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.outgoing.head = Some(head);
        self.sender.schedule(id, &mut stream.outgoing);
    }

    /// Appends data to the body of a response. There is no limit; a caller that produces
    /// much data checks [`Connection::send_capacity`] first.
    pub fn send_data(&mut self, id: u32, data: Data) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.sender.queue(&mut stream.outgoing, data);
        self.sender.schedule(id, &mut stream.outgoing);
    }

    /// Completes a response, with trailers if there are any. If the request is not
    /// complete by the time the response has been sent, the rest of it is refused with
    /// RST_STREAM (NO_ERROR).
    pub fn finish(&mut self, id: u32, trailers: Option<Headers>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.outgoing.end.is_none() {
            stream.outgoing.end = Some(trailers.map_or(End::Body, End::Trailers));
            self.sender.schedule(id, &mut stream.outgoing);
        }
    }

    /// Sends a whole response at once.
    pub fn respond(
        &mut self,
        id: u32,
        head: ResponseHead,
        body: impl IntoIterator<Item = Data>,
        trailers: Option<Headers>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let outgoing = &mut stream.outgoing;
        outgoing.head = Some(head);
        body.into_iter().for_each(|data| self.sender.queue(outgoing, data));
        outgoing.end = Some(trailers.map_or(End::Body, End::Trailers));
        self.sender.schedule(id, outgoing);
    }

    /// Resets a stream and discards its unsent data.
    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        let Some(stream) = self.streams.remove(&id) else { return };
        self.sender.rst_stream(id, code);
        self.sender.discard(&stream);
        if !stream.incoming.ended {
            self.abandon(id);
        }
    }

    /// Bytes that may be appended to a stream's body before the caller should wait for
    /// the client to read; 0 if the stream is closed.
    pub fn send_capacity(&self, id: u32) -> usize {
        let queued = self.streams.get(&id).map(|stream| stream.outgoing.queued_bytes());
        queued.map_or(0, |queued| STREAM_QUEUE_BYTES.saturating_sub(queued))
    }

    /// Bytes of bodies that have not been framed, over all streams, because the client
    /// has not read enough.
    pub fn queued_bytes(&self) -> usize {
        self.sender.queued_bytes()
    }

    /// Frames responses, as far as the windows and the size of the output allow.
    pub fn fill(&mut self) {
        while let Some(id) = self.sender.fill(&mut self.streams) {
            let ended = self.streams.remove(&id).is_none_or(|stream| stream.incoming.ended);
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

    fn abandon(&mut self, id: u32) {
        if self.abandoned.len() == MAX_ABANDONED_STREAMS {
            self.abandoned.clear();
            self.abandoned_overflow = true;
        }
        self.abandoned.insert(id);
    }
}
