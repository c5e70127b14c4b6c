//! Serves connections: gRPC and pages on HTTP/2, pages on HTTP/1.1.

use std::sync::Arc;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sockets::{Client, Detected, Listener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::client_routes::{Chosen, ClientRoutes};

/// What a listener serves.
#[derive(Clone)]
pub struct Served {
    /// gRPC methods; `None` on a listener that serves only pages.
    pub routes: Option<Arc<ClientRoutes>>,
    /// HTTP pages.
    pub pages: Router,
    /// Configuration of the gRPC server.
    pub options: grpc::ServerConfig,
}

/// Accepts and serves connections until `stop` is cancelled. After that, waits for calls
/// in progress up to the time limit of [`Listener::serve`].
pub async fn serve(
    listener: Listener,
    served: Served,
    connection_permits: Arc<Semaphore>,
    stop: CancellationToken,
) {
    listener
        .serve(
            move |client, stop| serve_connection(client, served.clone(), stop),
            connection_permits,
            stop,
        )
        .await;
}

async fn serve_connection(
    client: Client,
    served: Served,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Client { io, certificate } = client;
    let certificate_of = certificate.as_deref();
    let name = served.routes.as_ref().and_then(|routes| routes.client_name(certificate_of));
    let routes = served.routes.map(|routes| routes.choose(certificate_of)).transpose();
    let routes = routes.inspect_err(|error| {
        tracing::warn!(error = format!("{error:#}"), "refused a client");
    })?;
    // Not needed for the rest of the connection.
    drop(certificate);
    let io = match (sockets::detect_http_version(io, &stop).await?, routes) {
        (Detected::Closed, _) => return Ok(()),
        (Detected::Http2(io), Some(Chosen::Full(routes))) => {
            return Ok(grpc::serve(io, http2::PREFACE, routes, name, &served.options, stop).await?);
        }
        (Detected::Http2(io), Some(Chosen::Limited(routes))) => {
            return Ok(grpc::serve(io, http2::PREFACE, routes, name, &served.options, stop).await?);
        }
        // The HTTP/1.1 server responds with an error to the preface of HTTP/2.
        (Detected::Http2(io), None) => sockets::Replayed::new(http2::PREFACE, io),
        (Detected::Other(io), _) => io,
    };
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new());
    server.max_buf_size(sockets::HTTP1_HEAD_BYTES);
    server.header_read_timeout(sockets::HTTP1_HEAD_TIMEOUT);
    let mut connection = std::pin::pin!(
        server.serve_connection(TokioIo::new(io), TowerToHyperService::new(served.pages))
    );
    tokio::select! {
        result = connection.as_mut() => return Ok(result?),
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}
