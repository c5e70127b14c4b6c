//! The handlers of a server, by method.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use prost::Message;

use crate::admission::Admission;
use crate::inbox::Inbox;
use crate::payload::{Payload, Reply};
use crate::request::Methods;
use crate::status::{Code, Status};

/// The state that all handlers share, with hooks for metrics and for requests that are
/// not gRPC.
pub trait Service: Send + Sync + 'static {
    /// Called before a call of the method with this path begins. An error ends the call.
    #[inline]
    fn check_call(&self, _path: &'static str) -> Result<(), Status> {
        Ok(())
    }

    /// Called when a call of the method with this path has ended.
    fn call_ended(&self, _path: &'static str, _code: Code) {}

    /// Called when bytes have been read from a client's socket.
    fn bytes_received(&self, _bytes: usize) {}

    /// Called when bytes have been written to a client's socket.
    fn bytes_sent(&self, _bytes: usize) {}

    /// Responds to a request that is not gRPC. Its body has been discarded.
    fn page(&self, request: http::Request<()>) -> BoxFuture<'static, http::Response<Bytes>>;
}

pub(crate) type UnaryResponse = BoxFuture<'static, Result<Payload, Status>>;
pub(crate) type ResponseStream = BoxStream<'static, Result<Payload, Status>>;

/// The handler of a method.
pub(crate) enum Handler<S> {
    Unary(StartCall<S, Bytes, UnaryResponse>),
    ServerStream(StartCall<S, Bytes, ResponseStream>),
    Bidirectional(StartCall<S, Arc<Inbox>, ResponseStream>),
}

/// Starts a call and returns its response. `In` is the request: a message, or the inbox
/// of a streaming call.
type StartCall<S, In, Out> = Box<dyn Fn(&Arc<S>, In, &Admission) -> Out + Send + Sync>;

/// A service and its handlers.
pub struct Routes<S> {
    pub(crate) service: Arc<S>,
    pub(crate) methods: Methods,
    pub(crate) handlers: Vec<Handler<S>>,
}

impl<S: Service> Routes<S> {
    /// Creates routes without methods.
    pub fn new(service: Arc<S>) -> Self {
        Routes { service, methods: Methods::default(), handlers: Vec::new() }
    }

