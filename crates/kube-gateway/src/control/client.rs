//! The side of the command.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::UnixStream;

use super::{Failure, THROTTLE};

/// A process that does not answer within this time is stuck.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a command to the process that listens on `socket`, and returns the answer's body.
pub fn call(socket: &Path, method: Method, body: &impl Serialize) -> Result<Bytes> {
    let body = serde_json::to_vec(body)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(TIMEOUT, exchange(socket, method, body))
            .await
            .with_context(|| format!("no answer on {} within {TIMEOUT:?}", socket.display()))?
    })
}

async fn exchange(socket: &Path, method: Method, body: Vec<u8>) -> Result<Bytes> {
    let io = UnixStream::connect(socket).await.with_context(|| {
        format!(
            "connect to {}; is kube-gateway running with this control.socket?",
            socket.display()
        )
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(THROTTLE)
        .header(HOST, "kube-gateway")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let answer = sender.send_request(request).await?;
    let code = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    if code.is_success() {
        return Ok(body);
    }
    match serde_json::from_slice::<Failure>(&body) {
        Ok(failure) => bail!(failure.error),
        Err(_) => bail!("status {code}: {}", String::from_utf8_lossy(&body)),
    }
}
