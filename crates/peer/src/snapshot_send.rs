//! Sending a snapshot: its description, its content in parts at a limited rate, and then waiting
//! until the receiver has installed it.

use std::convert::Infallible;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::{BufMut as _, Bytes};
use consensus::message::Message;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use crate::class::Class;
use crate::connection::{DialError, Opened, Reader, Writer};
use crate::frame::{HEADER_BYTES, Kind, invalid, numbers, put_frame, put_numbers, write_all};
use crate::outgoing::{self, Urls};
use crate::pace::Pace;
use crate::peer::{Peer, count};
use crate::shared::Shared;
use crate::window::SendWindow;

/// Size of a part of the content in bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// Number of parts that are read in advance.
const READ_AHEAD: usize = 2;

/// Sends a snapshot, and reports to the member whether it is installed.
pub(crate) async fn run(
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    message: Message,
    content: Box<dyn Read + Send>,
) {
    let sent = tokio::select! {
        sent = send(&shared, &peer, &message, content) => sent,
        () = peer.stop.cancelled() => Ok(false),
    };
    if let Err(error) = &sent {
        tracing::warn!(peer = %peer.id, %error, "failed to send a snapshot");
    }
    peer.lane(Class::Snapshot).counters.is_connected.store(false, Ordering::Relaxed);
    peer.is_sending_snapshot.store(false, Ordering::Release);
    shared.inbox.snapshot_sent(peer.id, matches!(sent, Ok(true)));
}

async fn send(
    shared: &Shared,
    peer: &Peer,
    message: &Message,
    content: Box<dyn Read + Send>,
) -> Result<bool, DialError> {
    let Opened { reader, mut writer, window } =
        outgoing::open(shared, peer, Class::Snapshot, &mut Urls::default()).await?;
    let counters = &peer.lane(Class::Snapshot).counters;
    counters.is_connected.store(true, Ordering::Relaxed);
    count(&counters.connects, 1);
    let mut start = Vec::new();
    put_frame(Kind::Message, &mut start, |buf| message.encode(buf));
    if start.len() > shared.config.max_frame_bytes(Class::Snapshot) {
        return Err(invalid("the description of the snapshot is too large").into());
    }
    write_all(&mut writer, &start, shared.config.timeouts.silence).await?;
    count(&counters.sent_messages, 1);
    let window = Window { window: Mutex::new(SendWindow::new(window)), changed: Notify::new() };
    tokio::select! {
        result = read_result(reader, &window) => Ok(result?),
        Err(error) = send_content(shared, peer, writer, content, &window) => Err(error.into()),
    }
}

struct Window {
    window: Mutex<SendWindow>,
    changed: Notify,
}

/// Reads acknowledgements until the receiver says whether the snapshot is installed.
async fn read_result(mut reader: Reader, window: &Window) -> io::Result<bool> {
    loop {
        let frame = reader.next(16).await?;
        let frame = frame.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        match frame.kind {
            Kind::Acknowledgement => {
                let [taken, _] = numbers(frame.body)?;
                window.window.lock().acknowledge(taken).map_err(invalid)?;
                window.changed.notify_one();
            }
            Kind::Result if frame.body.len() == 1 => return Ok(frame.body[0] == 1),
            _ => return Err(invalid("not an acknowledgement")),
        }
    }
}

/// Sends the content, and then signs of life.
async fn send_content(
    shared: &Shared,
    peer: &Peer,
    mut writer: Writer,
    content: Box<dyn Read + Send>,
    window: &Window,
) -> io::Result<Infallible> {
    let silence = shared.config.timeouts.silence;
    let mut chunks = read(content);
    let mut pace = Pace::new(shared.config.snapshot_bytes_per_second, Instant::now());
    let (mut bytes, mut crc) = (0u64, 0);
    let mut out = Vec::new();
    while let Some(chunk) = with_pings(shared, &mut writer, chunks.recv()).await? {
        let chunk = chunk?;
        let delay = pace.delay(chunk.len(), Instant::now());
        with_pings(shared, &mut writer, sleep(delay)).await?;
        let room = wait_for_room(window, chunk.len() + HEADER_BYTES);
        with_pings(shared, &mut writer, room).await?;
        put_frame(Kind::Chunk, &mut out, |buf| buf.extend_from_slice(&chunk));
        write_all(&mut writer, &out, silence).await?;
        count(&peer.lane(Class::Snapshot).counters.sent_bytes, out.len());
        out.clear();
        (bytes, crc) = (bytes + chunk.len() as u64, crc32c::crc32c_append(crc, &chunk));
    }
    put_frame(Kind::End, &mut out, |buf| {
        buf.put_u64_le(bytes);
        buf.put_u32_le(crc);
    });
    write_all(&mut writer, &out, silence).await?;
    with_pings(shared, &mut writer, std::future::pending()).await
}

async fn wait_for_room(window: &Window, bytes: usize) {
    while !window.window.lock().take(bytes) {
        window.changed.notified().await;
    }
}

/// Waits for `future`, and sends signs of life meanwhile.
async fn with_pings<T>(
    shared: &Shared,
    writer: &mut Writer,
    future: impl Future<Output = T>,
) -> io::Result<T> {
    let timeouts = &shared.config.timeouts;
    let mut future = std::pin::pin!(future);
    let mut ping = Vec::new();
    loop {
        if let Ok(output) = timeout(timeouts.ping_interval, future.as_mut()).await {
            return Ok(output);
        }
        ping.clear();
        put_numbers(Kind::Ping, &[0], &mut ping);
        write_all(writer, &ping, timeouts.silence).await?;
    }
}

/// Reads the content on a thread that may block. The channel ends after the last part, and the
/// thread when the channel is dropped.
fn read(mut content: Box<dyn Read + Send>) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, chunks) = mpsc::channel(READ_AHEAD);
    tokio::task::spawn_blocking(move || {
        loop {
            let chunk = read_chunk(&mut content);
            let is_last = !matches!(&chunk, Ok(chunk) if chunk.len() == CHUNK_BYTES);
            let is_empty = matches!(&chunk, Ok(chunk) if chunk.is_empty());
            if is_empty || sender.blocking_send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    chunks
}

/// Reads a part of the content; a smaller one is the last.
fn read_chunk(content: &mut dyn Read) -> io::Result<Bytes> {
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    content.take(CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
    Ok(chunk.into())
}
