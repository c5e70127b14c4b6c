//! gRPC on one HTTP/2 connection, without I/O. Turns requests into [`CallEvent`]s, and
//! payloads and statuses into responses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{
    CommonField, ConnectMethod, ConnectionError, Data, ErrorCode, Event, Fields, Headers, Limits,
    ResponseHead, StreamMap,
};

use crate::admission::{Admission, Unread};
use crate::assembler::{Assembler, MessageLimits, UnreadMessage};
use crate::budget::{Account, Share};
use crate::config::ServerConfig;
use crate::metadata::{self, Metadata};
use crate::open_streams::OpenStreams;
use crate::payload::Payload;
use crate::request::{GrpcRequest, MethodId, Methods, RequestKind};
use crate::status::Status;

/// Header fields of each response that is not only an error.
static HEAD: [CommonField; 1] = [CommonField { name: "content-type", value: "application/grpc" }];
/// Trailers of a successful call.
static OK: [CommonField; 1] = [CommonField { name: "grpc-status", value: "0" }];

/// The memory of an incomplete request that is not gRPC, without its path.
const PAGE_BYTES: usize = 256;

/// What has happened to a call or a page.
#[derive(Debug)]
pub(crate) enum CallEvent {
    /// A call with one request message has been received completely.
    Call {
        stream: u32,
        method: MethodId,
        deadline: Option<Instant>,
        metadata: Option<Arc<Metadata>>,
        message: UnreadMessage,
    },
    /// The client opened a call with a stream of request messages.
    Opened {
        stream: u32,
        method: MethodId,
        deadline: Option<Instant>,
        metadata: Option<Arc<Metadata>>,
    },
    /// The next request message of such a call has been received.
    Message { stream: u32, message: UnreadMessage },
    /// The client sends no more request messages on such a call.
    Ended { stream: u32 },
    /// A request that is not gRPC has been received completely. Its body was discarded.
    Page { stream: u32, verb: http::Method, path: String },
    /// The client reset the call.
    Reset { stream: u32 },
    /// The client sent something invalid, and nothing of the rest of the request is used. The
    /// call must be ended with `status`.
    Rejected { stream: u32, status: Status },
}

impl CallEvent {
    /// The ID of the stream of the call or page.
    pub(crate) fn stream(&self) -> u32 {
        match self {
            CallEvent::Call { stream, .. }
            | CallEvent::Opened { stream, .. }
            | CallEvent::Message { stream, .. }
            | CallEvent::Ended { stream }
            | CallEvent::Page { stream, .. }
            | CallEvent::Reset { stream }
            | CallEvent::Rejected { stream, .. } => *stream,
        }
    }

    /// Size in bytes of what the client has sent: the message or the path.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            CallEvent::Call { message, .. } | CallEvent::Message { message, .. } => {
                message.bytes.len()
            }
            CallEvent::Page { path, .. } => path.len(),
            _ => 0,
        }
    }

    /// The part of [`CallEvent::bytes`] that does not count against the budget for requests.
    pub(crate) fn uncounted_bytes(&self) -> usize {
        match self {
            CallEvent::Call { message, .. } | CallEvent::Message { message, .. } => {
                message.uncounted_bytes()
            }
            _ => self.bytes(),
        }
    }
}

/// A request whose body is not complete.
enum PartialRequest {
    Call {
        method: MethodId,
        /// When the client stops waiting for the response.
        deadline: Option<Instant>,
        metadata: Option<Arc<Metadata>>,
        assembler: Assembler,
        /// The message of a call with one request message, if it is complete.
        message: Option<UnreadMessage>,
        /// When the bytes that are kept began to arrive.
        since: Instant,
    },
    Page {
        verb: http::Method,
        path: String,
        /// Counts the path against the budget.
        _share: Share,
        since: Instant,
    },
}

impl PartialRequest {
    /// Since when the request has occupied memory; `None` if it occupies none.
    fn kept_since(&self) -> Option<Instant> {
        match self {
            PartialRequest::Page { since, .. } => Some(*since),
            PartialRequest::Call { assembler, message, since, .. } => {
                let keeps = message.is_some() || !assembler.is_between_messages();
                keeps.then_some(*since)
            }
        }
    }
}

