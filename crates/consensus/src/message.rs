//! Messages between members.
//!
//! The library's messages never leave this crate: other members' bytes are decoded here, so they
//! do not reach the library's parser. [`Message::check`] refuses what no correct member sends and
//! at which the library would panic.

use bytes::{BufMut, Bytes};
use raft::eraftpb::{self, MessageType};
use raft::{CAMPAIGN_TRANSFER, INVALID_ID};

use crate::entry::{Entry, Snapshot};
use crate::id::{ClusterId, Index, MemberId, Position, Term};
use crate::wire::{DecodeError, Reader, put_bytes, put_list, put_number, put_position};

/// A message from a member to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The cluster of both.
    pub cluster: ClusterId,
    /// The sender.
    pub from: MemberId,
    /// The receiver.
    pub to: MemberId,
    /// The term of the sender; in an election, the term that begins. 0 in [`Body::ReadIndex`].
    pub term: Term,
    /// The content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Entries from the leader.
    Append {
        /// The entry before them.
        previous: Position,
        /// The commit index of the leader.
        commit: Index,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// The response to [`Body::Append`] and [`Body::Snapshot`]. Also the notice that the receiver
    /// is in an older term.
    AppendResponse {
        /// The index up to which the logs are equal; if the entries are refused, the index before
        /// them.
        index: Index,
        /// The commit index of the sender.
        commit: Index,
        /// If the entries are refused: an entry before which the leader should try.
        refused: Option<Position>,
    },
    /// A request for a vote.
    Vote {
        /// Whether it is only a question how the vote would be (PreVote).
        pre: bool,
        /// The last entry of the candidate.
        last: Position,
        /// An entry that the candidate knows to be committed.
        commit: Position,
        /// Whether the leader has asked for the election.
        transfer: bool,
    },
    /// The response to [`Body::Vote`].
    VoteResponse {
        /// Whether it is the response to a question.
        pre: bool,
        /// Whether the vote is granted.
        granted: bool,
        /// An entry that the voter knows to be committed.
        commit: Position,
    },
    /// The leader exists.
    Heartbeat {
        /// The commit index, as far as the receiver has the entries.
        commit: Index,
        /// The read request to confirm; empty if there is none.
        read: Bytes,
    },
    /// The response to [`Body::Heartbeat`].
    HeartbeatResponse {
        /// The commit index of the sender.
        commit: Index,
        /// The read request of the heartbeat.
        read: Bytes,
    },
    /// A snapshot. Its content travels beside it: the sender makes it when it gets the message from
    /// [`crate::Replica::output`], and the receiver passes the message on when it has the content.
    Snapshot(Snapshot),
    /// The leader asks the receiver to take over.
    TimeoutNow,
    /// A follower asks for the index that a read must see.
    ReadIndex {
        /// Identifies the request.
        read: Bytes,
    },
    /// The response to [`Body::ReadIndex`].
    ReadIndexResponse {
        /// Identifies the request.
        read: Bytes,
        /// The index.
        index: Index,
    },
}

/// Why a replica ignores a message.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Ignored {
    /// It is for another cluster.
    #[error("the message is for cluster {0}")]
    OtherCluster(ClusterId),
    /// It is for another member, for example for the one that used this address before.
    #[error("the message is for member {0}")]
    OtherReceiver(MemberId),
    /// It is a response from a member that is not in the cluster.
    #[error("member {0} is not in the cluster")]
    UnknownSender(MemberId),
    /// No correct member sends it.
    #[error("the message of member {0} contradicts the log: {1}")]
    Contradiction(MemberId, &'static str),
}

/// What [`Message::check`] needs to know about the receiver's log.
pub(crate) struct LogView<'a> {
    pub(crate) term: Term,
    pub(crate) is_leader: bool,
    pub(crate) last: Index,
    pub(crate) commit: Index,
    /// Returns the term of an entry; 0 or `None` if it is unknown.
    pub(crate) term_of: &'a dyn Fn(Index) -> Option<Term>,
}

