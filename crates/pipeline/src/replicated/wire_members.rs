//! The format of commands that change the members, and of their answers.

use bytes::{Buf, BufMut, Bytes};
use consensus::id::MemberId;

use super::handle::{ClusterMember, MemberCommand, MemberError, MembersChanged};
use super::wire_error::{decode_error, encode_error};
use super::wire_format::{WireError, get_string, get_strings, put_bytes, put_strings};

// The kinds of commands. They never change.
const ADD: u8 = 1;
const ADD_LEARNER: u8 = 2;
const REMOVE: u8 = 3;
const UPDATE: u8 = 4;
const PROMOTE: u8 = 5;

/// Appends a command.
pub(super) fn put_member_command(command: &MemberCommand, buf: &mut Vec<u8>) {
    match command {
        MemberCommand::Add { peer_urls, is_learner } => {
            buf.put_u8(if *is_learner { ADD_LEARNER } else { ADD });
            put_strings(peer_urls, buf);
        }
        MemberCommand::Remove(id) => put_id(REMOVE, *id, buf),
        MemberCommand::Update { id, peer_urls } => {
            put_id(UPDATE, *id, buf);
            put_strings(peer_urls, buf);
        }
        MemberCommand::Promote(id) => put_id(PROMOTE, *id, buf),
    }
}

/// Decodes a command.
pub(super) fn get_member_command(mut bytes: Bytes) -> Result<MemberCommand, WireError> {
    let kind = bytes.try_get_u8()?;
    let bytes = &mut bytes;
    let command = match kind {
        ADD | ADD_LEARNER => {
            MemberCommand::Add { peer_urls: get_strings(bytes)?, is_learner: kind == ADD_LEARNER }
        }
        REMOVE => MemberCommand::Remove(get_id(bytes)?),
        UPDATE => MemberCommand::Update { id: get_id(bytes)?, peer_urls: get_strings(bytes)? },
        PROMOTE => MemberCommand::Promote(get_id(bytes)?),
        other => return Err(WireError::Unknown("command for members", other)),
    };
    finish(bytes)?;
    Ok(command)
}

// The kinds of answers. They never change.
const CHANGED: u8 = 0;
const FAILED: u8 = 1;
const REFUSED: u8 = 2;

/// The errors without content, in the order of their numbers. New ones are appended.
const ERRORS: [MemberError; 9] = [
    MemberError::NotFound,
    MemberError::Exists,
    MemberError::PeerUrlExists,
    MemberError::NotLearner,
    MemberError::LearnerNotReady,
    MemberError::TooManyLearners,
    MemberError::NotEnoughStarted,
    MemberError::Unhealthy,
    MemberError::NoPeers,
];

/// Appends the answer to a command.
pub(super) fn put_members_changed(result: &Result<MembersChanged, MemberError>, buf: &mut Vec<u8>) {
    match result {
        Ok(MembersChanged { added, members }) => {
            buf.put_u8(CHANGED);
            buf.put_u64_le(added.unwrap_or(0));
            buf.put_u64_le(members.len() as u64);
            members.iter().for_each(|member| put_member(member, buf));
        }
        Err(MemberError::Failed(error)) => {
            buf.put_u8(FAILED);
            encode_error(error, buf);
        }
        Err(refusal) => {
            let kind = std::mem::discriminant(refusal);
            let number = ERRORS.iter().position(|error| std::mem::discriminant(error) == kind);
            buf.put_slice(&[REFUSED, number.expect("the list has all errors") as u8]);
        }
    }
}

/// Decodes the answer to a command.
pub(super) fn get_members_changed(
    mut bytes: Bytes,
) -> Result<Result<MembersChanged, MemberError>, WireError> {
    match bytes.try_get_u8()? {
        CHANGED => {
            let added = Some(bytes.try_get_u64_le()?).filter(|id| *id != 0);
            let count = bytes.try_get_u64_le()?;
            // A forged number ends with the buffer.
            let members = (0..count).map(|_| get_member(&mut bytes)).collect::<Result<_, _>>()?;
            finish(&bytes)?;
            Ok(Ok(MembersChanged { added, members }))
        }
        FAILED => Ok(Err(decode_error(bytes)?.into())),
        REFUSED => {
            let number = bytes.try_get_u8()?;
            let error = ERRORS.get(usize::from(number)).cloned();
            error.map(Err).ok_or(WireError::Unknown("refusal of a change of the members", number))
        }
        other => Err(WireError::Unknown("answer to a change of the members", other)),
    }
}

fn put_member(member: &ClusterMember, buf: &mut Vec<u8>) {
    buf.put_u64_le(member.id);
    put_bytes(member.name.as_bytes(), buf);
    put_strings(&member.peer_urls, buf);
    put_strings(&member.client_urls, buf);
    buf.put_u8(member.is_learner.into());
}

fn get_member(bytes: &mut Bytes) -> Result<ClusterMember, WireError> {
    Ok(ClusterMember {
        id: bytes.try_get_u64_le()?,
        name: get_string(bytes)?,
        peer_urls: get_strings(bytes)?,
        client_urls: get_strings(bytes)?,
        is_learner: bytes.try_get_u8()? != 0,
    })
}

fn put_id(kind: u8, id: MemberId, buf: &mut Vec<u8>) {
    buf.put_u8(kind);
    buf.put_u64_le(id.get());
}

fn get_id(bytes: &mut Bytes) -> Result<MemberId, WireError> {
    MemberId::new(bytes.try_get_u64_le()?).ok_or(WireError::Unknown("member", 0))
}

fn finish(bytes: &Bytes) -> Result<(), WireError> {
    match bytes.len() {
        0 => Ok(()),
        rest => Err(WireError::Trailing(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn commands_are_read_as_written_and_nothing_else_is() {
        let id = MemberId::new(u64::MAX).unwrap();
        let peer_urls = vec!["https://a:2380".to_owned(), "https://b:2380".to_owned()];
        for command in [
            MemberCommand::Add { peer_urls: peer_urls.clone(), is_learner: true },
            MemberCommand::Add { peer_urls: vec![], is_learner: false },
            MemberCommand::Remove(id),
            MemberCommand::Update { id, peer_urls },
            MemberCommand::Promote(id),
        ] {
            let mut buf = Vec::new();
            put_member_command(&command, &mut buf);
            let bytes = Bytes::from(buf);
            assert_eq!(get_member_command(bytes.clone()).unwrap(), command);
            for cut in 0..bytes.len() {
                assert!(get_member_command(bytes.slice(..cut)).is_err());
            }
            assert!(get_member_command([&bytes[..], &[0]].concat().into()).is_err());
        }
    }

    #[test]
    fn answers_are_read_as_written() {
        let member = ClusterMember {
            id: 7,
            name: "a".into(),
            peer_urls: vec!["http://a".into()],
            client_urls: vec![],
            is_learner: true,
        };
        let members = vec![member.clone(), member];
        let errors = ERRORS.into_iter().chain([Error::TimedOut.into()]).map(Err);
        let results = [Ok(MembersChanged { added: Some(7), members })].into_iter().chain(errors);
        for result in results {
            let mut buf = Vec::new();
            put_members_changed(&result, &mut buf);
            let decoded = get_members_changed(buf.into()).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{result:?}"));
        }
    }
}
