//! The calls of a connection that have not ended.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, Stream};

use crate::connection::{Connection, Event};
use crate::inbox::{Credits, Inbox};
use crate::message::Payload;
use crate::routes::{Answer, Answers, Handler, MethodRef, Routes, Service};
use crate::status::{Code, Status};

/// While so many bytes of answers wait for a client, no more of its calls are
/// started.
const WAITING_BYTES: usize = 64 << 20;
/// And while so many of its calls are under way, those included that it has reset.
const UNARY_CALLS: usize = 65_536;
/// Messages that one stream is asked for before others get a turn.
const MESSAGES_A_TURN: usize = 64;

pub(crate) struct Calls<S> {
    routes: Arc<Routes<S>>,
    /// Calls and pages with one answer.
    unary: FuturesUnordered<Pin<Box<Unary>>>,
    /// Streams that may have something to say. A stream whose client has enough
    /// to read is in `full` instead.
    streaming: FuturesUnordered<Abortable<Next>>,
    full: Vec<Conversation>,
    /// What the client says to its streams, and how they are ended.
    open: HashMap<u32, Open>,
    credits: Arc<Credits>,
    /// Calls that wait until the client has read.
    deferred: VecDeque<Event>,
}

struct Open {
    inbox: Option<Arc<Inbox>>,
    abort: AbortHandle,
    method: MethodRef,
}

/// A call with one answer.
enum Unary {
    Call { stream: u32, method: MethodRef, answer: Answer },
    Page { stream: u32, answer: futures_util::future::BoxFuture<'static, http::Response<Bytes>> },
}

enum Answered {
    Call { stream: u32, method: MethodRef, result: Result<Payload, Status> },
    Page { stream: u32, response: http::Response<Bytes> },
}

impl Future for Unary {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        match &mut *self {
            Unary::Call { stream, method, answer } => {
                let (stream, method) = (*stream, *method);
                let answer = answer.as_mut().poll(cx);
                answer.map(|result| Answered::Call { stream, method, result })
            }
            Unary::Page { stream, answer } => {
                let stream = *stream;
                let answer = answer.as_mut().poll(cx);
                answer.map(|response| Answered::Page { stream, response })
            }
        }
    }
}

/// A call with many answers.
struct Conversation {
    stream: u32,
    answers: Answers,
}

/// The next answer of a conversation, and the conversation.
struct Next(Option<Conversation>);

impl Future for Next {
    type Output = (Option<Result<Payload, Status>>, Conversation);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let conversation = self.0.as_mut().expect("not polled after it is done");
        conversation.answers.as_mut().poll_next(cx).map(|answer| {
            let conversation = self.0.take().expect("it was there");
            (answer, conversation)
        })
    }
}

impl<S: Service> Calls<S> {
    pub(crate) fn new(routes: Arc<Routes<S>>) -> Self {
        Calls {
            routes,
            unary: FuturesUnordered::new(),
            streaming: FuturesUnordered::new(),
            full: Vec::new(),
            open: HashMap::new(),
            credits: Arc::default(),
            deferred: VecDeque::new(),
        }
    }

    /// Starts what the client asked for; whether there was anything.
    pub(crate) fn start(&mut self, connection: &mut Connection) -> bool {
        let mut any = false;
        while self.may_start(connection) {
            let Some(event) = self.deferred.pop_front() else { break };
            self.event(event, connection);
            any = true;
        }
        while let Some(event) = connection.next_event() {
            any = true;
            let starts = matches!(event, Event::Call { .. } | Event::Page { .. });
            match starts && !self.may_start(connection) {
                true => self.deferred.push_back(event),
                false => self.event(event, connection),
            }
        }
        any
    }

    fn may_start(&self, connection: &Connection) -> bool {
        connection.waiting_bytes() < WAITING_BYTES && self.unary.len() < UNARY_CALLS
    }

