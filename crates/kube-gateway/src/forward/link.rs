//! The connection of one client to its API server.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::TryFutureExt as _;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::request_body::RequestBody;
use super::shared::Shared;
use super::watched_io::WatchedIo;
use crate::exchange::Exchange;
use crate::protect::{Held, List, Metered, Refused, Reservation};
use crate::upstream::{Place, Protocol, Speaker};

/// Bytes of one answer that an API server may send ahead of a slow client.
const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes of all answers of one client that an API server may send ahead of it.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of a request that wait for an API server.
const SEND_BUFFER: usize = 64 << 10;
/// A connection without any frame for this time is checked by a PING, as client-go does.
const PING_AFTER: Duration = Duration::from_secs(30);
/// A connection whose PING is not answered within this time is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Bytes of the header of an answer.
const MAX_HEADER: u32 = 1 << 20;
/// Attempts to send one request. An API server that closes its connections while it stops can cost a
/// few, and other requests of the same client that it answers with 401 too.
const MAX_ATTEMPTS: usize = 12;

/// Sends the requests of one client to one API server. If the connection ends, the next request
/// opens another one, perhaps to another API server.
pub struct Link {
    shared: Arc<Shared>,
    protocol: Protocol,
    /// Cancelled when the client must dial again.
    moved: CancellationToken,
    /// One connection for each [`Speaker`]: a client whose certificate expires while it is connected
    /// goes on with its token.
    connections: [Mutex<Option<Connection>>; 2],
}

type Io = WatchedIo<TlsStream<TcpStream>>;

struct Connection {
    sender: Sender,
    place: Arc<Place>,
    held: Arc<Held>,
    /// Whether the API server has ended it.
    ended: Arc<AtomicBool>,
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

enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

/// Why a request has no answer.
pub enum SendError {
    /// No API server was reached; the request was not sent.
    NoServer(anyhow::Error),
    /// The connection ended after the request was sent, which may have been executed.
    Broken(hyper::Error),
    /// Too many LISTs are in progress; the request was not sent.
    Refused(Refused),
}

impl Link {
    /// Creates a link without a connection. `moved` is cancelled when the client must dial again.
    pub fn new(shared: Arc<Shared>, protocol: Protocol, moved: CancellationToken) -> Link {
        Link { shared, protocol, moved, connections: Default::default() }
    }

    /// Cancelled when the client must dial again.
    pub fn moved(&self) -> &CancellationToken {
        &self.moved
    }

    /// Sends a request and waits for the head of its answer. A `list` waits for its turn before. A
    /// request that the API server did not process before the connection ended, or that reads, is
    /// sent again over another connection.
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
            let processed = failure.unsent.is_none() && !failure.unprocessed;
            let next = if attempts > MAX_ATTEMPTS { None } else { repeat.after(&mut failure) };
            request = match next {
                Some(request) => request,
                None if processed => return Err(SendError::Broken(failure.error)),
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
        let mut slot = self.connections[speaker as usize].lock().await;
        if slot.as_ref().is_none_or(|connection| connection.sender.is_closed()) {
            *slot = Some(self.dial(speaker).await.map_err(Attempt::Ended)?);
        }
        let connection = slot.as_mut().expect("a connection was just opened");
        let (place, held) = (connection.place.clone(), connection.held.clone());
        let ended = connection.ended.clone();
        let (result, reservation) = match &mut connection.sender {
            Sender::Http2(sender) => {
                let mut sender = sender.clone();
                // Other requests of the client use the connection at the same time.
                drop(slot);
                let reservation = self.admit(&place, list, exchange).await?;
                (sender.try_send_request(request).await, reservation)
            }
            // Requests of HTTP/1.1 are in sequence, so nobody waits for the lock.
            Sender::Http1(sender) => {
                let reservation = self.admit(&place, list, exchange).await?;
                match sender.ready().await {
                    Ok(()) => (sender.try_send_request(request).await, reservation),
                    Err(error) => {
                        let unsent = Some(request);
                        return Err(Failure { error, unsent, unprocessed: true }.into());
                    }
                }
            }
        };
        match result {
            Ok(answer) => Ok(Sent { answer, reservation, held }),
            Err(mut failed) => {
                let unsent = failed.take_message();
                let error = failed.into_error();
                let unprocessed = is_unprocessed(&error, &ended);
                Err(Failure { error, unsent, unprocessed }.into())
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

    /// Opens a connection to an API server. One that cannot be reached counts as unready until the
    /// next probe.
    async fn dial(&self, speaker: Speaker) -> Result<Connection, SendError> {
        let Shared { pool, connector, .. } = &*self.shared;
        let mut failed = Vec::new();
        let mut last = anyhow::anyhow!("there is no API server");
        while let Some(server) = pool.choose(&failed) {
            let ended = Arc::new(AtomicBool::new(false));
            let connected = async {
                let io = connector.connect(&server.address, speaker, self.protocol).await?;
                let held = Held::new(self.shared.protection.buffers.clone());
                let io = WatchedIo::new(io, ended.clone());
                let sender = self.handshake(io, held.clone()).await.context("HTTP handshake")?;
                anyhow::Ok((sender, held))
            };
            match connected.await {
                Ok((sender, held)) => {
                    let place = Arc::new(Place::new(server, self.moved.clone()));
                    return Ok(Connection { sender, place, held, ended });
                }
                Err(error) => {
                    let address = &server.address;
                    if server.set_ready(false) {
                        let error = format!("{error:#}");
                        tracing::warn!(server = address, error, "an API server cannot be reached");
                    }
                    last = error.context(address.clone());
                    failed.push(server);
                }
            }
        }
        Err(SendError::NoServer(last))
    }

    async fn handshake(&self, io: Io, held: Arc<Held>) -> anyhow::Result<Sender> {
        let ended = |error: hyper::Error| tracing::debug!(%error, "connection to an API server");
        match self.protocol {
            Protocol::Http1 => {
                let (sender, connection) =
                    http1::handshake(TokioIo::new(Metered::http1(io, held))).await?;
                tokio::spawn(connection.with_upgrades().unwrap_or_else(ended));
                Ok(Sender::Http1(sender))
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_send_buf_size(SEND_BUFFER)
                    .max_header_list_size(MAX_HEADER)
                    .keep_alive_interval(PING_AFTER)
                    .keep_alive_timeout(PING_TIMEOUT)
                    .handshake(TokioIo::new(Metered::http2(io, held)))
                    .await?;
                tokio::spawn(connection.unwrap_or_else(ended));
                Ok(Sender::Http2(sender))
            }
        }
    }
}

impl Sender {
    fn is_closed(&self) -> bool {
        match self {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }
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
    /// Whether the API server has not processed the request.
    unprocessed: bool,
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Attempt {
        Attempt::Failed(failure.into())
    }
}

/// Whether the API server has said that it did not process a request: a GOAWAY with the number of an
/// earlier stream fails a stream at once, while the connection goes on. If the connection has ended,
/// the same error also means all other streams. kube-apiserver sends GOAWAY after an answer 401, when
/// it stops, and with `--goaway-chance`.
fn is_unprocessed(error: &hyper::Error, ended: &AtomicBool) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        let refused = cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        let left_out = cause.is_go_away() && !ended.load(Ordering::Acquire);
        cause.is_remote() && (refused || left_out)
    })
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
        if !failure.unprocessed && !self.reads {
            return None;
        }
        let mut request = Request::new(self.body.again()?);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.fields.clone();
        Some(request)
    }
}
