//! Forwarding of bytes between a client connection and its connection to an endpoint.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use sockets::Io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio_util::sync::CancellationToken;

use crate::frames;
use crate::side::Side;
use crate::tap::Tap;

/// Maximum number of bytes of one read. The tunnel writes them before it reads again, so this
/// also bounds the memory per direction.
const BUFFER_BYTES: usize = 32 << 10;
/// How long one direction may continue after the other has ended.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between checks for the end of the last call during shutdown.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Forwards an HTTP/2 connection, and passes its bytes to `tap`. After `stop`, sends a GOAWAY
/// to the client and closes the connection when the last call has ended.
pub async fn forward_http2(
    client: Box<dyn Io>,
    server: Box<dyn Io>,
    tap: Tap,
    stop: CancellationToken,
) -> io::Result<()> {
    let tap = Mutex::new(tap);
    let (client_in, client_out) = split(client);
    let (server_in, mut server_out) = split(server);
    // The detection of the protocol has consumed the client's preface.
    server_out.write_all(http2::PREFACE).await?;
    let up = relay(client_in, server_out, |bytes| tap.lock().observe(Side::Client, bytes));
    let down = relay_until_idle(server_in, client_out, &tap, &stop);
    run_both(up, down).await
}

/// Forwards a connection of another protocol, usually HTTP/1.1. After `stop`, closes it
/// immediately.
pub async fn forward_other(
    client: impl AsyncRead + AsyncWrite,
    server: Box<dyn Io>,
    stop: CancellationToken,
) -> io::Result<()> {
    let (client_in, client_out) = split(client);
    let (server_in, server_out) = split(server);
    let up = relay(client_in, server_out, |_| ());
    let down = relay(server_in, client_out, |_| ());
    tokio::select! {
        result = run_both(up, down) => result,
        () = stop.cancelled() => Ok(()),
    }
}

/// Runs both directions to their ends. After one has ended, the other is cancelled after
/// [`HALF_CLOSED_TIMEOUT`].
async fn run_both(
    up: impl Future<Output = io::Result<()>>,
    down: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    tokio::select! {
        result = &mut up => {
            result?;
            tokio::time::timeout(HALF_CLOSED_TIMEOUT, down).await?
        }
        result = &mut down => {
            result?;
            tokio::time::timeout(HALF_CLOSED_TIMEOUT, up).await?
        }
    }
}

/// Copies bytes until the end of `from`, and then closes `to`. Calls `observe` for all bytes.
async fn relay<R, W>(
    mut from: ReadHalf<R>,
    mut to: WriteHalf<W>,
    mut observe: impl FnMut(&[u8]),
) -> io::Result<()>
where
    R: AsyncRead,
    W: AsyncWrite,
{
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        // Observe the bytes before they are written. Otherwise the tap could observe the
        // response before the request.
        observe(&buffer[..read]);
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

/// Copies bytes from the server to the client. After `stop`, sends a GOAWAY to the client, and
/// ends with an error when no call is in progress.
async fn relay_until_idle(
    mut from: ReadHalf<Box<dyn Io>>,
    mut to: WriteHalf<Box<dyn Io>>,
    tap: &Mutex<Tap>,
    stop: &CancellationToken,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut goaway_sent, mut idle_poll) = (false, tokio::time::interval(IDLE_POLL_INTERVAL));
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            () = stop.cancelled(), if !goaway_sent => {
                // The GOAWAY must not be inserted into a frame of the server.
                goaway_sent = tap.lock().is_between_frames(Side::Server);
                if goaway_sent {
                    to.write_all(&frames::GOAWAY).await?;
                    to.flush().await?;
                } else {
                    idle_poll.tick().await;
                }
                continue;
            }
            _ = idle_poll.tick(), if goaway_sent => {
                if tap.lock().is_idle() {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                continue;
            }
        };
        if read == 0 {
            return to.shutdown().await;
        }
        tap.lock().observe(Side::Server, &buffer[..read]);
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}
