//! Forwarding of bytes between a client connection and its endpoint connection.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use sockets::Io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio_util::sync::CancellationToken;

use crate::frames;
use crate::side::Side;
use crate::tap::Tap;

/// Maximum bytes of one read. The next read waits until they are written, so this also
/// bounds the bytes buffered per direction.
const BUFFER_BYTES: usize = 32 << 10;
/// How long one direction may continue after the other has been closed.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// During shutdown, how often the tunnel checks whether the last call has ended.
const IDLE_POLL: Duration = Duration::from_millis(20);

type Server = Box<dyn Io>;

/// Forwards an HTTP/2 connection, observed by `tap`. After `stop`, sends a GOAWAY and
/// closes the connection when the last call has ended.
pub async fn http2(
    client: Box<dyn Io>,
    server: Server,
    tap: Tap,
    stop: CancellationToken,
) -> io::Result<()> {
    let tap = Mutex::new(tap);
    let (client_in, client_out) = split(client);
    let (server_in, mut server_out) = split(server);
    // The preface was consumed when the protocol was detected.
    server_out.write_all(http2::PREFACE).await?;
    let up = relay(client_in, server_out, |bytes| tap.lock().observe(Side::Client, bytes));
    let down = relay_until_idle(server_in, client_out, &tap, &stop);
    both(up, down).await
}

/// Forwards a connection of another protocol, usually HTTP/1.1.
pub async fn other(
    client: impl AsyncRead + AsyncWrite,
    server: Server,
    stop: CancellationToken,
) -> io::Result<()> {
    let (client_in, client_out) = split(client);
    let (server_in, server_out) = split(server);
    let up = relay(client_in, server_out, |_| ());
    let down = relay(server_in, client_out, |_| ());
    tokio::select! {
        result = both(up, down) => result,
        () = stop.cancelled() => Ok(()),
    }
}

/// Waits for both directions. After the first has ended, the second has
/// [`HALF_CLOSED_TIMEOUT`].
async fn both(
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

/// Copies until the end of `from`, and then closes `to`. Calls `observe` for all bytes
/// before they are written.
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
        // Observed before it is written: otherwise the tap could see the response first.
        observe(&buffer[..read]);
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

/// Copies from the server to the client. After `stop`, sends a GOAWAY, and ends when no
/// call is in progress.
async fn relay_until_idle(
    mut from: ReadHalf<Server>,
    mut to: WriteHalf<Box<dyn Io>>,
    tap: &Mutex<Tap>,
    stop: &CancellationToken,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut goaway_sent, mut idle_poll) = (false, tokio::time::interval(IDLE_POLL));
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            () = stop.cancelled(), if !goaway_sent => {
                // The GOAWAY must not be sent within a frame.
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
