//! The calls of a connection that are in progress.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{FuturesUnordered, Stream};
use http2::StreamMap;

use crate::connection::{CallEvent, GrpcConnection};
use crate::inbox::{ConsumedBytes, Inbox};
use crate::payload::Payload;
use crate::request::MethodId;
use crate::routes::{Handler, ResponseStream, Routes, Service, UnaryResponse};
use crate::status::{Code, Status};

/// New calls with one request message wait while this many bytes of responses wait for
/// the client.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Maximum number of unary calls and pages in progress, including those that the client
/// has reset.
const MAX_UNARY_CALLS: usize = 65_536;
/// Number of messages that one stream may send before other streams have a turn.
const MESSAGES_PER_TURN: usize = 64;

/// The calls of a connection.
pub(crate) struct Calls<S> {
    routes: Arc<Routes<S>>,
    /// Calls and pages with one response message.
    unary: FuturesUnordered<Pin<Box<UnaryCall>>>,
    /// Streaming calls that wait for their next message.
    streaming: FuturesUnordered<Abortable<NextMessage>>,
    /// Streaming calls that wait until the client has read enough of their responses.
    backpressured: Vec<StreamingCall>,
    /// All streaming calls by stream ID, with the handles to pass messages to them and to
    /// abort them.
    open: StreamMap<OpenCall>,
    consumed_bytes: Arc<ConsumedBytes>,
    /// Events that wait until the limits allow another call.
    deferred: VecDeque<CallEvent>,
}

struct OpenCall {
    /// The unread request messages; `None` if the call has only one request message.
    inbox: Option<Arc<Inbox>>,
    abort: AbortHandle,
    method: MethodId,
    /// Whether the head of the response has been sent. It is sent before the first
    /// message.
    head_sent: bool,
}

/// A call or a page with one response message.
enum UnaryCall {
    Call { stream: u32, method: MethodId, response: UnaryResponse },
    Page { stream: u32, verb: http::Method, response: BoxFuture<'static, http::Response<Bytes>> },
}

/// The result of a [`UnaryCall`].
enum UnaryResult {
    Call { stream: u32, method: MethodId, result: Result<Payload, Status> },
    Page { stream: u32, verb: http::Method, response: http::Response<Bytes> },
}

impl Future for UnaryCall {
    type Output = UnaryResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<UnaryResult> {
        match &mut *self {
            UnaryCall::Call { stream, method, response } => {
                let (stream, method) = (*stream, *method);
                let result = response.as_mut().poll(cx);
                result.map(|result| UnaryResult::Call { stream, method, result })
            }
            UnaryCall::Page { stream, verb, response } => {
                let stream = *stream;
                let response = response.as_mut().poll(cx);
                response.map(|response| {
                    let verb = std::mem::take(verb);
                    UnaryResult::Page { stream, verb, response }
                })
            }
        }
    }
}

/// A call with a stream of response messages.
struct StreamingCall {
    stream: u32,
    responses: ResponseStream,
}

/// A future that waits for the next message of a streaming call. It returns the message
/// and the call.
struct NextMessage(Option<StreamingCall>);

impl Future for NextMessage {
    type Output = (Option<Result<Payload, Status>>, StreamingCall);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.0.as_mut().expect("not polled after completion");
        call.responses.as_mut().poll_next(cx).map(|message| {
            let call = self.0.take().expect("checked above");
            (message, call)
        })
    }
}

impl<S: Service> Calls<S> {
    pub(crate) fn new(routes: Arc<Routes<S>>) -> Self {
        Calls {
            routes,
            unary: FuturesUnordered::new(),
            streaming: FuturesUnordered::new(),
            backpressured: Vec::new(),
            open: StreamMap::default(),
            consumed_bytes: Arc::default(),
            deferred: VecDeque::new(),
        }
    }

    /// Handles the events of the connection. Defers calls that the limits do not allow
    /// yet. Returns whether there was any event.
    pub(crate) fn handle_events(&mut self, connection: &mut GrpcConnection) -> bool {
        let mut any = false;
        while self.may_start(connection) {
            let Some(event) = self.deferred.pop_front() else { break };
            self.handle_event(event, connection);
            any = true;
        }
        while let Some(event) = connection.next_event() {
            any = true;
            let starts = matches!(event, CallEvent::Call { .. } | CallEvent::Page { .. });
            match starts && !self.may_start(connection) {
                true => self.deferred.push_back(event),
                false => self.handle_event(event, connection),
            }
        }
        any
    }

    /// Whether the limits allow another call to start.
    fn may_start(&self, connection: &GrpcConnection) -> bool {
        connection.queued_bytes() < MAX_QUEUED_BYTES && self.unary.len() < MAX_UNARY_CALLS
    }