    fn event(&mut self, event: Event, connection: &mut Connection) {
        match event {
            Event::Call { stream, method, message } => {
                self.call(stream, method, message.bytes, connection);
            }
            Event::Opened { stream, method } => {
                let inbox = Inbox::new(stream, self.credits.clone());
                let Handler::Bidirectional(handler) = &self.routes.handlers[method.index] else {
                    unreachable!("the method takes many messages");
                };
                let answers = handler(&self.routes.service, inbox.clone());
                self.converse(stream, method, Some(inbox), answers);
            }
            Event::Message { stream, message } => {
                if let Some(inbox) = self.inbox(stream) {
                    inbox.push(message);
                }
            }
            Event::Ended { stream } => {
                if let Some(inbox) = self.inbox(stream) {
                    inbox.end();
                }
            }
            Event::Page { stream, verb, path } => self.page(stream, verb, path, connection),
            Event::Reset { stream } => self.reset(stream),
        }
    }

    fn inbox(&self, stream: u32) -> Option<&Arc<Inbox>> {
        self.open.get(&stream).and_then(|open| open.inbox.as_ref())
    }

    fn call(
        &mut self,
        stream: u32,
        method: MethodRef,
        message: Bytes,
        connection: &mut Connection,
    ) {
        match &self.routes.handlers[method.index] {
            Handler::Unary(handler) => {
                let answer = handler(&self.routes.service, message);
                self.begin(Unary::Call { stream, method, answer }, connection);
            }
            Handler::ServerStream(handler) => {
                let answers = handler(&self.routes.service, message);
                self.converse(stream, method, None, answers);
            }
            Handler::Bidirectional(_) => unreachable!("the method takes one message"),
        }
    }

    fn page(&mut self, stream: u32, verb: http::Method, path: String, connection: &mut Connection) {
        let request = http::Request::builder().method(verb).uri(path).body(());
        let answer = match request {
            Ok(request) => self.routes.service.page(request),
            Err(_) => {
                let mut response = http::Response::new(Bytes::new());
                *response.status_mut() = http::StatusCode::BAD_REQUEST;
                Box::pin(std::future::ready(response))
            }
        };
        self.begin(Unary::Page { stream, answer }, connection);
    }

