//! Which handler answers which method.

use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use prost::Message;

use crate::inbox::Inbox;
use crate::message::{Payload, Reply};
use crate::status::{Code, Status};

/// What serves the calls, besides the handlers of the methods.
pub trait Service: Send + Sync + 'static {
    /// A call of the method with this path has ended.
    fn ended(&self, _path: &'static str, _code: Code) {}

    /// So many bytes have come from a client.
    fn received(&self, _bytes: usize) {}

    /// So many bytes have gone to a client.
    fn sent(&self, _bytes: usize) {}

    /// Answers a request that is not gRPC; its body has been passed over.
    fn page(&self, request: http::Request<()>) -> BoxFuture<'static, http::Response<Bytes>>;
}

/// A method, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MethodRef {
    pub(crate) index: usize,
    /// Whether the client sends many messages.
    pub(crate) many: bool,
}

impl MethodRef {
    /// No method: what was asked for does not exist.
    pub(crate) const NONE: MethodRef = MethodRef { index: usize::MAX, many: false };
}

/// The names of the methods.
#[derive(Default)]
pub(crate) struct Methods {
    by_path: HashMap<&'static [u8], MethodRef>,
    paths: Vec<&'static str>,
}

impl Methods {
    fn add(&mut self, path: &'static str, many: bool) {
        let method = MethodRef { index: self.paths.len(), many };
        let before = self.by_path.insert(path.as_bytes(), method);
        assert!(before.is_none(), "two handlers for {path}");
        self.paths.push(path);
    }

    pub(crate) fn find(&self, path: &[u8]) -> Option<MethodRef> {
        self.by_path.get(path).copied()
    }

    pub(crate) fn path(&self, method: MethodRef) -> &'static str {
        self.paths[method.index]
    }

    /// Says that there is no such method, in gRPC for Go's words.
    pub(crate) fn unknown(&self, path: &str) -> Status {
        let Some((service, method)) = path.strip_prefix('/').and_then(|p| p.rsplit_once('/'))
        else {
            return Status::unimplemented(format!("malformed method name: {path:?}"));
        };
        let of_service =
            |path: &&str| path[1..].rsplit_once('/').is_some_and(|(s, _)| s == service);
        match self.paths.iter().any(of_service) {
            true => Status::unimplemented(format!("unknown method {method} for service {service}")),
            false => Status::unimplemented(format!("unknown service {service}")),
        }
    }
}

pub(crate) type Answer = BoxFuture<'static, Result<Payload, Status>>;
pub(crate) type Answers = BoxStream<'static, Result<Payload, Status>>;

/// Starts what answers a call.
pub(crate) enum Handler<S> {
    Unary(Starts<S, Bytes, Answer>),
    ServerStream(Starts<S, Bytes, Answers>),
    Bidirectional(Starts<S, Arc<Inbox>, Answers>),
}

type Starts<S, In, Out> = Box<dyn Fn(&Arc<S>, In) -> Out + Send + Sync>;

/// A service, and its handlers by path.
pub struct Routes<S> {
    pub(crate) service: Arc<S>,
    pub(crate) methods: Methods,
    pub(crate) handlers: Vec<Handler<S>>,
}

impl<S: Service> Routes<S> {
    /// No methods yet.
    pub fn new(service: Arc<S>) -> Self {
        Routes { service, methods: Methods::default(), handlers: Vec::new() }
    }

    /// A method with one message each way.
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
        self.handlers.push(Handler::Unary(Box::new(move |service, message| {
            let request = match decode(message) {
                Ok(request) => request,
                Err(status) => return Box::pin(std::future::ready(Err(status))),
            };
            let answer = handler(service.clone(), request);
            Box::pin(async move { answer.await.map(Reply::into_payload) })
        })));
        self
    }

    /// A method with one message from the client and many to it.
    pub fn server_stream<Req, Rep, Str>(
        mut self,
        path: &'static str,
        handler: impl Fn(Arc<S>, Req) -> Str + Send + Sync + 'static,
    ) -> Self
    where
        Req: Message + Default,
        Rep: Reply,
        Str: Stream<Item = Result<Rep, Status>> + Send + 'static,
    {
        self.methods.add(path, false);
        self.handlers.push(Handler::ServerStream(Box::new(move |service, message| {
            match decode(message) {
                Ok(request) => payloads(handler(service.clone(), request)),
                Err(status) => futures_util::stream::once(async { Err(status) }).boxed(),
            }
        })));
        self
    }

    /// A method with many messages each way.
    pub fn bidirectional<Req, Rep, Str>(
        mut self,
        path: &'static str,
        handler: impl Fn(Arc<S>, Requests<Req>) -> Str + Send + Sync + 'static,
    ) -> Self
    where
        Req: Message + Default + 'static,
        Rep: Reply,
        Str: Stream<Item = Result<Rep, Status>> + Send + 'static,
    {
        self.methods.add(path, true);
        self.handlers.push(Handler::Bidirectional(Box::new(move |service, inbox| {
            let requests = Requests { inbox, message: PhantomData };
            payloads(handler(service.clone(), requests))
        })));
        self
    }
}

fn payloads<Rep: Reply>(
    answers: impl Stream<Item = Result<Rep, Status>> + Send + 'static,
) -> Answers {
    answers.map(|answer| answer.map(Reply::into_payload)).boxed()
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message)
        .map_err(|error| Status::internal(format!("grpc: error unmarshalling request: {error}")))
}

/// The messages of a client, as they come. They end when the client has said
/// everything, or is gone.
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