/// The gRPC state of one connection.
pub(crate) struct GrpcConnection {
    http2: http2::Connection<GrpcRequest>,
    limits: MessageLimits,
    admission: Admission,
    open_streams: OpenStreams,
    /// The metadata of the last call that had any.
    last_metadata: Option<Arc<Metadata>>,
    /// When the last bytes were received.
    now: Instant,
    /// The newest incomplete request. It is not in `partial`: most requests are directly
    /// followed by their own body, so this saves the map operations.
    newest: Option<(u32, PartialRequest)>,
    /// The other incomplete requests, by stream ID.
    partial: StreamMap<PartialRequest>,
    events: VecDeque<CallEvent>,
}

impl GrpcConnection {
    /// Creates the state. `client_name` is the name that the client has proved by its certificate.
    pub(crate) fn new(config: &ServerConfig, client_name: Option<Arc<str>>, now: Instant) -> Self {
        let http2 = http2::Config {
            max_streams: config.max_streams,
            keepalive: config.keepalive.clone(),
            connect_method: ConnectMethod::Reject,
            limits: Limits::default(),
        };
        let account = Arc::new(Account::new(config.budget.clone()));
        let admission = Admission::new(&config.capacity, account.clone(), client_name);
        let open_streams = OpenStreams::new(&admission);
        let limits = MessageLimits { message_bytes: config.message_bytes, account };
        GrpcConnection {
            http2: http2::Connection::new(&http2, now),
            limits,
            admission,
            open_streams,
            last_metadata: None,
            now,
            newest: None,
            partial: StreamMap::default(),
            events: VecDeque::new(),
        }
    }