impl Message {
    /// Refuses messages that contradict the log of the receiver. The library would panic.
    pub(crate) fn check(&self, log: &LogView<'_>) -> Result<(), Ignored> {
        let refuse = |reason| Err(Ignored::Contradiction(self.from, reason));
        // The library takes messages without a term for its own.
        if (self.term == 0) != matches!(self.body, Body::ReadIndex { .. }) {
            return refuse("the term is wrong");
        }
        match &self.body {
            Body::Append { previous, entries, .. } => {
                let mut before = *previous;
                for Entry { position, .. } in entries {
                    let follows = before.index.checked_add(1) == Some(position.index);
                    if !follows || position.term < before.term || position.term > self.term {
                        return refuse("the entries are out of order");
                    }
                    if self.term >= log.term && conflicts_with_committed(*position, log) {
                        return refuse("a committed entry is different");
                    }
                    before = *position;
                }
                Ok(())
            }
            Body::Heartbeat { commit, .. } if self.term >= log.term && *commit > log.last => {
                refuse("entries are missing that were acknowledged")
            }
            // A leader that has crashed may have sent entries that it had not written itself.
            Body::AppendResponse { index, .. } if log.is_leader => {
                let is_known = self.term != log.term || *index <= log.last;
                if is_known { Ok(()) } else { refuse("there are no such entries") }
            }
            Body::Snapshot(snapshot) if snapshot.position.term > self.term => {
                refuse("the snapshot has a later term")
            }
            _ => Ok(()),
        }
    }

    /// Converts a message of the library. `describe` describes the caller's state, of which the
    /// library wants to send a snapshot. It may be later than the one that the library knows.
    pub(crate) fn from_raft(
        cluster: ClusterId,
        mut message: eraftpb::Message,
        describe: impl FnOnce() -> Snapshot,
    ) -> Result<Message, DecodeError> {
        let member = |id| MemberId::new(id).ok_or(DecodeError::Invalid("member ID"));
        let (from, to, term) = (member(message.from)?, member(message.to)?, message.term);
        let commit = Position { term: message.commit_term, index: message.commit };
        let log = Position { term: message.log_term, index: message.index };
        let read = |message: &eraftpb::Message| message.entries.first().map(|e| e.data.clone());
        let body = match message.get_msg_type() {
            MessageType::MsgAppend => {
                let entries = message.take_entries().into_iter().map(Entry::from_raft);
                let entries = entries.collect::<Result<_, _>>()?;
                Body::Append { previous: log, commit: message.commit, entries }
            }
            MessageType::MsgAppendResponse => Body::AppendResponse {
                index: message.index,
                commit: message.commit,
                refused: message
                    .reject
                    .then_some(Position { term: message.log_term, index: message.reject_hint }),
            },
            kind @ (MessageType::MsgRequestVote | MessageType::MsgRequestPreVote) => Body::Vote {
                pre: kind == MessageType::MsgRequestPreVote,
                last: log,
                commit,
                transfer: message.context == CAMPAIGN_TRANSFER,
            },
            kind @ (MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse) => Body::VoteResponse {
                pre: kind == MessageType::MsgRequestPreVoteResponse,
                granted: !message.reject,
                commit,
            },
            MessageType::MsgHeartbeat => {
                Body::Heartbeat { commit: message.commit, read: message.take_context() }
            }
            MessageType::MsgHeartbeatResponse => {
                Body::HeartbeatResponse { commit: message.commit, read: message.take_context() }
            }
            MessageType::MsgSnapshot => Body::Snapshot(describe()),
            MessageType::MsgTimeoutNow => Body::TimeoutNow,
            MessageType::MsgReadIndex => Body::ReadIndex {
                read: read(&message).ok_or(DecodeError::Invalid("read request"))?,
            },
            MessageType::MsgReadIndexResp => Body::ReadIndexResponse {
                read: read(&message).ok_or(DecodeError::Invalid("read request"))?,
                index: message.index,
            },
            _ => return Err(DecodeError::Invalid("kind of message")),
        };
        Ok(Message { cluster, from, to, term, body })
    }

