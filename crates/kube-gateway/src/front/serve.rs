//! Serves HTTP on one connection of a client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use http::HeaderValue;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::forward::{Client, Link, Shared, forward};
use crate::identity::Peer;
use crate::upstream::Protocol;

use super::tls::FrontTls;

/// Bytes of one request that a client may send ahead of a slow API server.
const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes of all requests of one client that it may send ahead.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of one answer that wait for a slow client, besides the window of the API server.
const SEND_BUFFER: usize = 64 << 10;
/// Bytes of the header of a request; kube-apiserver's limit.
const MAX_HEADER: u32 = 1 << 20;
/// A connection without any frame for this time is checked by a PING.
const PING_AFTER: Duration = Duration::from_secs(30);
/// A connection whose PING is not answered within this time is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// A client of HTTP/1.1 must send the whole header of a request within this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// HTTP/1.1: bytes that are read ahead, which also bounds the header.
const HTTP1_BUFFER: usize = 1 << 20;

/// Serves a client until its connection ends. If it must move to another API server, or `stop` is
/// cancelled, the client is told to dial again, and its running requests end as they would.
pub async fn serve(
    io: TlsStream<TcpStream>,
    address: SocketAddr,
    tls: &FrontTls,
    max_streams: u32,
    shared: Arc<Shared>,
    stop: CancellationToken,
) -> Result<()> {
    let session = io.get_ref().1;
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    let chain = session.peer_certificates().unwrap_or_default().iter();
    let chain = chain.map(|certificate| certificate.clone().into_owned()).collect();
    let peer = Peer::new(chain, shared.names.clone(), tls.client_ca.clone());
    let moved = CancellationToken::new();
    let link = Link::new(shared.clone(), protocol, moved.clone());
    let address = HeaderValue::try_from(address.ip().to_canonical().to_string())?;
    let client = Arc::new(Client { peer, address, link, shared });
    let service = service_fn(move |request| {
        let client = client.clone();
        async move { Ok::<_, Infallible>(forward(client, request).await) }
    });
    let io = TokioIo::new(io);
    match protocol {
        Protocol::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(max_streams)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buf_size(SEND_BUFFER)
                .max_header_list_size(MAX_HEADER)
                .keep_alive_interval(PING_AFTER)
                .keep_alive_timeout(PING_TIMEOUT)
                .serve_connection(io, service);
            until_moved(connection, |connection| connection.graceful_shutdown(), moved, stop).await
        }
        Protocol::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(HTTP1_BUFFER)
                .serve_connection(io, service)
                .with_upgrades();
            until_moved(connection, |connection| connection.graceful_shutdown(), moved, stop).await
        }
    }
}

/// Runs a connection. After `moved` or `stop`, calls `shut_down` and goes on until all requests have
/// ended.
async fn until_moved<C>(
    connection: C,
    shut_down: impl FnOnce(Pin<&mut C>),
    moved: CancellationToken,
    stop: CancellationToken,
) -> Result<()>
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return Ok(result?),
        () = moved.cancelled() => {}
        // Watches end as they do when the connection moves.
        () = stop.cancelled() => moved.cancel(),
    }
    shut_down(connection.as_mut());
    Ok(connection.await?)
}
