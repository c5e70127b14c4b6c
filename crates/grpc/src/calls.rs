//! The calls of a connection that are in progress: starts them, polls them, and sends their
//! responses.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use tokio::time::Sleep;

use crate::admission::{Admission, RECHECK_INTERVAL, TOO_MANY_REQUESTS};
use crate::assembler::UnreadMessage;
use crate::connection::{CallEvent, GrpcConnection};
use crate::deadlines::Deadlines;
use crate::deferred::DeferredCalls;
use crate::inbox::{ConsumedBytes, Inbox};
use crate::metadata::Metadata;
use crate::payload::Payload;
use crate::request::MethodId;
use crate::routes::{Handler, ResponseStream, Routes, Service};
use crate::stall::Patience;
use crate::status::{Code, Status};
use crate::streaming::{StreamedRequest, StreamingCalls};
use crate::turn::Turn;
use crate::unary::{UnaryCall, UnaryCalls, UnaryResult, UnaryWork};

/// Maximum number of unary calls and pages in progress.
const MAX_UNARY_CALLS: usize = 65_536;
/// Number of messages that one stream may send before other streams have a turn.
const MESSAGES_PER_TURN: usize = 64;

/// The calls of a connection.
pub(crate) struct Calls<S: Service> {
    routes: Arc<Routes<S>>,
    unary: UnaryCalls,
    streaming: StreamingCalls,
    /// Calls that wait until the limits allow another call.
    deferred: DeferredCalls,
    deadlines: Deadlines,
    admission: Admission,
    /// Expires when a connection that may not go on checks again; `None` if it may.
    recheck: Option<Pin<Box<Sleep>>>,
    consumed_bytes: Arc<ConsumedBytes>,
    /// Whether the server is stopping. Streaming calls are then refused.
    stopping: bool,
}

impl<S: Service> Calls<S> {
    pub(crate) fn new(routes: Arc<Routes<S>>, admission: Admission) -> Self {
        Calls {
            routes,
            unary: UnaryCalls::default(),
            streaming: StreamingCalls::default(),
            deferred: DeferredCalls::new(admission.requests().clone()),
            deadlines: Deadlines::default(),
            admission,
            recheck: None,
            consumed_bytes: Arc::default(),
            stopping: false,
        }
    }

    /// Handles the events of the connection. Defers calls that the limits do not allow
    /// yet, and leaves events if the turn is over. Returns whether there was any event.
    pub(crate) fn handle_events(
        &mut self,
        connection: &mut GrpcConnection,
        turn: &mut Turn,
    ) -> bool {
        let mut any = false;
        connection.release_streams();
        while !self.deferred.is_empty() && self.may_start(connection) && !turn.is_over() {
            let Some(event) = self.deferred.pop() else { break };
            turn.count(event.bytes());
            self.handle_event(event, connection);
            any = true;
        }
        while !turn.is_over() {
            let Some(event) = connection.next_event() else { break };
            any = true;
            turn.count(event.bytes());
            let starts = matches!(event, CallEvent::Call { .. } | CallEvent::Page { .. });
            match starts && !self.may_start(connection) {
                true => self.defer(event, connection),
                false => self.handle_event(event, connection),
            }
        }
        any
    }

    /// Whether the limits allow another call to start.
    fn may_start(&self, connection: &GrpcConnection) -> bool {
        self.unary.len() < MAX_UNARY_CALLS && self.admits(connection)
    }

    /// Whether the connection may hold more responses.
    fn admits(&self, connection: &GrpcConnection) -> bool {
        self.admission.admits(connection.unread(), self.deferred.bytes())
    }

    /// How long the client may make no progress while the connection holds responses for it.
    pub(crate) fn patience(&self, connection: &GrpcConnection) -> Patience {
        self.admission.patience(connection.unread().bytes + self.deferred.bytes())
    }

    /// Lets a call wait, or refuses it if too many wait already.
    fn defer(&mut self, call: CallEvent, connection: &mut GrpcConnection) {
        if let CallEvent::Call { stream, deadline: Some(deadline), .. } = &call {
            self.deadlines.add(*stream, *deadline);
        }
        if let Err(refused) = self.deferred.push(call) {
            let status = Status::resource_exhausted(TOO_MANY_REQUESTS);
            self.end_deferred(refused, &status, connection);
        }
    }