    /// Converts the message for the library. Payloads are shared.
    pub(crate) fn into_raft(self) -> eraftpb::Message {
        let mut message = eraftpb::Message {
            from: self.from.get(),
            to: self.to.get(),
            term: self.term,
            ..eraftpb::Message::default()
        };
        message.set_msg_type(self.body.kind());
        match self.body {
            Body::Append { previous, commit, entries } => {
                (message.log_term, message.index) = (previous.term, previous.index);
                message.commit = commit;
                let entries = entries.into_iter().map(Entry::into_raft);
                message.set_entries(entries.collect::<Vec<_>>().into());
            }
            Body::AppendResponse { index, commit, refused } => {
                (message.index, message.commit) = (index, commit);
                if let Some(hint) = refused {
                    message.reject = true;
                    (message.log_term, message.reject_hint) = (hint.term, hint.index);
                }
            }
            Body::Vote { last, commit, transfer, .. } => {
                (message.log_term, message.index) = (last.term, last.index);
                (message.commit_term, message.commit) = (commit.term, commit.index);
                if transfer {
                    message.context = Bytes::from_static(CAMPAIGN_TRANSFER);
                }
            }
            Body::VoteResponse { granted, commit, .. } => {
                message.reject = !granted;
                (message.commit_term, message.commit) = (commit.term, commit.index);
            }
            Body::Heartbeat { commit, read } | Body::HeartbeatResponse { commit, read } => {
                (message.commit, message.context) = (commit, read);
            }
            Body::Snapshot(snapshot) => message.set_snapshot(snapshot.to_raft()),
            Body::TimeoutNow => {}
            Body::ReadIndex { read } => message.set_entries(vec![read_entry(read)].into()),
            Body::ReadIndexResponse { read, index } => {
                message.index = index;
                message.set_entries(vec![read_entry(read)].into());
            }
        }
        message
    }
}

/// Whether an entry of the leader contradicts a committed one.
fn conflicts_with_committed(position: Position, log: &LogView<'_>) -> bool {
    let known = || (log.term_of)(position.index).unwrap_or(INVALID_ID);
    position.index <= log.commit && known() != 0 && known() != position.term
}

/// The library transports the context of a read request as an entry.
fn read_entry(read: Bytes) -> eraftpb::Entry {
    eraftpb::Entry { data: read, ..eraftpb::Entry::default() }
}

impl Body {
    fn kind(&self) -> MessageType {
        match self {
            Body::Append { .. } => MessageType::MsgAppend,
            Body::AppendResponse { .. } => MessageType::MsgAppendResponse,
            Body::Vote { pre: true, .. } => MessageType::MsgRequestPreVote,
            Body::Vote { .. } => MessageType::MsgRequestVote,
            Body::VoteResponse { pre: true, .. } => MessageType::MsgRequestPreVoteResponse,
            Body::VoteResponse { .. } => MessageType::MsgRequestVoteResponse,
            Body::Heartbeat { .. } => MessageType::MsgHeartbeat,
            Body::HeartbeatResponse { .. } => MessageType::MsgHeartbeatResponse,
            Body::Snapshot(_) => MessageType::MsgSnapshot,
            Body::TimeoutNow => MessageType::MsgTimeoutNow,
            Body::ReadIndex { .. } => MessageType::MsgReadIndex,
            Body::ReadIndexResponse { .. } => MessageType::MsgReadIndexResp,
        }
    }
}

// The kinds of messages. Members of different versions exchange them, so they never change.
const APPEND: u8 = 1;
const APPEND_RESPONSE: u8 = 2;
const VOTE: u8 = 3;
const VOTE_RESPONSE: u8 = 4;
const HEARTBEAT: u8 = 5;
const HEARTBEAT_RESPONSE: u8 = 6;
const SNAPSHOT: u8 = 7;
const TIMEOUT_NOW: u8 = 8;
const READ_INDEX: u8 = 9;
const READ_INDEX_RESPONSE: u8 = 10;

