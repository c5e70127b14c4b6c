//! The stream on which another member sends the messages of a class to this one.

use std::io;
use std::sync::Arc;

use consensus::message::Message;
use rustls_pki_types::CertificateDer;
use tokio::io::AsyncWriteExt as _;

use crate::acknowledge::{self, LastPing};
use crate::class::Class;
use crate::connection::{Accepted, Reader, Writer};
use crate::frame::{HEADER_BYTES, Kind, invalid, write_all};
use crate::hello::{Answer, Hello, StreamHello, Welcome};
use crate::peer::{Peer, count};
use crate::peers::{Admitted, Peers};
use crate::shared::Shared;
use crate::snapshot_receive;
use crate::tls::PeerTls;
use crate::window::ReceiveWindow;

/// Answers the handshake. If the stream begins, receives messages until it ends.
pub(crate) async fn serve(
    shared: &Shared,
    peers: &Peers,
    tls: Option<&PeerTls>,
    accepted: Accepted,
) -> io::Result<()> {
    let Accepted { reader, mut writer, hello, certificate } = accepted;
    let stream = match hello {
        Hello::Probe => return answer(shared, &mut writer, Answer::Accepted, 0).await,
        Hello::Stream(stream) => stream,
    };
    let certificate = tls.zip(certificate);
    let admitted = match admit(shared, peers, certificate, &stream) {
        Ok(admitted) => admitted,
        Err(refusal) => {
            let from = &stream.from;
            tracing::debug!(peer = %from.id, name = from.name, %refusal, "refused a peer");
            shared.refusals.refused(refusal);
            return answer(shared, &mut writer, refusal, 0).await;
        }
    };
    let window = stream.class.window();
    let result = tokio::select! {
        () = admitted.replaced.cancelled() => Ok(()),
        result = async {
            // The previous stream of this sender has ended.
            let lane = admitted.peer.lane(stream.class);
            let _turn = lane.turn.lock().await;
            write_answer(shared, &mut writer, Answer::Accepted, window).await?;
            let _incoming = lane.begin_incoming();
            if stream.class == Class::Forward {
                // What waits for this stream may be sent now.
                shared.inbox.wake();
            }
            receive(shared, &admitted.peer, stream.class, reader, writer).await
        } => result,
    };
    if stream.class == Class::Forward {
        // Responses that the sender had on its way are lost. This comes after the end of `_incoming`: whoever has
        // asked because of it is told.
        shared.inbox.forward_lost(admitted.peer.id);
    }
    result
}

fn admit<'a>(
    shared: &Shared,
    peers: &'a Peers,
    certificate: Option<(&PeerTls, CertificateDer<'static>)>,
    stream: &StreamHello,
) -> Result<Admitted<'a>, Answer> {
    if stream.cluster != shared.cluster() {
        return Err(Answer::OtherCluster);
    }
    let is_own = stream.to == shared.id();
    let is_known = is_own || stream.process == Some(shared.id());
    if let Some((tls, certificate)) = certificate
        && !(tls.is_allowed(&certificate) && tls.may_claim(&certificate, &stream.from.peer_urls))
    {
        // Without the certificate of a member, one learns who is here, as from a probe.
        return Err(if is_known { Answer::Certificate } else { Answer::OtherMember });
    }
    if !is_known {
        shared.expect_other(stream.to);
        return Err(Answer::OtherMember);
    }
    shared.called.send_if_modified(|called| called.replace(stream.to) != Some(stream.to));
    if !is_own {
        // This process has to begin under the identity before it may speak under it.
        return Err(Answer::OtherMember);
    }
    peers.admit(stream.from.clone(), stream.class)
}

/// Answers and ends the connection.
async fn answer(
    shared: &Shared,
    writer: &mut Writer,
    answer: Answer,
    window: u32,
) -> io::Result<()> {
    write_answer(shared, writer, answer, window).await?;
    writer.shutdown().await
}

async fn write_answer(
    shared: &Shared,
    writer: &mut Writer,
    answer: Answer,
    window: u32,
) -> io::Result<()> {
    let mut out = Vec::new();
    Welcome { answer, window, identity: shared.identity() }.encode(&mut out);
    write_all(writer, &out, shared.config.timeouts.silence).await
}

async fn receive(
    shared: &Shared,
    peer: &Peer,
    class: Class,
    reader: Reader,
    mut writer: Writer,
) -> io::Result<()> {
    if class == Class::Snapshot {
        let check = |message: &Message| check(shared, peer, class, message);
        return snapshot_receive::serve(shared, peer, reader, writer, check).await;
    }
    let window = ReceiveWindow::new(class.window());
    let last_ping = LastPing::default();
    let timeouts = &shared.config.timeouts;
    tokio::select! {
        received = receive_messages(shared, peer, class, reader, &window, &last_ping) => received,
        Err(error) = acknowledge::run(&mut writer, &window, &last_ping, timeouts) => Err(error),
    }
}

/// Passes messages to the member until the sender ends the stream.
async fn receive_messages(
    shared: &Shared,
    peer: &Peer,
    class: Class,
    mut reader: Reader,
    window: &Arc<ReceiveWindow>,
    last_ping: &LastPing,
) -> io::Result<()> {
    let counters = &peer.lane(class).counters;
    let max = shared.config.max_frame_bytes(class);
    while let Some(frame) = reader.next(max).await? {
        let bytes = frame.body.len() + HEADER_BYTES;
        count(&counters.received_bytes, bytes);
        match frame.kind {
            Kind::Ping => last_ping.set(frame.body)?,
            Kind::Forwarded if class == Class::Forward => {
                let held = window.receive(bytes).map_err(invalid)?;
                count(&counters.received_messages, 1);
                shared.inbox.forwarded(peer.id, frame.body, held);
            }
            Kind::Message => {
                let held = window.receive(bytes).map_err(invalid)?;
                let message = Message::decode(frame.body).map_err(invalid)?;
                check(shared, peer, class, &message)?;
                count(&counters.received_messages, 1);
                shared.inbox.message(message, held);
            }
            _ => return Err(invalid("frame that does not belong here")),
        }
    }
    Ok(())
}

/// Refuses a message that does not belong to the stream.
fn check(shared: &Shared, peer: &Peer, class: Class, message: &Message) -> io::Result<()> {
    let belongs = message.cluster == shared.cluster()
        && message.from == peer.id
        && message.to == shared.id()
        && Class::of(message) == class;
    belongs.then_some(()).ok_or_else(|| invalid("a message that does not belong to its stream"))
}
