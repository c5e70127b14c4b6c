//! The side of the running process.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::{UnixListener, UnixSocket};
use tokio_util::sync::CancellationToken;

use super::{Add, Delete, Failure, Rules, THROTTLE};
use crate::http1;
use crate::protect::Protection;

/// Only the user of the process may use the socket.
const MODE: u32 = 0o600;
/// Commands that wait in the kernel's queue.
const BACKLOG: u32 = 16;
/// Delay after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Listens on the Unix socket. One that a killed process left behind is replaced.
///
/// # Errors
/// If another process listens on it, or the path is another file.
pub fn listen(path: &Path) -> Result<UnixListener> {
    bind(path).with_context(|| format!("listen on control.socket {}", path.display()))
}

fn bind(path: &Path) -> Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(file) => {
            ensure!(file.file_type().is_socket(), "the path is a file that is not a socket");
            match UnixStream::connect(path) {
                Ok(_) => bail!("another process listens on it"),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).context("remove the socket of an ended process")?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    // Nobody can connect before `listen`.
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    Ok(socket.listen(BACKLOG)?)
}

/// Executes commands until `stop` is cancelled. The process that replaces this one can then listen.
pub async fn serve(listener: UnixListener, protection: Arc<Protection>, stop: CancellationToken) {
    let routes =
        Router::new().route(THROTTLE, get(list).post(add).delete(delete)).with_state(protection);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((io, _)) => {
                tokio::spawn(http1::serve(io, routes.clone()));
            }
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
}

async fn list(State(protection): State<Arc<Protection>>) -> Response {
    Json(Rules { rules: protection.throttle.list(Instant::now()) }).into_response()
}

async fn add(State(protection): State<Arc<Protection>>, Json(add): Json<Add>) -> Response {
    let lasts = add.for_milliseconds.map(Duration::from_millis);
    let rule = add.rule;
    let result =
        rule.check().and_then(|()| protection.throttle.add(rule.clone(), lasts, Instant::now()));
    if result.is_ok() {
        let (qps, burst) = (rule.qps, rule.burst());
        tracing::info!(user_agent = rule.user_agent, qps, burst, ?lasts, "added a throttle");
    }
    answer(result)
}

async fn delete(State(protection): State<Arc<Protection>>, Json(delete): Json<Delete>) -> Response {
    let result = protection.throttle.delete(&delete.user_agent, Instant::now());
    if result.is_ok() {
        tracing::info!(user_agent = delete.user_agent, "deleted a throttle");
    }
    answer(result)
}

fn answer(result: Result<(), String>) -> Response {
    match result {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, Json(Failure { error })).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_socket_of_an_ended_process_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let error = format!("{:#}", listen(&path).unwrap_err());
        assert!(error.contains("another process listens"), "{error}");
        drop(listener);
        listen(&path).unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "text").unwrap();
        let error = format!("{:#}", listen(&file).unwrap_err());
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    }
}