    fn handle_event(&mut self, event: CallEvent, connection: &mut GrpcConnection) {
        match event {
            CallEvent::Call { stream, method, message } => {
                self.start_call(stream, method, message.bytes, connection);
            }
            CallEvent::Opened { stream, method } => {
                let inbox = Inbox::new(stream, self.consumed_bytes.clone());
                let Handler::Bidirectional(handler) = &self.routes.handlers[method.index] else {
                    unreachable!("the method has a stream of requests");
                };
                let responses = handler(&self.routes.service, inbox.clone());
                self.start_streaming(stream, method, Some(inbox), responses);
            }
            CallEvent::Message { stream, message } => {
                if let Some(inbox) = self.inbox(stream) {
                    inbox.push(message);
                }
            }
            CallEvent::Ended { stream } => {
                if let Some(inbox) = self.inbox(stream) {
                    inbox.end();
                }
            }
            CallEvent::Page { stream, verb, path } => {
                self.start_page(stream, verb, path, connection)
            }
            CallEvent::Reset { stream } => self.handle_reset(stream),
        }
    }

    fn inbox(&self, stream: u32) -> Option<&Arc<Inbox>> {
        self.open.get(&stream).and_then(|open| open.inbox.as_ref())
    }

    fn start_call(
        &mut self,
        stream: u32,
        method: MethodId,
        message: Bytes,
        connection: &mut GrpcConnection,
    ) {
        match &self.routes.handlers[method.index] {
            Handler::Unary(handler) => {
                let response = handler(&self.routes.service, message);
                self.start_unary(UnaryCall::Call { stream, method, response }, connection);
            }
            Handler::ServerStream(handler) => {
                let responses = handler(&self.routes.service, message);
                self.start_streaming(stream, method, None, responses);
            }
            Handler::Bidirectional(_) => unreachable!("the method has one request message"),
        }
    }

    fn start_page(
        &mut self,
        stream: u32,
        verb: http::Method,
        path: String,
        connection: &mut GrpcConnection,
    ) {
        let request = http::Request::builder().method(verb.clone()).uri(path).body(());
        let response = match request {
            Ok(request) => self.routes.service.page(request),
            Err(_) => {
                let mut response = http::Response::new(Bytes::new());
                *response.status_mut() = http::StatusCode::BAD_REQUEST;
                Box::pin(std::future::ready(response))
            }
        };
        self.start_unary(UnaryCall::Page { stream, verb, response }, connection);
    }

