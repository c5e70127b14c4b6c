//! Serves HTTP on one connection of a client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use http::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tls_socket::{ServerSide, TlsSocket};
use tokio_util::sync::CancellationToken;

use crate::forward::http1::{Http1Client, Link, forward};
use crate::forward::{Client, Shared, http2};
use crate::identity::Peer;

use super::tls::FrontTls;

/// A client of HTTP/1.1 must send the whole header of a request within this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// HTTP/1.1: bytes that are read ahead, which also bounds the header.
const HTTP1_BUFFER: usize = 1 << 20;

/// Serves a client until its connection ends. If it must move to another API server, or `stop` is
/// cancelled, the client is told to dial again, and its running requests end as they would.
pub async fn serve(
    socket: TlsSocket<ServerSide>,
    address: SocketAddr,
    tls: &FrontTls,
    max_streams: u32,
    worker: usize,
    shared: Arc<Shared>,
    stop: CancellationToken,
) -> Result<()> {
    let session = socket.session();
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let chain = session.peer_certificates().unwrap_or_default().iter();
    let chain = chain.map(|certificate| certificate.clone().into_owned()).collect();
    let peer = Peer::new(chain, shared.names.clone(), tls.client_ca.clone());
    let address = HeaderValue::try_from(address.ip().to_canonical().to_string())?;
    let client = Client { peer, address, worker, shared };
    match is_http2 {
        true => http2::serve(socket, client, max_streams, stop).await,
        false => serve_http1(socket, client, stop).await,
    }
}

async fn serve_http1(
    socket: TlsSocket<ServerSide>,
    client: Client,
    stop: CancellationToken,
) -> Result<()> {
    let moved = CancellationToken::new();
    let link = Link::new(client.shared.clone(), moved.clone());
    let client = Arc::new(Http1Client { client, link });
    let service = service_fn(move |request| {
        let client = client.clone();
        async move { Ok::<_, Infallible>(forward(client, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HTTP1_BUFFER)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return Ok(result?),
        () = moved.cancelled() => {}
        // Watches end as they do when the connection moves.
        () = stop.cancelled() => moved.cancel(),
    }
    Pin::as_mut(&mut connection).graceful_shutdown();
    Ok(connection.await?)
}