    /// Ends a call that has not started.
    fn end_deferred(&self, call: CallEvent, status: &Status, connection: &mut GrpcConnection) {
        connection.respond_error(call.stream(), status);
        if let CallEvent::Call { method, .. } = call {
            self.report_end(method, status.code());
        }
    }

    fn handle_event(&mut self, event: CallEvent, connection: &mut GrpcConnection) {
        match event {
            CallEvent::Call { stream, method, deadline, metadata, message } => {
                self.start_call(stream, method, deadline, metadata, message, connection);
            }
            CallEvent::Opened { stream, method, deadline, metadata } => {
                let inbox = Inbox::new(stream, self.consumed_bytes.clone());
                let Handler::Bidirectional(handler) = &self.routes.handlers[method.index] else {
                    unreachable!("the method has a stream of requests");
                };
                let responses = self.admission.start_call(metadata, |admission| {
                    handler(&self.routes.service, inbox.clone(), admission)
                });
                let request = StreamedRequest::Messages(inbox);
                self.start_streaming(stream, method, deadline, request, responses, connection);
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
            CallEvent::Rejected { stream, status } => self.reject(stream, status, connection),
            CallEvent::Reset { stream } => self.handle_reset(stream),
        }
    }

    fn inbox(&mut self, stream: u32) -> Option<&Arc<Inbox>> {
        self.streaming.get_mut(stream).and_then(|call| call.request.inbox())
    }

    fn start_call(
        &mut self,
        stream: u32,
        method: MethodId,
        deadline: Option<Instant>,
        metadata: Option<Arc<Metadata>>,
        message: UnreadMessage,
        connection: &mut GrpcConnection,
    ) {
        let (message, share) = message.into_parts();
        match &self.routes.handlers[method.index] {
            Handler::Unary(handler) => {
                let response = self.admission.start_call(metadata, |admission| {
                    handler(&self.routes.service, message, admission)
                });
                let work = UnaryWork::Call { method, response };
                self.start_unary(UnaryCall { stream, deadline, work }, connection);
            }
            Handler::ServerStream(handler) => {
                let share = share.map_or_else(|| self.admission.keep_request(message.len()), Ok);
                let request = match share {
                    Ok(share) => StreamedRequest::Message(share),
                    Err(status) => {
                        self.report_end(method, status.code());
                        return connection.respond_error(stream, &status);
                    }
                };
                let responses = self.admission.start_call(metadata, |admission| {
                    handler(&self.routes.service, message, admission)
                });
                self.start_streaming(stream, method, deadline, request, responses, connection);
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
        let work = UnaryWork::Page { verb, response };
        self.start_unary(UnaryCall { stream, deadline: None, work }, connection);
    }

    fn start_unary(&mut self, call: UnaryCall, connection: &mut GrpcConnection) {
        let stream = call.stream;
        if let Some(result) = self.unary.start(call) {
            self.send_unary_result(stream, result, connection);
        }
    }

    fn start_streaming(
        &mut self,
        stream: u32,
        method: MethodId,
        deadline: Option<Instant>,
        request: StreamedRequest,
        responses: ResponseStream,
        connection: &mut GrpcConnection,
    ) {
        if let Some(deadline) = deadline {
            self.deadlines.add(stream, deadline);
        }
        self.streaming.insert(stream, method, request, responses);
        if self.stopping {
            self.end_streaming(stream, Err(server_stopped()), connection);
        }
    }

    /// Ends a call because the client sent something invalid. A call with one request message
    /// has not started.
    fn reject(&mut self, stream: u32, status: Status, connection: &mut GrpcConnection) {
        match self.streaming.contains(stream) {
            true => self.end_streaming(stream, Err(status), connection),
            false => connection.respond_error(stream, &status),
        }
    }

    fn handle_reset(&mut self, stream: u32) {
        let ended = match self.deferred.remove(stream) {
            Some(CallEvent::Call { method, .. }) => Some(method),
            Some(_) => None,
            None => match self.streaming.remove(stream) {
                Some(call) => Some(call.method),
                None => self.unary.cancel(stream),
            },
        };
        if let Some(method) = ended {
            self.report_end(method, Code::Cancelled);
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
        let expired = self.poll_deadlines(connection, cx);
        self.poll_recheck(connection, cx);
        unary || streaming || expired
    }

    fn poll_unary(&mut self, connection: &mut GrpcConnection, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        loop {
            // Slow reads and replies that wait compare with the bytes that the connection holds.
            self.admits(connection);
            self.admission.let_reply_go_on();
            let next = self.unary.poll_next(&mut self.deadlines, cx);
            let Some((stream, result)) = next else { return any };
            self.send_unary_result(stream, result, connection);
            any = true;
        }
    }

    fn send_unary_result(&self, stream: u32, result: UnaryResult, connection: &mut GrpcConnection) {
        match result {
            UnaryResult::Page { verb, response } => {
                connection.respond_page(stream, &verb, response);
            }
            UnaryResult::Cancelled { method } => self.report_end(method, Code::Cancelled),
            UnaryResult::Call { method, result } => match result.and_then(check_size) {
                Ok(payload) => {
                    self.report_end(method, Code::Ok);
                    connection.respond(stream, payload);
                }
                Err(status) => {
                    self.report_end(method, status.code());
                    connection.respond_error(stream, &status);
                }
            },
        }
    }

    /// Polls each streaming call that may be ready once, while the connection may hold more
    /// messages, and unless too many calls have none.
    fn poll_streaming(&mut self, connection: &mut GrpcConnection, cx: &mut Context<'_>) -> bool {
        for stream in connection.take_writable() {
            self.streaming.resume(stream);
        }
        self.streaming.register(cx);
        let (mut turns, mut any) = (self.streaming.turns(), false);
        while self.admits(connection) {
            let Some((stream, message)) = self.streaming.poll_next(&mut turns) else { break };
            self.send_messages(stream, message, connection);
            any = true;
        }
        if !any && self.streaming.ready_len() > 0 && self.admits(connection) {
            // Calls are left, or one has woken itself. Other connections have a turn first.
            cx.waker().wake_by_ref();
        }
        any
    }

    /// Sends a message of a streaming call, and the next messages if they are ready.
    fn send_messages(
        &mut self,
        stream: u32,
        mut message: Option<Result<Payload, Status>>,
        connection: &mut GrpcConnection,
    ) {
        for left in (0..MESSAGES_PER_TURN).rev() {
            match message.map(|message| message.and_then(check_size)) {
                Some(Ok(payload)) => self.send_message(stream, payload, connection),
                Some(Err(status)) => return self.end_streaming(stream, Err(status), connection),
                None => return self.end_streaming(stream, Ok(()), connection),
            }
            let Some(call) = self.streaming.get_mut(stream) else { return };
            if connection.send_capacity(stream) == 0 {
                call.backpressured = true;
                return;
            }
            if left == 0 {
                return call.poll_again();
            }
            match call.poll_message() {
                Poll::Ready(next) => message = next,
                Poll::Pending => return,
            }
        }
    }

    fn send_message(&mut self, stream: u32, payload: Payload, connection: &mut GrpcConnection) {
        let Some(call) = self.streaming.get_mut(stream) else { return };
        if !std::mem::replace(&mut call.head_sent, true) {
            connection.start_response(stream);
        }
        connection.send_message(stream, payload);
    }

    /// Ends a streaming call.
    fn end_streaming(
        &mut self,
        stream: u32,
        result: Result<(), Status>,
        connection: &mut GrpcConnection,
    ) {
        let Some(call) = self.streaming.remove(stream) else { return };
        let code = result.as_ref().map_or_else(Status::code, |()| Code::Ok);
        self.report_end(call.method, code);
        match result {
            Err(status) if call.head_sent => connection.finish(stream, Err(&status)),
            Err(status) => connection.respond_error(stream, &status),
            Ok(()) => {
                if !call.head_sent {
                    connection.start_response(stream);
                }
                connection.finish(stream, Ok(()));
            }
        }
    }

    /// Ends the calls whose deadline has passed. Returns whether there was any.
    fn poll_deadlines(&mut self, connection: &mut GrpcConnection, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Some(stream) = self.deadlines.poll_expired(cx) {
            self.expire(stream, connection);
            any = true;
        }
        let open = self.unary.len() + self.streaming.len() + self.deferred.len();
        let (unary, streaming, deferred) = (&self.unary, &self.streaming, &self.deferred);
        self.deadlines.forget_ended(open, |stream| {
            unary.is_waiting(stream) || streaming.contains(stream) || deferred.contains(stream)
        });
        any
    }

    fn expire(&mut self, stream: u32, connection: &mut GrpcConnection) {
        let status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");
        if let Some(call) = self.deferred.remove(stream) {
            self.end_deferred(call, &status, connection);
        } else if self.streaming.contains(stream) {
            self.end_streaming(stream, Err(status), connection);
        } else if let Some(method) = self.unary.cancel(stream) {
            self.report_end(method, status.code());
            connection.respond_error(stream, &status);
        }
    }

    /// Lets the task be woken after a while if calls or replies wait for other connections.
    fn poll_recheck(&mut self, connection: &GrpcConnection, cx: &mut Context<'_>) {
        let (calls_wait, streams_wait) =
            (!self.deferred.is_empty(), self.streaming.ready_len() > 0);
        let replies_wait = self.admission.replies_wait();
        if !calls_wait && !streams_wait && !replies_wait {
            self.recheck = None;
            return;
        }
        let admits = self.admits(connection);
        if replies_wait && self.admission.has_room() {
            self.recheck = None;
            return cx.waker().wake_by_ref();
        }
        if admits {
            self.recheck = None;
            // They were not admitted when they were looked at. Another connection has
            // returned bytes since then.
            if streams_wait || self.unary.len() < MAX_UNARY_CALLS {
                cx.waker().wake_by_ref();
            }
            return;
        }
        let sleep = || Box::pin(tokio::time::sleep(RECHECK_INTERVAL));
        while self.recheck.get_or_insert_with(sleep).as_mut().poll(cx).is_ready() {
            self.recheck = None;
        }
    }

    /// Ends all streaming calls, and those that are started later, because the server is
    /// stopping.
    pub(crate) fn stop_streaming(&mut self, connection: &mut GrpcConnection) {
        self.stopping = true;
        for stream in self.streaming.streams() {
            self.end_streaming(stream, Err(server_stopped()), connection);
        }
    }

    /// Drops all calls, because the connection closes.
    pub(crate) fn drop_all(&mut self) {
        let routes = &self.routes;
        let ended = |method| {
            routes.service.call_ended(routes.methods.path(method), Code::Cancelled);
        };
        self.unary.clear(ended);
        self.streaming.clear(ended);
        self.deferred.clear(ended);
    }

    fn report_end(&self, method: MethodId, code: Code) {
        self.routes.service.call_ended(self.routes.methods.path(method), code);
    }
}

/// A connection may end at any time, for example because the client closes it.
impl<S: Service> Drop for Calls<S> {
    fn drop(&mut self) {
        self.drop_all();
    }
}

fn server_stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::BoxFuture;
    use futures_util::task::{ArcWake, waker};
    use http2::Keepalive;

    use super::*;
    use crate::config::ServerConfig;
    use crate::{Budget, Capacity};

    struct NoService;

    impl Service for NoService {
        fn page(&self, _: http::Request<()>) -> BoxFuture<'static, http::Response<Bytes>> {
            Box::pin(std::future::pending())
        }
    }

    struct Wakes(AtomicUsize);

    impl ArcWake for Wakes {
        fn wake_by_ref(this: &Arc<Self>) {
            this.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Another connection may return a part of the budget after this one has deferred a call
    /// and before it decides when to check again. Nobody else wakes it then.
    #[tokio::test]
    async fn a_call_that_may_start_again_is_not_forgotten() {
        let keepalive = Keepalive {
            interval: std::time::Duration::from_secs(10),
            timeout: std::time::Duration::from_secs(1),
            min_interval: std::time::Duration::ZERO,
        };
        let (budget, capacity) = (Budget::new(10_000), Capacity::new(1 << 20, 2));
        let stall_timeout = std::time::Duration::from_secs(1000);
        let (max_streams, message_bytes) = (5, 1000);
        let config =
            ServerConfig { max_streams, message_bytes, budget, capacity, stall_timeout, keepalive };
        let mut connection = GrpcConnection::new(&config, None, Instant::now());
        let routes = Arc::new(Routes::new(Arc::new(NoService)));
        let mut calls = Calls::new(routes, connection.admission().clone());
        let page =
            CallEvent::Page { stream: 1, verb: http::Method::GET, path: "/health".to_owned() };
        calls.defer(page, &mut connection);
        let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
        calls.poll(&mut connection, &mut Context::from_waker(&waker(wakes.clone())));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }
}
