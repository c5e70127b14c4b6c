//! Receiving a snapshot: passes its content to the member, and tells the sender whether it is
//! installed.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc;

use bytes::{Buf as _, Bytes};
use consensus::message::Message;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::acknowledge::{self, LastPing};
use crate::class::Class;
use crate::connection::{Reader, Writer};
use crate::frame::{HEADER_BYTES, Kind, invalid, put_frame, write_all};
use crate::incoming_snapshot::{Chunk, IncomingSnapshot, Part};
use crate::peer::{Peer, count};
use crate::shared::Shared;
use crate::window::ReceiveWindow;

/// What a stream has received so far.
struct Progress {
    parts: mpsc::Sender<Part>,
    bytes: u64,
    crc: u32,
}

/// Receives a snapshot of `peer`. `check` refuses a message that does not belong to the stream.
pub(crate) async fn serve(
    shared: &Shared,
    peer: &Peer,
    mut reader: Reader,
    writer: Writer,
    check: impl Fn(&Message) -> io::Result<()>,
) -> io::Result<()> {
    let max = shared.config.max_frame_bytes(Class::Snapshot);
    let message = match reader.next(max).await? {
        Some(frame) if frame.kind == Kind::Message => {
            Message::decode(frame.body).map_err(invalid)?
        }
        Some(_) => return Err(invalid("not a snapshot")),
        None => return Ok(()),
    };
    check(&message)?;
    count(&peer.lane(Class::Snapshot).counters.received_messages, 1);
    let (snapshot, parts, result) = IncomingSnapshot::new(message);
    let window = ReceiveWindow::new(Class::Snapshot.window());
    let last_ping = LastPing::default();
    shared.inbox.snapshot(snapshot);
    let progress = Progress { parts, bytes: 0, crc: 0 };
    let mut receiving = std::pin::pin!(receive(peer, reader, max, progress, &window, &last_ping));
    tokio::select! {
        Err(error) = receiving.as_mut() => return Err(error),
        finished = finish(shared, writer, &window, &last_ping, result) => finished?,
    }
    // The sender closes the connection when it has the result. If it were closed here while bytes
    // of the sender arrive, the result could be lost.
    let _ = timeout(shared.config.timeouts.silence, receiving).await;
    Ok(())
}

async fn receive(
    peer: &Peer,
    mut reader: Reader,
    max: usize,
    progress: Progress,
    window: &Arc<ReceiveWindow>,
    last_ping: &LastPing,
) -> io::Result<Infallible> {
    let mut progress = Some(progress);
    loop {
        let frame = reader.next(max).await?;
        let frame = frame.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        match (frame.kind, &mut progress) {
            (Kind::Ping, _) => last_ping.set(frame.body)?,
            (Kind::Chunk, Some(progress)) => {
                let counters = &peer.lane(Class::Snapshot).counters;
                count(&counters.received_bytes, frame.body.len() + HEADER_BYTES);
                let held = window.receive(frame.body.len() + HEADER_BYTES).map_err(invalid)?;
                progress.add(Chunk { bytes: frame.body, _held: held });
            }
            (Kind::End, Some(complete)) => {
                complete.end(frame.body)?;
                progress = None;
            }
            _ => return Err(invalid("frame that does not belong here")),
        }
    }
}

impl Progress {
    fn add(&mut self, chunk: Chunk) {
        self.bytes += chunk.bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, &chunk.bytes);
        // The member may have dropped the snapshot. The sender learns this by the result.
        let _ = self.parts.send(Part::Chunk(chunk));
    }

    fn end(&self, mut body: Bytes) -> io::Result<()> {
        if body.len() != 12 {
            return Err(invalid("end of a snapshot of the wrong size"));
        }
        if (body.get_u64_le(), body.get_u32_le()) != (self.bytes, self.crc) {
            return Err(invalid("the snapshot is damaged"));
        }
        let _ = self.parts.send(Part::End);
        Ok(())
    }
}

/// Acknowledges what the member has taken, until it says whether the snapshot is installed.
async fn finish(
    shared: &Shared,
    mut writer: Writer,
    window: &ReceiveWindow,
    last_ping: &LastPing,
    result: oneshot::Receiver<bool>,
) -> io::Result<()> {
    let timeouts = &shared.config.timeouts;
    let installed = tokio::select! {
        result = result => result.unwrap_or(false),
        Err(error) = acknowledge::run(&mut writer, window, last_ping, timeouts) => return Err(error),
    };
    let mut out = Vec::new();
    put_frame(Kind::Result, &mut out, |buf| buf.push(installed.into()));
    write_all(&mut writer, &out, timeouts.silence).await?;
    writer.shutdown().await
}