    /// Handles bytes that the client sent. See [`http2::Connection::receive`].
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        methods: &Methods,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        self.now = now;
        self.http2.receive(input, methods, now)
    }

    /// Removes and returns the next event, in the order of arrival.
    pub(crate) fn next_event(&mut self) -> Option<CallEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let event = self.http2.next_event()?;
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: Event<RequestKind>) {
        match event {
            Event::Request { stream, request, fields_too_large, end_stream } => {
                self.handle_request(stream, request, fields_too_large, end_stream);
            }
            Event::Data { stream, bytes, end_stream } => {
                match self.remove_partial(stream) {
                    Some(request) => self.handle_body(stream, request, bytes, end_stream),
                    // The call has already ended with an error.
                    None => self.http2.release(stream, bytes.len() as i64),
                }
            }
            Event::Trailers { stream, .. } => {
                if let Some(request) = self.remove_partial(stream) {
                    self.complete_request(stream, request);
                }
            }
            Event::Reset { stream, .. } => {
                self.remove_partial(stream);
                self.events.push_back(CallEvent::Reset { stream });
            }
            Event::Response { .. } | Event::Unprocessed { .. } => {
                unreachable!("only a client has these events")
            }
        }
    }

    fn remove_partial(&mut self, stream: u32) -> Option<PartialRequest> {
        match self.newest.take_if(|(newest, _)| *newest == stream) {
            Some((_, request)) => Some(request),
            None => self.partial.remove(&stream),
        }
    }

    fn keep_partial(&mut self, stream: u32, request: PartialRequest) {
        if let Some((older, request)) = self.newest.replace((stream, request)) {
            self.partial.insert(older, request);
        }
    }

    fn handle_request(
        &mut self,
        stream: u32,
        request: RequestKind,
        fields_too_large: bool,
        end_stream: bool,
    ) {
        if fields_too_large {
            let status = Status::resource_exhausted("grpc: the header fields are too large");
            return self.respond_error(stream, &status);
        }
        if let Err(status) = self.open_streams.admit(self.http2.open_streams()) {
            let is_page = matches!(request, RequestKind::Page { .. });
            return self.send_error(stream, if is_page { 503 } else { 200 }, &status);
        }
        let request = match request {
            RequestKind::Unsupported(status) => return self.respond_error(stream, &status),
            // As grpc-go does.
            RequestKind::Malformed(status) => return self.send_error(stream, 400, &status),
            RequestKind::Page { verb, path } => {
                let mut share = Share::new(self.limits.account.clone());
                if !end_stream && let Err(status) = share.grow(PAGE_BYTES + path.len()) {
                    return self.send_error(stream, 503, &status);
                }
                PartialRequest::Page { verb, path, _share: share, since: self.now }
            }
            RequestKind::Call(method, timeout, fields) => {
                let metadata = match self.metadata(fields) {
                    Ok(metadata) => metadata,
                    Err(status) => return self.respond_error(stream, &status),
                };
                let deadline = timeout.map(|timeout| self.now + timeout);
                if method.client_streaming {
                    let metadata = metadata.clone();
                    self.events.push_back(CallEvent::Opened { stream, method, deadline, metadata });
                }
                let (assembler, message, since) = (Assembler::default(), None, self.now);
                PartialRequest::Call { method, deadline, metadata, assembler, message, since }
            }
        };
        match end_stream {
            true => self.complete_request(stream, request),
            false => self.keep_partial(stream, request),
        }
    }

    /// Returns the metadata of a call; `None` if handlers may read none of its fields.
    fn metadata(
        &mut self,
        fields: Option<Box<metadata::Fields>>,
    ) -> Result<Option<Arc<Metadata>>, Status> {
        let new = |fields: Box<metadata::Fields>| {
            Metadata::new(*fields, &mut self.last_metadata, &self.limits.account)
        };
        fields.map(new).transpose()
    }

    /// Adds bytes to the body of a request.
    fn handle_body(&mut self, stream: u32, mut request: PartialRequest, bytes: Bytes, end: bool) {
        // The bytes of streamed messages are released when the handler reads them.
        let mut release = bytes.len() as i64;
        if let PartialRequest::Call { method, assembler, message, since, .. } = &mut request {
            let (streaming, events) = (method.client_streaming, &mut self.events);
            let (queued, mut surplus) = (streaming || !end, false);
            if assembler.is_between_messages() && message.is_none() {
                *since = self.now;
            }
            let pushed = assembler.push(bytes, &self.limits, queued, |found| match streaming {
                true => {
                    *since = self.now;
                    release -= found.framed_len() as i64;
                    events.push_back(CallEvent::Message { stream, message: found });
                }
                false => surplus |= message.replace(found).is_some(),
            });
            let too_many = || Status::internal("grpc: a unary call with more than one message");
            if let Some(status) = pushed.err().or_else(|| surplus.then(too_many)) {
                return self.reject(stream, status);
            }
        }
        self.http2.release(stream, release);
        match end {
            true => self.complete_request(stream, request),
            false => self.keep_partial(stream, request),
        }
    }

    /// Handles the end of a request.
    fn complete_request(&mut self, stream: u32, request: PartialRequest) {
        let event = match request {
            PartialRequest::Page { verb, path, .. } => CallEvent::Page { stream, verb, path },
            PartialRequest::Call { assembler, .. } if !assembler.is_between_messages() => {
                let status = Status::internal("grpc: the request ends within a message");
                return self.reject(stream, status);
            }
            PartialRequest::Call { method, .. } if method.client_streaming => {
                CallEvent::Ended { stream }
            }
            PartialRequest::Call { method, deadline, metadata, message, .. } => match message {
                Some(message) => CallEvent::Call { stream, method, deadline, metadata, message },
                None => {
                    let status = Status::internal("grpc: a unary call without a message");
                    return self.reject(stream, status);
                }
            },
        };
        self.events.push_back(event);
    }

    /// What the requests of the connection use of the budget, in bytes.
    pub(crate) fn request_bytes(&self) -> usize {
        self.limits.account.used()
    }

    /// If the memory for requests is scarce, ends requests that have been incomplete for `timeout`,
    /// until the connection uses no more than its guaranteed part. Returns their number.
    pub(crate) fn end_overdue(&mut self, now: Instant, timeout: Duration) -> usize {
        if !self.limits.account.should_shrink() {
            return 0;
        }
        let newest = self.newest.iter().map(|(stream, request)| (stream, request));
        let is_overdue = |request: &PartialRequest| {
            let since = request.kept_since();
            since.is_some_and(|since| now.saturating_duration_since(since) >= timeout)
        };
        let overdue = newest.chain(&self.partial).filter(|(_, request)| is_overdue(request));
        let overdue: Vec<u32> = overdue.map(|(stream, _)| *stream).collect();
        let mut ended = 0;
        for stream in overdue {
            if !self.limits.account.exceeds_part() {
                break;
            }
            self.remove_partial(stream);
            let text = "grpc: the request stayed incomplete for long while memory is scarce";
            self.reject(stream, Status::resource_exhausted(text));
            ended += 1;
        }
        ended
    }

    /// Ends a call with an error, because the client sent something invalid.
    fn reject(&mut self, stream: u32, status: Status) {
        self.events.push_back(CallEvent::Rejected { stream, status });
    }
}

/// Responses. They are discarded if the stream is closed.
impl GrpcConnection {
    /// Sends the complete response to a unary call.
    pub(crate) fn respond(&mut self, stream: u32, payload: Payload) {
        self.http2.respond(stream, response_head(), payload.into_data(), Some(ok_trailers()));
    }

