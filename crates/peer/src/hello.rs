//! The handshake: the side that connects says who it is and whom it expects, and the other side
//! says who it is. A stream begins only if both mean the same cluster and the same members.

use std::io;

use bytes::{Buf, Bytes};
use consensus::id::{ClusterId, MemberId};
use consensus::membership::MemberInfo;

use crate::class::Class;
use crate::frame::{Kind, invalid, put_frame};

/// The first bytes of a connection. The last one is the version.
pub(crate) const PREFACE: [u8; 9] = *b"k1m-peer\x03";
/// Maximum size of the frames of the handshake in bytes.
pub(crate) const MAX_BYTES: usize = 16 << 10;

/// The first class number: of a connection that only asks who is there.
const PROBE: u8 = 0;

/// What the side that connects says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// It asks who is there.
    Probe,
    /// It wants to send messages of a class.
    Stream(StreamHello),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamHello {
    pub(crate) class: Class,
    pub(crate) cluster: ClusterId,
    pub(crate) to: MemberId,
    /// The process that got the identity `to`, and that may not know it yet
    /// ([`consensus::membership::Change::Claim`]).
    pub(crate) process: Option<MemberId>,
    pub(crate) from: MemberInfo,
}

/// What the side that is connected to says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) answer: Answer,
    /// How many bytes may be on their way ([`crate::window`]).
    pub(crate) window: u32,
    pub(crate) identity: Identity,
}

/// Who a member is, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster that it belongs to, or that it wants to form or to join.
    pub cluster: ClusterId,
    /// The member.
    pub member: MemberInfo,
    /// Whether it has no state: it has not been in the cluster since its start.
    pub is_blank: bool,
    /// Whether it waits until the cluster calls it ([`crate::Transport::called`]): it has not begun under
    /// an identity of the cluster.
    pub is_waiting: bool,
}

/// Whether a stream begins. Members of different versions use the numbers, so they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[repr(u8)]
pub enum Answer {
    /// The stream begins. To a probe: the identity.
    #[error("accepted")]
    Accepted = 0,
    /// The receiver is in another cluster.
    #[error("the peer is in another cluster")]
    OtherCluster = 1,
    /// Another member uses the address now, for example the same one after a restart.
    #[error("another member is at this address")]
    OtherMember = 2,
    /// The sender was removed from the cluster.
    #[error("the sender was removed from the cluster")]
    Removed = 3,
    /// The sender has the identity of the receiver.
    #[error("sender and receiver have the same identity")]
    SameMember = 4,
    /// Too many senders are not members.
    #[error("too many senders that are not members")]
    TooMany = 5,
    /// The certificate of the sender is not that of the URLs that the sender claims, or its name is
    /// not allowed.
    #[error(
        "the certificate of the sender does not permit its peer URLs, or its name is not allowed"
    )]
    Certificate = 6,
}

impl Answer {
    const ALL: [Answer; 7] = [
        Answer::Accepted,
        Answer::OtherCluster,
        Answer::OtherMember,
        Answer::Removed,
        Answer::SameMember,
        Answer::TooMany,
        Answer::Certificate,
    ];
}

impl Hello {
    pub(crate) fn encode(&self, buf: &mut Vec<u8>) {
        buf.extend_from_slice(&PREFACE);
        put_frame(Kind::Hello, buf, |buf| match self {
            Hello::Probe => buf.push(PROBE),
            Hello::Stream(stream) => {
                buf.push(stream.class.number());
                buf.extend_from_slice(&stream.cluster.0.to_le_bytes());
                buf.extend_from_slice(&stream.to.get().to_le_bytes());
                let process = stream.process.map_or(0, MemberId::get);
                buf.extend_from_slice(&process.to_le_bytes());
                stream.from.encode(buf);
            }
        });
    }

    pub(crate) fn decode(mut body: Bytes) -> io::Result<Hello> {
        let class = body.try_get_u8().map_err(truncated)?;
        if class == PROBE && body.is_empty() {
            return Ok(Hello::Probe);
        }
        let class = Class::from_number(class).ok_or_else(|| invalid("class of messages"))?;
        let cluster = ClusterId(body.try_get_u64_le().map_err(truncated)?);
        let to = MemberId::new(body.try_get_u64_le().map_err(truncated)?);
        let to = to.ok_or_else(|| invalid("member ID"))?;
        let process = MemberId::new(body.try_get_u64_le().map_err(truncated)?);
        let from = MemberInfo::decode(body).map_err(invalid)?;
        Ok(Hello::Stream(StreamHello { class, cluster, to, process, from }))
    }
}

