//! Serves the gateway's own pages on HTTP/1.1.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};

/// Serves pages on a connection until it ends.
pub async fn serve<IO: AsyncRead + AsyncWrite + Unpin>(io: IO, routes: Router) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new());
    server.max_buf_size(sockets::HTTP1_HEAD_BYTES);
    server.header_read_timeout(sockets::HTTP1_HEAD_TIMEOUT);
    let connection = server.serve_connection(TokioIo::new(io), TowerToHyperService::new(routes));
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection to the pages");
    }
}