impl Message {
    /// Appends the message to `buf`.
    pub fn encode(&self, buf: &mut Vec<u8>) {
        buf.put_u64_le(self.cluster.0);
        [self.from.get(), self.to.get(), self.term].iter().for_each(|n| put_number(*n, buf));
        match &self.body {
            Body::Append { previous, commit, entries } => {
                buf.put_u8(APPEND);
                put_position(*previous, buf);
                put_number(*commit, buf);
                put_list(entries.iter(), buf, Entry::encode);
            }
            Body::AppendResponse { index, commit, refused } => {
                buf.put_u8(APPEND_RESPONSE);
                put_number(*index, buf);
                put_number(*commit, buf);
                buf.put_u8(refused.is_some().into());
                put_position(refused.unwrap_or_default(), buf);
            }
            Body::Vote { pre, last, commit, transfer } => {
                buf.put_u8(VOTE);
                buf.put_slice(&[u8::from(*pre), u8::from(*transfer)]);
                put_position(*last, buf);
                put_position(*commit, buf);
            }
            Body::VoteResponse { pre, granted, commit } => {
                buf.put_u8(VOTE_RESPONSE);
                buf.put_slice(&[u8::from(*pre), u8::from(*granted)]);
                put_position(*commit, buf);
            }
            Body::Heartbeat { commit, read } => put_read(HEARTBEAT, *commit, read, buf),
            Body::HeartbeatResponse { commit, read } => {
                put_read(HEARTBEAT_RESPONSE, *commit, read, buf);
            }
            Body::Snapshot(snapshot) => {
                buf.put_u8(SNAPSHOT);
                snapshot.encode(buf);
            }
            Body::TimeoutNow => buf.put_u8(TIMEOUT_NOW),
            Body::ReadIndex { read } => put_read(READ_INDEX, 0, read, buf),
            Body::ReadIndexResponse { read, index } => {
                put_read(READ_INDEX_RESPONSE, *index, read, buf);
            }
        }
    }

    /// Decodes a message. Payloads refer to `bytes`.
    pub fn decode(bytes: Bytes) -> Result<Message, DecodeError> {
        let mut reader = Reader::new(bytes);
        let cluster = ClusterId(reader.fixed()?);
        let (from, to, term) = (reader.member()?, reader.member()?, reader.number()?);
        let body = Body::read(&mut reader)?;
        reader.finish()?;
        Ok(Message { cluster, from, to, term, body })
    }
}

fn put_read(kind: u8, index: Index, read: &Bytes, buf: &mut Vec<u8>) {
    buf.put_u8(kind);
    put_number(index, buf);
    put_bytes(read, buf);
}

impl Body {
    fn read(reader: &mut Reader) -> Result<Body, DecodeError> {
        Ok(match reader.byte()? {
            APPEND => Body::Append {
                previous: reader.position()?,
                commit: reader.number()?,
                entries: reader.list(Entry::read)?,
            },
            APPEND_RESPONSE => {
                let (index, commit) = (reader.number()?, reader.number()?);
                let (is_refused, hint) = (reader.flag()?, reader.position()?);
                Body::AppendResponse { index, commit, refused: is_refused.then_some(hint) }
            }
            VOTE => {
                let (pre, transfer) = (reader.flag()?, reader.flag()?);
                Body::Vote { pre, transfer, last: reader.position()?, commit: reader.position()? }
            }
            VOTE_RESPONSE => {
                let (pre, granted) = (reader.flag()?, reader.flag()?);
                Body::VoteResponse { pre, granted, commit: reader.position()? }
            }
            HEARTBEAT => Body::Heartbeat { commit: reader.number()?, read: reader.bytes()? },
            HEARTBEAT_RESPONSE => {
                Body::HeartbeatResponse { commit: reader.number()?, read: reader.bytes()? }
            }
            SNAPSHOT => Body::Snapshot(Snapshot::read(reader)?),
            TIMEOUT_NOW => Body::TimeoutNow,
            READ_INDEX => {
                reader.number()?;
                Body::ReadIndex { read: reader.bytes()? }
            }
            READ_INDEX_RESPONSE => {
                let index = reader.number()?;
                Body::ReadIndexResponse { read: reader.bytes()?, index }
            }
            _ => return Err(DecodeError::Invalid("kind of message")),
        })
    }
}
