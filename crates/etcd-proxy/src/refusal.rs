//! Error responses for clients while no endpoint is reachable.

use std::time::Duration;

use http::{HeaderValue, Response};
use sockets::Io;
use sockets::Replayed;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::metrics::Metrics;

/// The gRPC status code UNAVAILABLE.
const UNAVAILABLE: &str = "14";
/// How long calls of one connection are refused. After it, the client has to reconnect,
/// and the proxy tries the endpoints again.
const REFUSAL_TIME: Duration = Duration::from_millis(500);

/// Answers all gRPC calls of a connection with UNAVAILABLE and `reason` until
/// [`REFUSAL_TIME`] is over.
pub async fn grpc(io: Box<dyn Io>, reason: &str, metrics: &Metrics) -> anyhow::Result<()> {
    let io = Replayed::new(http2::PREFACE, io);
    let mut connection = h2::server::handshake(io).await?;
    let message = HeaderValue::from_str(&percent_encoded(reason))?;
    let until = tokio::time::sleep(REFUSAL_TIME);
    let mut until = std::pin::pin!(until);
    let mut is_closing = false;
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = &mut until, if !is_closing => {
                is_closing = true;
                connection.graceful_shutdown();
                continue;
            }
        };
        let Some(call) = accepted else { return Ok(()) };
        let (_request, mut respond) = call?;
        metrics.call_refused();
        let response = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", UNAVAILABLE)
            .header("grpc-message", message.clone())
            .body(())?;
        respond.send_response(response, true)?;
    }
}

/// Answers an HTTP/1.1 connection with status 503.
pub async fn http1(mut io: impl AsyncWrite + Unpin, reason: &str) -> anyhow::Result<()> {
    let head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close";
    let length = reason.len() + 1;
    let response = format!("{head}\r\nContent-Length: {length}\r\n\r\n{reason}\n");
    io.write_all(response.as_bytes()).await?;
    Ok(io.shutdown().await?)
}

/// Encodes a message as gRPC does in header fields.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