    /// Polls a handler for the first time. Most reads of the store complete in this poll.
    /// [`Calls::poll`] polls a pending handler again, after the handlers of all other
    /// requests of the same socket read have been started. So handlers that yield once
    /// are batched without a wake-up of the task.
    fn start_unary(&mut self, call: UnaryCall, connection: &mut GrpcConnection) {
        let mut call = Box::pin(call);
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => self.send_unary_result(result, connection),
            Poll::Pending => self.unary.push(call),
        }
    }

    fn start_streaming(
        &mut self,
        stream: u32,
        method: MethodId,
        inbox: Option<Arc<Inbox>>,
        responses: ResponseStream,
    ) {
        let (abort, registration) = AbortHandle::new_pair();
        let next = NextMessage(Some(StreamingCall { stream, responses }));
        self.streaming.push(Abortable::new(next, registration));
        self.open.insert(stream, OpenCall { inbox, abort, method, head_sent: false });
    }

    fn handle_reset(&mut self, stream: u32) {
        self.deferred.retain(|event| event.stream() != stream);
        if let Some(open) = self.open.remove(&stream) {
            open.abort.abort();
            self.backpressured.retain(|call| call.stream != stream);
            self.report_end(open.method, Code::Cancelled);
        }
    }

    /// Polls the handlers that can make progress, and sends their responses. Returns
    /// whether there was any response.
    pub(crate) fn poll(&mut self, connection: &mut GrpcConnection, cx: &mut Context<'_>) -> bool {
        let unary = self.poll_unary(connection, cx);
        let streaming = self.poll_streaming(connection, cx);
        for (stream, bytes) in self.consumed_bytes.take(cx.waker()) {
            connection.release(stream, bytes);
        }
        unary || streaming
    }

    fn poll_unary(&mut self, connection: &mut GrpcConnection, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(result)) = Pin::new(&mut self.unary).poll_next(cx) {
            self.send_unary_result(result, connection);
            any = true;
        }
        any
    }

    fn send_unary_result(&self, result: UnaryResult, connection: &mut GrpcConnection) {
        match result {
            UnaryResult::Page { stream, verb, response } => {
                connection.respond_page(stream, &verb, response);
            }
            UnaryResult::Call { stream, method, result } => {
                let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
                self.report_end(method, code);
                match result.and_then(check_size) {
                    Ok(payload) => connection.respond(stream, payload),
                    Err(status) => connection.respond_error(stream, &status),
                }
            }
        }
    }

    fn poll_streaming(&mut self, connection: &mut GrpcConnection, cx: &mut Context<'_>) -> bool {
        self.resume_backpressured(connection);
        let mut any = false;
        while let Poll::Ready(Some(next)) = Pin::new(&mut self.streaming).poll_next(cx) {
            // An error means that the call was aborted.
            if let Ok((message, call)) = next {
                any = true;
                self.send_messages(message, call, connection);
            }
        }
        any
    }

    /// Sends a message of a streaming call, and the next messages if they are ready.
    fn send_messages(
        &mut self,
        mut message: Option<Result<Payload, Status>>,
        mut call: StreamingCall,
        connection: &mut GrpcConnection,
    ) {
        let stream = call.stream;
        let mut noop = Context::from_waker(Waker::noop());
        for left in (0..MESSAGES_PER_TURN).rev() {
            match message.map(|message| message.and_then(check_size)) {
                Some(Ok(payload)) => self.send_message(stream, payload, connection),
                Some(Err(status)) => return self.end_streaming(stream, Err(status), connection),
                None => return self.end_streaming(stream, Ok(()), connection),
            }
            if connection.send_capacity(stream) == 0 {
                return self.backpressured.push(call);
            }
            if left == 0 {
                break;
            }
            match call.responses.as_mut().poll_next(&mut noop) {
                Poll::Ready(next) => message = next,
                // `wait_for_message` polls it again, with the waker of the task.
                Poll::Pending => break,
            }
        }
        self.wait_for_message(call);
    }

    fn send_message(&mut self, stream: u32, payload: Payload, connection: &mut GrpcConnection) {
        let Some(open) = self.open.get_mut(&stream) else { return };
        if !std::mem::replace(&mut open.head_sent, true) {
            connection.start_response(stream);
        }
        connection.send_message(stream, payload);
    }

    /// Adds a streaming call to those that wait for their next message.
    fn wait_for_message(&mut self, call: StreamingCall) {
        let Some(open) = self.open.get_mut(&call.stream) else { return };
        let (abort, registration) = AbortHandle::new_pair();
        open.abort = abort;
        self.streaming.push(Abortable::new(NextMessage(Some(call)), registration));
    }

    /// Resumes the streaming calls of which the client has read enough.
    fn resume_backpressured(&mut self, connection: &GrpcConnection) {
        for call in std::mem::take(&mut self.backpressured) {
            match connection.send_capacity(call.stream) > 0 {
                true => self.wait_for_message(call),
                false => self.backpressured.push(call),
            }
        }
    }

    /// Ends a streaming call.
    fn end_streaming(
        &mut self,
        stream: u32,
        result: Result<(), Status>,
        connection: &mut GrpcConnection,
    ) {
        let Some(open) = self.open.remove(&stream) else { return };
        let code = result.as_ref().map_or_else(Status::code, |()| Code::Ok);
        self.report_end(open.method, code);
        match result {
            Err(status) if open.head_sent => connection.finish(stream, Err(&status)),
            Err(status) => connection.respond_error(stream, &status),
            Ok(()) => {
                if !open.head_sent {
                    connection.start_response(stream);
                }
                connection.finish(stream, Ok(()));
            }
        }
    }

    /// Ends all streaming calls, because the server is stopping.
    pub(crate) fn stop_streaming(&mut self, connection: &mut GrpcConnection) {
        let streams: Vec<u32> = self.open.keys().copied().collect();
        for stream in streams {
            if let Some(open) = self.open.get(&stream) {
                open.abort.abort();
            }
            let stopping = Status::unavailable("etcdserver: server stopped");
            self.end_streaming(stream, Err(stopping), connection);
        }
        self.backpressured.clear();
    }

    /// Drops all calls, because the connection closes.
    pub(crate) fn drop_all(&mut self) {
        self.unary.clear();
        self.streaming.clear();
        self.backpressured.clear();
        for (_, open) in std::mem::take(&mut self.open) {
            self.report_end(open.method, Code::Cancelled);
        }
        self.deferred.clear();
    }

    fn report_end(&self, method: MethodId, code: Code) {
        self.routes.service.call_ended(self.routes.methods.path(method), code);
    }
}

/// Rejects a message above the size limit of etcd, 2 GiB minus one byte.
fn check_size(payload: Payload) -> Result<Payload, Status> {
    const MAX_BYTES: usize = i32::MAX as usize;
    match payload.len() <= MAX_BYTES {
        true => Ok(payload),
        false => {
            let text = "grpc: trying to send message larger than max";
            Err(Status::resource_exhausted(format!("{text} ({} vs. {MAX_BYTES})", payload.len())))
        }
    }
}
