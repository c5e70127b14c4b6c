//! The connection of one client to its API server.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use futures_util::TryFutureExt as _;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::request_body::RequestBody;
use crate::exchange::Exchange;
use crate::forward::dial::dial;
use crate::forward::request::SendError;
use crate::forward::shared::Shared;
use crate::protect::{Held, List, Metered, Reservation};
use crate::upstream::{Place, Protocol, Server, Speaker};

/// Attempts to send one request. An API server that closes its connections while it stops can cost a
/// few.
const MAX_ATTEMPTS: usize = 12;

/// Sends the requests of one client to one API server. If the connection ends, the next request
/// opens another one, perhaps to another API server.
pub struct Link {
    shared: Arc<Shared>,
    /// Cancelled when the client must dial again.
    moved: CancellationToken,
    /// One connection for each [`Speaker`]: a client whose certificate expires while it is connected
    /// goes on with its token.
    connections: [Mutex<Option<Connection>>; 2],
}

struct Connection {
    sender: SendRequest<RequestBody>,
    place: Arc<Place>,
    held: Arc<Held>,
}

/// A request that was sent, and the head of its answer.
pub struct Sent {
    /// The answer.
    pub answer: Response<Incoming>,
    /// The bytes that are reserved for it, if it is a LIST.
    pub reservation: Option<Reservation>,
    /// What its connection holds.
    pub held: Arc<Held>,
}

impl Link {
    /// Creates a link without a connection. `moved` is cancelled when the client must dial again.
    pub fn new(shared: Arc<Shared>, moved: CancellationToken) -> Link {
        Link { shared, moved, connections: Default::default() }
    }

    /// Cancelled when the client must dial again.
    pub fn moved(&self) -> &CancellationToken {
        &self.moved
    }

    /// Sends a request and waits for the head of its answer. A `list` waits for its turn before. A
    /// request that was not sent before the connection ended, or that reads, is sent again over
    /// another connection.
    pub async fn send(
        &self,
        mut request: Request<RequestBody>,
        speaker: Speaker,
        list: Option<List>,
        exchange: &mut Exchange,
    ) -> Result<Sent, SendError> {
        let repeat = Repeat::of(&request);
        let mut attempts = 1;
        loop {
            let mut failure = match self.try_send(request, speaker, list, exchange).await {
                Ok(sent) => {
                    repeat.body.forget();
                    return Ok(sent);
                }
                Err(Attempt::Ended(error)) => return Err(error),
                Err(Attempt::Failed(failure)) => failure,
            };
            attempts += 1;
            let was_sent = failure.unsent.is_none();
            let next = if attempts > MAX_ATTEMPTS { None } else { repeat.after(&mut failure) };
            request = match next {
                Some(request) => request,
                None if was_sent => return Err(SendError::Broken(failure.error.into())),
                None => return Err(SendError::NoServer(failure.error.into())),
            };
        }
    }

    async fn try_send(
        &self,
        request: Request<RequestBody>,
        speaker: Speaker,
        list: Option<List>,
        exchange: &mut Exchange,
    ) -> Result<Sent, Attempt> {
        // Requests are in sequence, so nobody waits for the lock.
        let mut slot = self.connections[speaker as usize].lock().await;
        if slot.as_ref().is_none_or(|connection| connection.sender.is_closed()) {
            *slot = Some(self.dial(speaker).await.map_err(Attempt::Ended)?);
        }
        let connection = slot.as_mut().expect("a connection was just opened");
        let held = connection.held.clone();
        let reservation = self.admit(&connection.place, list, exchange).await?;
        if let Err(error) = connection.sender.ready().await {
            return Err(Failure { error, unsent: Some(request) }.into());
        }
        match connection.sender.try_send_request(request).await {
            Ok(answer) => Ok(Sent { answer, reservation, held }),
            Err(mut failed) => {
                let unsent = failed.take_message();
                Err(Failure { error: failed.into_error(), unsent }.into())
            }
        }
    }

    /// Waits until a LIST may be sent, and counts the request as load of the API server.
    async fn admit(
        &self,
        place: &Place,
        list: Option<List>,
        exchange: &mut Exchange,
    ) -> Result<Option<Reservation>, Attempt> {
        let mut reservation = None;
        if let Some(list) = list {
            let Shared { protection, metrics, .. } = &*self.shared;
            exchange.unassign();
            let started = Instant::now();
            let admitted = protection.lists.admit(&place.server().lists, list).await;
            metrics.list_waited(started.elapsed().as_secs_f64());
            match admitted {
                Ok(admitted) => reservation = Some(admitted),
                Err(refused) => {
                    metrics.list_refused();
                    return Err(Attempt::Ended(SendError::Refused(refused)));
                }
            }
        }
        exchange.assign(place);
        Ok(reservation)
    }

    async fn dial(&self, speaker: Speaker) -> Result<Connection, SendError> {
        let Shared { connector, protection, .. } = &*self.shared;
        let dialed = dial(&self.shared, &self.moved, |server: Arc<Server>| async move {
            let io = connector.connect(&server.address, speaker, Protocol::Http1).await?;
            let held = Held::new(protection.buffers.clone());
            let sender = handshake(io, held.clone()).await.context("HTTP handshake")?;
            Ok((sender, held))
        });
        let ((sender, held), place) = dialed.await.map_err(SendError::NoServer)?;
        Ok(Connection { sender, place, held })
    }
}

async fn handshake(
    io: TlsStream<TcpStream>,
    held: Arc<Held>,
) -> anyhow::Result<SendRequest<RequestBody>> {
    let (sender, connection) = http1::handshake(TokioIo::new(Metered::new(io, held))).await?;
    let ended = |error: hyper::Error| tracing::debug!(%error, "connection to an API server");
    tokio::spawn(connection.with_upgrades().unwrap_or_else(ended));
    Ok(sender)
}

/// A failed attempt to send.
enum Attempt {
    /// No other attempt can succeed.
    Ended(SendError),
    /// The connection ended.
    Failed(Box<Failure>),
}

struct Failure {
    error: hyper::Error,
    /// The request, if it was not sent.
    unsent: Option<Request<RequestBody>>,
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Attempt {
        Attempt::Failed(failure.into())
    }
}

/// What is needed to send a request again.
struct Repeat {
    method: Method,
    uri: Uri,
    fields: HeaderMap,
    body: RequestBody,
    /// Whether the request reads and has no body. Such a request may be executed twice.
    reads: bool,
}

impl Repeat {
    fn of(request: &Request<RequestBody>) -> Repeat {
        let method = request.method().clone();
        let body = request.body();
        Repeat {
            reads: matches!(method, Method::GET | Method::HEAD) && body.is_end_stream(),
            method,
            uri: request.uri().clone(),
            fields: request.headers().clone(),
            body: body.handle(),
        }
    }

    /// Returns the request for the attempt after a failed one, if it may be sent again.
    fn after(&self, failure: &mut Failure) -> Option<Request<RequestBody>> {
        if failure.unsent.is_some() {
            return failure.unsent.take();
        }
        if !self.reads {
            return None;
        }
        let mut request = Request::new(self.body.again()?);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.fields.clone();
        Some(request)
    }
}