    /// Sends a response that consists of an error only.
    pub(crate) fn respond_error(&mut self, stream: u32, status: &Status) {
        self.send_error(stream, 200, status);
    }

    fn send_error(&mut self, stream: u32, http_status: u16, status: &Status) {
        let mut fields = Fields::default();
        fields.push(b"content-type", b"application/grpc");
        push_status(&mut fields, status);
        let head = ResponseHead { status: http_status, headers: Headers::Fields(fields) };
        self.http2.respond(stream, head, None, None);
    }

    /// Sends the head of a response with several messages.
    pub(crate) fn start_response(&mut self, stream: u32) {
        self.http2.send_head(stream, response_head());
    }

    /// Sends a message. The caller has sent the head.
    pub(crate) fn send_message(&mut self, stream: u32, payload: Payload) {
        payload.into_data().for_each(|data| self.http2.send_data(stream, data));
    }

    /// Ends a response. The caller has sent the head.
    pub(crate) fn finish(&mut self, stream: u32, result: Result<(), &Status>) {
        let trailers = match result {
            Ok(()) => ok_trailers(),
            Err(status) => {
                let mut fields = Fields::default();
                push_status(&mut fields, status);
                Headers::Fields(fields)
            }
        };
        self.http2.finish(stream, Some(trailers));
    }

    /// Responds to a request that is not gRPC.
    pub(crate) fn respond_page(
        &mut self,
        stream: u32,
        verb: &http::Method,
        response: http::Response<Bytes>,
    ) {
        let (parts, body) = response.into_parts();
        let mut fields = Fields::default();
        for (name, value) in &parts.headers {
            fields.push(name.as_str().as_bytes(), value.as_bytes());
        }
        if !parts.headers.contains_key(http::header::CONTENT_LENGTH) {
            fields.push(b"content-length", body.len().to_string().as_bytes());
        }
        let head = ResponseHead { status: parts.status.as_u16(), headers: Headers::Fields(fields) };
        let body = (verb != http::Method::HEAD).then_some(Data::Bytes(body));
        self.http2.respond(stream, head, body, None);
    }
}

/// Methods that only call the HTTP/2 connection.
impl GrpcConnection {
    /// Allows the client to send `bytes` more bytes on a stream.
    pub(crate) fn release(&mut self, stream: u32, bytes: i64) {
        self.http2.release(stream, bytes);
    }

    pub(crate) fn send_capacity(&self, stream: u32) -> usize {
        self.http2.send_capacity(stream)
    }

    /// Decides when the calls of the connection may go on.
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns the memory of streams that have ended. Call it from time to time.
    pub(crate) fn release_streams(&mut self) {
        self.open_streams.release(self.http2.open_streams());
    }

    /// Returns what the client has not read.
    pub(crate) fn unread(&self) -> Unread {
        let memory = self.http2.held_bytes();
        Unread { bytes: self.http2.queued_bytes().max(memory), memory }
    }

    /// See [`http2::Connection::head_bytes`].
    pub(crate) fn head_bytes(&self) -> usize {
        self.http2.head_bytes()
    }

    /// Closes the connection, because of an error of the client.
    pub(crate) fn go_away(&mut self, text: &str) {
        self.http2.go_away(ErrorCode::EnhanceYourCalm, text);
    }

    /// See [`http2::Connection::take_writable`].
    pub(crate) fn take_writable(&mut self) -> Vec<u32> {
        self.http2.take_writable()
    }

    /// Asks the client to open no more streams. Open streams may finish.
    pub(crate) fn drain(&mut self, text: &'static str, now: Instant) {
        self.http2.drain(text, now);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.http2.is_done()
    }

    pub(crate) fn fill_output(&mut self) {
        self.http2.fill_output();
    }

    pub(crate) fn output(&mut self) -> &mut http2::Output {
        self.http2.output()
    }

    pub(crate) fn alarm(&self) -> Option<Instant> {
        self.http2.alarm()
    }

    pub(crate) fn on_alarm(&mut self, now: Instant) -> bool {
        self.http2.on_alarm(now)
    }
}

fn response_head() -> ResponseHead {
    ResponseHead { status: 200, headers: Headers::Common(&HEAD) }
}

fn ok_trailers() -> Headers {
    Headers::Common(&OK)
}

fn push_status(fields: &mut Fields, status: &Status) {
    fields.push(b"grpc-status", (status.code() as u8).to_string().as_bytes());
    fields.push(b"grpc-message", status.encoded_message().as_bytes());
}