    /// Registers a method with one request message and one response message. Panics if
    /// the path is already registered.
    pub fn unary<Req, Rep, Fut>(
        mut self,
        path: &'static str,
        handler: impl Fn(Arc<S>, Req) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Req: Message + Default,
        Rep: Reply,
        Fut: Future<Output = Result<Rep, Status>> + Send + 'static,
    {
        self.methods.add(path, false);
        self.handlers.push(Handler::Unary(Box::new(move |service, message, admission| {
            if let Err(status) = service.check_call(path) {
                return Box::pin(std::future::ready(Err(status)));
            }
            respond(message, admission, |request| handler(service.clone(), request))
        })));
        self
    }

    /// Registers a unary method whose handler may be slow, because it calls
    /// [`Admission::run_slow`], or needs to know its connection. Panics if the path is already
    /// registered.
    pub fn admitted_unary<Req, Rep, Fut>(
        mut self,
        path: &'static str,
        handler: impl Fn(Arc<S>, Req, Admission) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Req: Message + Default,
        Rep: Reply,
        Fut: Future<Output = Result<Rep, Status>> + Send + 'static,
    {
        self.methods.add(path, false);
        self.handlers.push(Handler::Unary(Box::new(move |service, message, admission| {
            if let Err(status) = service.check_call(path) {
                return Box::pin(std::future::ready(Err(status)));
            }
            let start = |request| handler(service.clone(), request, admission.clone());
            respond(message, admission, start)
        })));
        self
    }

    /// Registers a method with one request message and a stream of response messages. Panics
    /// if the path is already registered.
    ///
    /// The stream is polled only while the connection may hold its messages. So a handler
    /// should do everything in the stream, and nothing before it returns the stream.
    pub fn server_stream<Req, Rep, Str>(
        mut self,
        path: &'static str,
        handler: impl Fn(Arc<S>, Req, Admission) -> Str + Send + Sync + 'static,
    ) -> Self
    where
        Req: Message + Default,
        Rep: Reply,
        Str: Stream<Item = Result<Rep, Status>> + Send + 'static,
    {
        self.methods.add(path, false);
        self.handlers.push(Handler::ServerStream(Box::new(move |service, message, admission| {
            match service.check_call(path).and_then(|()| decode(message)) {
                Ok(request) => payloads(handler(service.clone(), request, admission.clone())),
                Err(status) => futures_util::stream::once(async { Err(status) }).boxed(),
            }
        })));
        self
    }

    /// Registers a method with a stream of request messages and a stream of response
    /// messages. Panics if the path is already registered.
    pub fn bidirectional<Req, Rep, Str>(
        self,
        path: &'static str,
        handler: impl Fn(Arc<S>, Requests<Req>) -> Str + Send + Sync + 'static,
    ) -> Self
    where
        Req: Message + Default + 'static,
        Rep: Reply,
        Str: Stream<Item = Result<Rep, Status>> + Send + 'static,
    {
        self.admitted_bidirectional(path, move |service, requests, _| handler(service, requests))
    }

    /// Registers a method as [`Routes::bidirectional`] does. Its handler keeps much memory as
    /// long as the call lasts: it calls [`Admission::reserve`]. Panics if the path is already
    /// registered.
    pub fn admitted_bidirectional<Req, Rep, Str>(
        mut self,
        path: &'static str,
        handler: impl Fn(Arc<S>, Requests<Req>, Admission) -> Str + Send + Sync + 'static,
    ) -> Self
    where
        Req: Message + Default + 'static,
        Rep: Reply,
        Str: Stream<Item = Result<Rep, Status>> + Send + 'static,
    {
        self.methods.add(path, true);
        self.handlers.push(Handler::Bidirectional(Box::new(move |service, inbox, admission| {
            if let Err(status) = service.check_call(path) {
                return futures_util::stream::once(async { Err(status) }).boxed();
            }
            let requests = Requests { inbox, message: PhantomData };
            payloads(handler(service.clone(), requests, admission.clone()))
        })));
        self
    }
}

/// Decodes the request message of a unary call and starts its handler. The reply is encoded
/// when the connection may hold it.
fn respond<Req, Rep, Fut>(
    message: Bytes,
    admission: &Admission,
    handler: impl FnOnce(Req) -> Fut,
) -> UnaryResponse
where
    Req: Message + Default,
    Rep: Reply,
    Fut: Future<Output = Result<Rep, Status>> + Send + 'static,
{
    let request = match decode(message) {
        Ok(request) => request,
        Err(status) => return Box::pin(std::future::ready(Err(status))),
    };
    let (response, admission) = (handler(request), admission.clone());
    Box::pin(async move {
        let reply = response.await?;
        if !admission.has_room() {
            Box::pin(admission.wait_for_room(reply.unencoded_len())).await;
        }
        Ok(reply.into_payload())
    })
}

fn payloads<Rep: Reply>(
    replies: impl Stream<Item = Result<Rep, Status>> + Send + 'static,
) -> ResponseStream {
    replies.map(|reply| reply.map(Reply::into_payload)).boxed()
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message)
        .map_err(|error| Status::internal(format!("grpc: error unmarshalling request: {error}")))
}

/// The request messages of a streaming call in the order of arrival. The stream ends when
/// the client ends its side of the call. If the client resets the call, the handler is
/// dropped.
pub struct Requests<M> {
    inbox: Arc<Inbox>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message + Default> Stream for Requests<M> {
    type Item = Result<M, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inbox.poll_next(cx).map(|message| message.map(decode))
    }
}
