//! Entries of the log, what is stored besides them, and their format.

use bytes::{BufMut, Bytes};
use raft::eraftpb;

use crate::id::{Index, MemberId, Position, Term};
use crate::membership::{Change, Membership};
use crate::wire::{DecodeError, Reader, put_bytes, put_number, put_position};

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is in the log.
    pub position: Position,
    /// What it contains.
    pub content: Content,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing: the first entry of a leader.
    Empty,
    /// The effects of commands that a leader has evaluated.
    Data(Data),
    /// A change of the members.
    Change(Change),
}

/// The effects of commands that a leader has evaluated, and on what state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The term in which the leader evaluated the commands.
    pub term: Term,
    /// The index of the entry with data before this one; 0 for the first one. The commands were
    /// evaluated on the state after that entry.
    pub previous: Index,
    /// The effects. This crate does not read them, and does not copy them.
    pub payload: Bytes,
}

/// What a replica must not forget between a promise to others and a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The current term.
    pub term: Term,
    /// The member that got the vote of this replica in this term.
    pub vote: Option<MemberId>,
    /// An index up to which entries are known to be committed. It may lag behind.
    pub commit: Index,
}

/// The description of a snapshot: of a state after an entry. Its content is not known here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The last entry whose effects the state contains.
    pub position: Position,
    /// The index of the last entry with data up to this position; 0 if there is none.
    pub last_data: Index,
    /// The members after this entry.
    pub membership: Membership,
}

// The kinds of contents. They are stored in logs, so they never change.
const EMPTY: u8 = 0;
const DATA: u8 = 1;
const CHANGE: u8 = 2;

impl Entry {
    /// Appends the entry to `buf`.
    pub fn encode(&self, buf: &mut Vec<u8>) {
        put_position(self.position, buf);
        match &self.content {
            Content::Empty => buf.put_u8(EMPTY),
            Content::Data(data) => {
                buf.put_u8(DATA);
                put_number(data.term, buf);
                put_number(data.previous, buf);
                put_bytes(&data.payload, buf);
            }
            Content::Change(change) => {
                buf.put_u8(CHANGE);
                let mut bytes = Vec::new();
                change.encode(&mut bytes);
                put_bytes(&bytes, buf);
            }
        }
    }

    /// Decodes an entry. Its payload refers to `bytes`.
    pub fn decode(bytes: Bytes) -> Result<Entry, DecodeError> {
        let mut reader = Reader::new(bytes);
        let entry = Entry::read(&mut reader)?;
        reader.finish()?;
        Ok(entry)
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<Entry, DecodeError> {
        let position = reader.position()?;
        let content = match reader.byte()? {
            EMPTY => Content::Empty,
            DATA => Content::Data(Data {
                term: reader.number()?,
                previous: reader.number()?,
                payload: reader.bytes()?,
            }),
            CHANGE => Content::Change(Change::decode(reader.bytes()?)?),
            _ => return Err(DecodeError::Invalid("kind of entry")),
        };
        Ok(Entry { position, content })
    }

    /// Converts an entry of the library, which this crate has made.
    pub(crate) fn from_raft(entry: eraftpb::Entry) -> Result<Entry, DecodeError> {
        let position = Position { term: entry.term, index: entry.index };
        let content = Content::from_context(entry.context, entry.data)?;
        Ok(Entry { position, content })
    }

    /// Converts the entry for the library. The payload is shared.
    pub(crate) fn into_raft(self) -> eraftpb::Entry {
        let mut entry = eraftpb::Entry {
            term: self.position.term,
            index: self.position.index,
            context: self.content.context(),
            ..eraftpb::Entry::default()
        };
        match self.content {
            Content::Empty => {}
            Content::Data(data) => entry.data = data.payload,
            // The library reads the data of a configuration change only when it is proposed.
            Content::Change(change) if change.conf_change().is_some() => {
                entry.set_entry_type(eraftpb::EntryType::EntryConfChangeV2);
            }
            Content::Change(_) => {}
        }
        entry
    }
}

impl Content {
    /// Returns the part of the content that the field `context` of the library's entry contains:
    /// all but the payload.
    pub(crate) fn context(&self) -> Bytes {
        let mut buf = Vec::new();
        match self {
            Content::Empty => {}
            Content::Data(data) => {
                buf.put_u8(DATA);
                put_number(data.term, &mut buf);
                put_number(data.previous, &mut buf);
            }
            Content::Change(change) => {
                buf.put_u8(CHANGE);
                change.encode(&mut buf);
            }
        }
        buf.into()
    }