    /// Polls a handler for the first time, which completes most reads. A handler that
    /// is still pending is polled again by [`Calls::poll`], after the handlers of all
    /// other requests of the same read have been started; so it may yield once to be
    /// batched with them, which costs no wake-up of the task.
    fn begin(&mut self, unary: Unary, connection: &mut Connection) {
        let mut unary = Box::pin(unary);
        match unary.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answered) => self.answered(answered, connection),
            Poll::Pending => self.unary.push(unary),
        }
    }

    fn converse(
        &mut self,
        stream: u32,
        method: MethodRef,
        inbox: Option<Arc<Inbox>>,
        answers: Answers,
    ) {
        let (abort, registration) = AbortHandle::new_pair();
        let next = Next(Some(Conversation { stream, answers }));
        self.streaming.push(Abortable::new(next, registration));
        self.open.insert(stream, Open { inbox, abort, method });
    }

    fn reset(&mut self, stream: u32) {
        self.deferred.retain(|event| !event.is_of(stream));
        if let Some(open) = self.open.remove(&stream) {
            open.abort.abort();
            self.full.retain(|conversation| conversation.stream != stream);
            self.routes.service.ended(self.routes.methods.path(open.method), Code::Cancelled);
        }
    }

    /// Polls whatever may go on, and takes what it says; whether it said
    /// anything.
    pub(crate) fn poll(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> bool {
        let unary = self.poll_unary(connection, cx);
        let streaming = self.poll_streaming(connection, cx);
        for (stream, bytes) in self.credits.take(cx.waker()) {
            connection.credit(stream, bytes);
        }
        unary || streaming
    }

    fn poll_unary(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(answered)) = Pin::new(&mut self.unary).poll_next(cx) {
            self.answered(answered, connection);
            any = true;
        }
        any
    }

    fn answered(&self, answered: Answered, connection: &mut Connection) {
        match answered {
            Answered::Page { stream, response } => connection.answer_page(stream, &response),
            Answered::Call { stream, method, result } => {
                let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
                self.routes.service.ended(self.routes.methods.path(method), code);
                let result = result.and_then(sendable);
                let result = result.map(|payload| connection.send(stream, payload));
                connection.finish(stream, result);
            }
        }
    }

    fn poll_streaming(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> bool {
        self.resume(connection);
        let mut any = false;
        while let Poll::Ready(Some(next)) = Pin::new(&mut self.streaming).poll_next(cx) {
            // Otherwise it was aborted.
            if let Ok((answer, conversation)) = next {
                any = true;
                self.said(answer, conversation, connection);
            }
        }
        any
    }

    /// Takes an answer of a conversation, and those that follow at once.
    fn said(
        &mut self,
        mut answer: Option<Result<Payload, Status>>,
        mut conversation: Conversation,
        connection: &mut Connection,
    ) {
        let stream = conversation.stream;
        let mut noop = Context::from_waker(Waker::noop());
        for left in (0..MESSAGES_A_TURN).rev() {
            match answer.map(|answer| answer.and_then(sendable)) {
                Some(Ok(payload)) => connection.send(stream, payload),
                Some(Err(status)) => return self.end(stream, Err(status), connection),
                None => return self.end(stream, Ok(()), connection),
            }
            if connection.room(stream) == 0 {
                return self.full.push(conversation);
            }
            if left == 0 {
                break;
            }
            match conversation.answers.as_mut().poll_next(&mut noop) {
                Poll::Ready(next) => answer = next,
                // It is looked at once more, with a waker that counts.
                Poll::Pending => break,
            }
        }
        self.listen(conversation);
    }

    /// Waits for the next answer of a conversation.
    fn listen(&mut self, conversation: Conversation) {
        let Some(open) = self.open.get_mut(&conversation.stream) else { return };
        let (abort, registration) = AbortHandle::new_pair();
        open.abort = abort;
        self.streaming.push(Abortable::new(Next(Some(conversation)), registration));
    }

    /// Lets those go on whose clients have read.
    fn resume(&mut self, connection: &Connection) {
        for conversation in std::mem::take(&mut self.full) {
            match connection.room(conversation.stream) > 0 {
                true => self.listen(conversation),
                false => self.full.push(conversation),
            }
        }
    }

    fn end(&mut self, stream: u32, result: Result<(), Status>, connection: &mut Connection) {
        if let Some(open) = self.open.remove(&stream) {
            let code = result.as_ref().map_or_else(Status::code, |()| Code::Ok);
            self.routes.service.ended(self.routes.methods.path(open.method), code);
        }
        connection.finish(stream, result);
    }

    /// Ends all conversations, because the server stops.
    pub(crate) fn stop(&mut self, connection: &mut Connection) {
        let streams: Vec<u32> = self.open.keys().copied().collect();
        for stream in streams {
            if let Some(open) = self.open.get(&stream) {
                open.abort.abort();
            }
            let stopping = Status::unavailable("etcdserver: server stopped");
            self.end(stream, Err(stopping), connection);
        }
        self.full.clear();
    }

    /// Drops everything: nobody is there to hear it.
    pub(crate) fn abandon(&mut self) {
        self.unary.clear();
        self.streaming.clear();
        self.full.clear();
        for (_, open) in self.open.drain() {
            self.routes.service.ended(self.routes.methods.path(open.method), Code::Cancelled);
        }
        self.deferred.clear();
    }
}

/// Refuses what no client could take: the length would not fit.
fn sendable(payload: Payload) -> Result<Payload, Status> {
    const MOST: usize = i32::MAX as usize;
    match payload.len() <= MOST {
        true => Ok(payload),
        false => {
            let text = "grpc: trying to send message larger than max";
            Err(Status::resource_exhausted(format!("{text} ({} vs. {MOST})", payload.len())))
        }
    }
}
