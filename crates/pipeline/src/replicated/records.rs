//! The records of a member's log: what the replica wants to be stored ([`consensus`]).
//!
//! A record is a sequence of items: a tag, a length of 4 bytes (little-endian), and the content. The
//! tags never change. The log begins again with each *base*: the description of the state in a
//! snapshot of this member. The record with it also has the entries after it, so the records before
//! it are not needed when the snapshot is complete.

use bytes::{Buf, BufMut, Bytes};
use consensus::entry::{Entry, HardState, Snapshot};
use consensus::id::MemberId;
use files::PayloadError;

/// The state in a snapshot of this member. It is the state after entries that are in the log too.
const BASE: u8 = 1;
/// The state in a snapshot of another member, which has replaced the log.
const RESTORED: u8 = 2;
const HARD_STATE: u8 = 3;
const ENTRY: u8 = 4;

/// Appends the description of the state in a snapshot of this member.
pub(super) fn put_base(snapshot: &Snapshot, buf: &mut Vec<u8>) {
    put_item(BASE, buf, |buf| snapshot.encode(buf));
}

/// Appends the description of the state in a snapshot of another member.
pub(super) fn put_restored(snapshot: &Snapshot, buf: &mut Vec<u8>) {
    put_item(RESTORED, buf, |buf| snapshot.encode(buf));
}

/// Appends a hard state.
pub(super) fn put_hard_state(state: &HardState, buf: &mut Vec<u8>) {
    put_item(HARD_STATE, buf, |buf| {
        buf.put_u64_le(state.term);
        buf.put_u64_le(state.vote.map_or(0, MemberId::get));
        buf.put_u64_le(state.commit);
    });
}

/// Appends entries.
pub(super) fn put_entries(entries: &[Entry], buf: &mut Vec<u8>) {
    entries.iter().for_each(|entry| put_item(ENTRY, buf, |buf| entry.encode(buf)));
}

fn put_item(tag: u8, buf: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = buf.len();
    buf.push(tag);
    buf.put_u32_le(0);
    write(buf);
    let length = u32::try_from(buf.len() - start - 5).expect("an entry is shorter than 4 GiB");
    buf[start + 1..start + 5].copy_from_slice(&length.to_le_bytes());
}

/// What a log contains.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// The state in the snapshot with which the log begins; `None` before the first record.
    pub(super) base: Option<Snapshot>,
    /// The entries after it.
    pub(super) entries: Vec<Entry>,
    pub(super) hard_state: HardState,
}

impl Stored {
    /// Adds the next record.
    ///
    /// # Errors
    /// If it is malformed, or does not follow the records before it.
    pub(super) fn add(&mut self, record: &[u8]) -> Result<(), PayloadError> {
        let mut bytes = Bytes::copy_from_slice(record);
        while !bytes.is_empty() {
            let (tag, content) = take_item(&mut bytes).ok_or_else(|| damaged("truncated"))?;
            match tag {
                BASE => self.add_base(Snapshot::decode(content).map_err(damaged)?),
                RESTORED => {
                    self.base = Some(Snapshot::decode(content).map_err(damaged)?);
                    self.entries.clear();
                }
                HARD_STATE => self.hard_state = read_hard_state(content)?,
                ENTRY => self.add_entry(Entry::decode(content).map_err(damaged)?)?,
                tag => return Err(PayloadError::Newer(format!("unknown item {tag} of the log"))),
            }
        }
        Ok(())
    }

    /// The first record has the base. A later one describes a newer snapshot, which is not used if
    /// the log is read from an older one: its entries are here.
    fn add_base(&mut self, snapshot: Snapshot) {
        self.base.get_or_insert(snapshot);
    }

    /// An entry replaces all entries from its index on.
    fn add_entry(&mut self, entry: Entry) -> Result<(), PayloadError> {
        let base = self.base.as_ref().map_or(0, |base| base.position.index);
        let Some(position) = entry.position.index.checked_sub(base + 1) else { return Ok(()) };
        let position = position as usize;
        if position > self.entries.len() {
            return Err(damaged(format!("entry {} follows a gap", entry.position.index)));
        }
        self.entries.truncate(position);
        self.entries.push(entry);
        Ok(())
    }
}

fn take_item(bytes: &mut Bytes) -> Option<(u8, Bytes)> {
    let tag = bytes.try_get_u8().ok()?;
    let length = bytes.try_get_u32_le().ok()? as usize;
    (length <= bytes.len()).then(|| (tag, bytes.split_to(length)))
}

fn read_hard_state(mut bytes: Bytes) -> Result<HardState, PayloadError> {
    let mut number = || bytes.try_get_u64_le().map_err(damaged);
    let (term, vote, commit) = (number()?, number()?, number()?);
    Ok(HardState { term, vote: MemberId::new(vote), commit })
}

fn damaged(reason: impl ToString) -> PayloadError {
    PayloadError::Damaged(reason.to_string())
}

#[cfg(test)]
mod tests {
    use consensus::entry::{Content, Data};
    use consensus::id::Position;
    use consensus::membership::{MemberInfo, Membership};

    use super::*;

    fn snapshot(index: u64) -> Snapshot {
        let info = MemberInfo {
            id: MemberId::new(1).unwrap(),
            name: "a".to_owned(),
            peer_urls: vec![],
            client_urls: vec![],
        };
        let membership = Membership::of_voters([info]);
        Snapshot { position: Position { term: 1, index }, last_data: index, membership }
    }

    fn entry(term: u64, index: u64) -> Entry {
        let data = Data { term, previous: index - 1, payload: Bytes::from_static(b"effects") };
        Entry { position: Position { term, index }, content: Content::Data(data) }
    }

    fn positions(stored: &Stored) -> Vec<(u64, u64)> {
        stored.entries.iter().map(|e| (e.position.term, e.position.index)).collect()
    }

    #[test]
    fn entries_replace_those_of_earlier_terms() {
        let mut stored = Stored::default();
        let mut buf = Vec::new();
        put_base(&snapshot(5), &mut buf);
        put_entries(&[entry(1, 6), entry(1, 7), entry(1, 8)], &mut buf);
        stored.add(&buf).unwrap();
        buf.clear();
        let hard_state = HardState { term: 2, vote: MemberId::new(3), commit: 6 };
        put_hard_state(&hard_state, &mut buf);
        put_entries(&[entry(2, 7)], &mut buf);
        stored.add(&buf).unwrap();
        assert_eq!(positions(&stored), [(1, 6), (2, 7)]);
        assert_eq!(stored.hard_state, hard_state);
        assert_eq!(stored.base, Some(snapshot(5)));
        // A newer base is ignored, a restored one is not.
        buf.clear();
        put_base(&snapshot(7), &mut buf);
        put_entries(&[entry(2, 8)], &mut buf);
        stored.add(&buf).unwrap();
        assert_eq!(positions(&stored), [(1, 6), (2, 7), (2, 8)]);
        buf.clear();
        put_restored(&snapshot(20), &mut buf);
        put_entries(&[entry(2, 21)], &mut buf);
        stored.add(&buf).unwrap();
        assert_eq!((positions(&stored), stored.base.clone()), (vec![(2, 21)], Some(snapshot(20))));
        buf.clear();
        put_entries(&[entry(2, 23)], &mut buf);
        assert!(stored.add(&buf).is_err(), "a gap");
        assert!(stored.add(&buf[..9]).is_err(), "truncated");
        assert!(matches!(stored.add(&[99, 0, 0, 0, 0]), Err(PayloadError::Newer(_))));
    }
}