impl Welcome {
    pub(crate) fn encode(&self, buf: &mut Vec<u8>) {
        put_frame(Kind::Welcome, buf, |buf| {
            buf.push(self.answer as u8);
            buf.extend_from_slice(&self.window.to_le_bytes());
            buf.extend_from_slice(&self.identity.cluster.0.to_le_bytes());
            buf.push(self.identity.flags());
            self.identity.member.encode(buf);
        });
    }

    pub(crate) fn decode(mut body: Bytes) -> io::Result<Welcome> {
        let answer = body.try_get_u8().map_err(truncated)?;
        let answer = Answer::ALL.into_iter().find(|known| *known as u8 == answer);
        let answer = answer.ok_or_else(|| invalid("answer to the handshake"))?;
        let window = body.try_get_u32_le().map_err(truncated)?;
        let cluster = ClusterId(body.try_get_u64_le().map_err(truncated)?);
        let flags = body.try_get_u8().map_err(truncated)?;
        let member = MemberInfo::decode(body).map_err(invalid)?;
        let identity = Identity {
            cluster,
            member,
            is_blank: flags & BLANK != 0,
            is_waiting: flags & (BLANK | BEGUN) == BLANK,
        };
        Ok(Welcome { answer, window, identity })
    }
}

/// A member without state.
const BLANK: u8 = 1;
/// A member that has begun.
const BEGUN: u8 = 2;

impl Identity {
    fn flags(&self) -> u8 {
        let begun = if self.is_waiting { 0 } else { BEGUN };
        if self.is_blank { BLANK | begun } else { begun }
    }
}

fn truncated(error: bytes::TryGetError) -> io::Error {
    invalid(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> MemberInfo {
        let peer_urls = vec!["https://a:2380".to_owned(), "https://b:2380".to_owned()];
        MemberInfo {
            id: MemberId::new(7).unwrap(),
            name: "a".to_owned(),
            peer_urls,
            client_urls: vec![],
        }
    }

    /// Returns the body of the frame in `buf` after `start` bytes.
    fn body(buf: &[u8], start: usize) -> Bytes {
        Bytes::copy_from_slice(&buf[start + crate::frame::HEADER_BYTES..])
    }

    #[test]
    fn hellos_are_read_as_written_and_nothing_else_is() {
        let to = MemberId::new(9).unwrap();
        let process = MemberId::new(3);
        let cluster = ClusterId(5);
        let stream =
            |class| Hello::Stream(StreamHello { class, cluster, to, process, from: info() });
        for hello in Class::ALL.map(stream).into_iter().chain([Hello::Probe]) {
            let mut buf = Vec::new();
            hello.encode(&mut buf);
            let body = body(&buf, PREFACE.len());
            assert_eq!(Hello::decode(body.clone()).unwrap(), hello);
            (0..body.len()).for_each(|cut| assert!(Hello::decode(body.slice(..cut)).is_err()));
            assert!(Hello::decode([&body[..], &[0]].concat().into()).is_err());
        }
    }

    #[test]
    fn welcomes_are_read_as_written_and_nothing_else_is() {
        let states = [(true, true), (true, false), (false, false)];
        for (answer, (is_blank, is_waiting)) in
            Answer::ALL.into_iter().flat_map(|answer| states.map(|state| (answer, state)))
        {
            let (cluster, member) = (ClusterId(5), info());
            let identity = Identity { cluster, member, is_blank, is_waiting };
            let welcome = Welcome { answer, window: 1 << 20, identity };
            let mut buf = Vec::new();
            welcome.encode(&mut buf);
            let body = body(&buf, 0);
            assert_eq!(Welcome::decode(body.clone()).unwrap(), welcome);
            (0..body.len()).for_each(|cut| assert!(Welcome::decode(body.slice(..cut)).is_err()));
        }
        assert!(Welcome::decode(Bytes::from_static(&[7; 100])).is_err());
    }
}
