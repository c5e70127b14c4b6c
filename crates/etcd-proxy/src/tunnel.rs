//! Hands on what two connections say to each other, unchanged.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use sockets::Io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio_util::sync::CancellationToken;

use crate::frames;
use crate::tap::{Side, Tap};

/// What is read at once. While it is not written nothing more is read, so this is all
/// that waits here in one direction.
const BUFFER_BYTES: usize = 32 << 10;
/// How long one side may go on after the other has hung up.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is asked whether the last call is over, once the proxy is to end.
const IDLE_POLL: Duration = Duration::from_millis(20);

type Server = Box<dyn Io>;

/// HTTP/2: what is said is listened to. After `stop` the client is asked to begin
/// nothing new, and the connection ends with the last call.
pub async fn http2(
    client: Box<dyn Io>,
    server: Server,
    tap: Tap,
    stop: CancellationToken,
) -> io::Result<()> {
    let tap = Mutex::new(tap);
    let (client_in, client_out) = split(client);
    let (server_in, mut server_out) = split(server);
    // Its reading told us that this is HTTP/2.
    server_out.write_all(http2::PREFACE).await?;
    let up = relay(client_in, server_out, |bytes| tap.lock().observe(Side::Client, bytes));
    let down = relay_until_idle(server_in, client_out, &tap, &stop);
    both(up, down).await
}

/// Anything else, HTTP/1.1 most likely.
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

/// Until both directions are over; the second has a while after the first.
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

/// Copies until the end of `from`, which becomes the end of `to`.
async fn relay<R, W>(
    mut from: ReadHalf<R>,
    mut to: WriteHalf<W>,
    mut hear: impl FnMut(&[u8]),
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
        // Before it is written: an answer must not be heard before its question.
        hear(&buffer[..read]);
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

/// Copies what the server says; after `stop` until no call is under way.
async fn relay_until_idle(
    mut from: ReadHalf<Server>,
    mut to: WriteHalf<Box<dyn Io>>,
    tap: &Mutex<Tap>,
    stop: &CancellationToken,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut told, mut patience) = (false, tokio::time::interval(IDLE_POLL));
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            () = stop.cancelled(), if !told => {
                // Inside a frame it has to wait for the frame's end.
                told = tap.lock().is_between_frames(Side::Server);
                if told {
                    to.write_all(&frames::GOAWAY).await?;
                    to.flush().await?;
                } else {
                    patience.tick().await;
                }
                continue;
            }
            _ = patience.tick(), if told => {
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
