//! Error responses for clients while no endpoint is reachable.

use std::time::Duration;

use http::{HeaderValue, Response};
use sockets::Io;
use sockets::Replayed;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::metrics::Metrics;

/// The gRPC status code UNAVAILABLE.
const UNAVAILABLE: &str = "14";
/// How long the proxy answers the calls of one connection itself. Then it closes the
/// connection. When the client reconnects, the proxy tries the endpoints again.
const REFUSAL_TIME: Duration = Duration::from_millis(500);

/// Answers all gRPC calls of an HTTP/2 connection with UNAVAILABLE and `reason`. Closes the
/// connection after [`REFUSAL_TIME`].
pub async fn refuse_grpc(io: Box<dyn Io>, reason: &str, metrics: &Metrics) -> anyhow::Result<()> {
    let io = Replayed::new(http2::PREFACE, io);
    let mut connection = h2::server::handshake(io).await?;
    let message = HeaderValue::from_str(&percent_encoded(reason))?;
    let mut end = std::pin::pin!(tokio::time::sleep(REFUSAL_TIME));
    let mut is_closing = false;
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = &mut end, if !is_closing => {
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

/// Answers an HTTP/1.1 connection with status 503 and closes it.
pub async fn refuse_http1(mut io: impl AsyncWrite + Unpin, reason: &str) -> anyhow::Result<()> {
    let head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close";
    let length = reason.len() + 1;
    let response = format!("{head}\r\nContent-Length: {length}\r\n\r\n{reason}\n");
    io.write_all(response.as_bytes()).await?;
    Ok(io.shutdown().await?)
}

/// Encodes a value of `grpc-message`: a percent sign and all bytes other than printable ASCII
/// become %XX.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