    fn from_context(context: Bytes, payload: Bytes) -> Result<Content, DecodeError> {
        match context.first() {
            None => Ok(Content::Empty),
            Some(&DATA) => {
                let mut reader = Reader::new(context.slice(1..));
                let (term, previous) = (reader.number()?, reader.number()?);
                reader.finish()?;
                Ok(Content::Data(Data { term, previous, payload }))
            }
            Some(&CHANGE) => Ok(Content::Change(Change::decode(context.slice(1..))?)),
            Some(_) => Err(DecodeError::Invalid("kind of entry")),
        }
    }
}

impl HardState {
    pub(crate) fn from_raft(state: &eraftpb::HardState) -> HardState {
        HardState { term: state.term, vote: MemberId::new(state.vote), commit: state.commit }
    }

    pub(crate) fn to_raft(self) -> eraftpb::HardState {
        eraftpb::HardState {
            term: self.term,
            vote: self.vote.map_or(0, MemberId::get),
            commit: self.commit,
            ..eraftpb::HardState::default()
        }
    }
}

impl Snapshot {
    /// Appends the description to `buf`.
    pub fn encode(&self, buf: &mut Vec<u8>) {
        put_position(self.position, buf);
        put_number(self.last_data, buf);
        self.membership.encode(buf);
    }

    /// Decodes a description.
    pub fn decode(bytes: Bytes) -> Result<Snapshot, DecodeError> {
        let mut reader = Reader::new(bytes);
        let snapshot = Snapshot::read(&mut reader)?;
        reader.finish()?;
        Ok(snapshot)
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<Snapshot, DecodeError> {
        let (position, last_data) = (reader.position()?, reader.number()?);
        Ok(Snapshot { position, last_data, membership: Membership::decode(reader)? })
    }

    /// Converts the description for the library.
    pub(crate) fn to_raft(&self) -> eraftpb::Snapshot {
        let mut snapshot = eraftpb::Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.position.index;
        metadata.term = self.position.term;
        metadata.set_conf_state(self.membership.conf_state());
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::MemberInfo;

    fn contents() -> Vec<Content> {
        let id = MemberId::new(7).unwrap();
        let info = MemberInfo { id, name: "a".to_owned(), peer_urls: vec![], client_urls: vec![] };
        vec![
            Content::Empty,
            Content::Data(Data { term: 3, previous: 8, payload: Bytes::from_static(b"effects") }),
            Content::Data(Data { term: 1, previous: 0, payload: Bytes::new() }),
            Content::Change(Change::AddLearner(info)),
            Content::Change(Change::LeaveJoint),
            Content::Change(Change::SetPeerUrls { id, peer_urls: vec!["http://a".to_owned()] }),
        ]
    }

    #[test]
    fn entries_are_read_as_written() {
        for content in contents() {
            let entry = Entry { position: Position { term: 3, index: 9 }, content };
            let mut buf = Vec::new();
            entry.encode(&mut buf);
            assert_eq!(Entry::decode(buf.into()), Ok(entry.clone()));
            assert_eq!(Entry::from_raft(entry.clone().into_raft()), Ok(entry));
        }
    }

    #[test]
    fn payloads_are_shared() {
        let payload = Bytes::from(vec![1; 1000]);
        let data = Data { term: 1, previous: 0, payload: payload.clone() };
        let position = Position { term: 1, index: 1 };
        let entry = Entry { position, content: Content::Data(data) };
        assert_eq!(entry.into_raft().data.as_ptr(), payload.as_ptr());
    }
}
