//! The format of what members say to each other beside the protocol: commands that a follower
//! forwards to the leader, and their responses.
//!
//! Numbers are little-endian and have 8 bytes; byte strings are preceded by their length. The tags
//! never change: members of different versions use them.

use auth::Caller;
use bytes::{Buf, BufMut, Bytes};
use consensus::id::Index;
use consensus::membership::MemberInfo;
use etcdpb::authpb;
use etcdpb::rpc::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, TxnRequest, TxnResponse,
};
use mvcc::{Alarm, AlarmKind, Command, Reply};
use prost::Message;

use super::handle::{MemberCommand, MemberError, MembersChanged};
use super::wire_error::{decode_error, encode_error};
use super::wire_format::{WireError, get_bytes, get_string, put_bytes};
use super::wire_members::{
    get_member_command, get_members_changed, put_member_command, put_members_changed,
};
use crate::Error;
use crate::history_hash::HistoryHash;

/// Something that a member says to another one.
#[derive(Debug)]
pub(super) enum Forwarded {
    /// A command for the leader.
    Command {
        /// Identifies the command among those of its sender.
        number: u64,
        caller: Caller,
        /// The encoded size of the client's request.
        bytes: u64,
        command: Command,
    },
    /// The response to a command.
    Response {
        number: u64,
        /// The entry after which the sender of the command may pass the response on.
        index: Index,
        result: Result<Reply, Error>,
    },
    /// A command that changes the members, for the leader.
    MemberCommand {
        /// Identifies the command among those of its sender.
        number: u64,
        command: MemberCommand,
    },
    /// The answer to it.
    MembersChanged {
        number: u64,
        /// The entry after which the sender of the command may pass the answer on.
        index: Index,
        result: Result<MembersChanged, MemberError>,
    },
    /// Asks for the hash of the history up to a revision.
    HashRequest {
        /// Identifies the request among those of its sender.
        number: u64,
        revision: i64,
    },
    /// The answer to it.
    Hash { number: u64, result: Result<HistoryHash, Error> },
    /// Describes the sender: the leader makes its URLs those of the membership.
    Member(MemberInfo),
}

const COMMAND: u8 = 1;
const RESPONSE: u8 = 2;
const MEMBER: u8 = 3;
const MEMBER_COMMAND: u8 = 4;
const MEMBERS_CHANGED: u8 = 5;
const HASH_REQUEST: u8 = 6;
const HASH: u8 = 7;

impl Forwarded {
    /// Decodes a message. For a command that cannot be decoded, the error comes with its number.
    pub(super) fn decode(mut bytes: Bytes) -> Result<Forwarded, (Option<u64>, WireError)> {
        let kind = bytes.try_get_u8().map_err(|error| (None, error.into()))?;
        if kind == MEMBER {
            let info = MemberInfo::decode(bytes).map_err(|error| (None, error.into()))?;
            return Ok(Forwarded::Member(info));
        }
        let number = bytes.try_get_u64_le().map_err(|error| (None, error.into()))?;
        match kind {
            COMMAND => decode_command_of(number, bytes).map_err(|error| (Some(number), error)),
            RESPONSE => decode_response(number, bytes).map_err(|error| (None, error)),
            MEMBER_COMMAND => get_member_command(bytes)
                .map(|command| Forwarded::MemberCommand { number, command })
                .map_err(|error| (None, error)),
            MEMBERS_CHANGED => decode_members_changed(number, bytes).map_err(|error| (None, error)),
            HASH_REQUEST => decode_hash_request(number, bytes).map_err(|error| (None, error)),
            HASH => decode_hash(number, bytes).map_err(|error| (None, error)),
            other => Err((None, WireError::Unknown("message", other))),
        }
    }
}

/// Appends a command. `bytes` is the encoded size of the client's request.
pub(super) fn write_command(
    number: u64,
    caller: &Caller,
    bytes: usize,
    command: &Command,
    buf: &mut Vec<u8>,
) {
    buf.push(COMMAND);
    buf.put_u64_le(number);
    put_caller(caller, buf);
    buf.put_u64_le(bytes as u64);
    put_command(command, buf);
}

/// Appends a response.
pub(super) fn write_response(
    number: u64,
    index: Index,
    result: &Result<Reply, Error>,
    buf: &mut Vec<u8>,
) {
    buf.push(RESPONSE);
    buf.put_u64_le(number);
    buf.put_u64_le(index);
    match result {
        Ok(reply) => put_reply(reply, buf),
        Err(error) => {
            buf.put_u8(FAILED);
            encode_error(error, buf);
        }
    }
}

/// Encodes the description of a member.
pub(super) fn encode_member(info: &MemberInfo) -> Bytes {
    let mut buf = vec![MEMBER];
    info.encode(&mut buf);
    buf.into()
}

/// Encodes a command that changes the members.
pub(super) fn encode_member_command(number: u64, command: &MemberCommand) -> Bytes {
    let mut buf = vec![MEMBER_COMMAND];
    buf.put_u64_le(number);
    put_member_command(command, &mut buf);
    buf.into()
}

/// Encodes the answer to a command that changes the members.
pub(super) fn encode_members_changed(
    number: u64,
    index: Index,
    result: &Result<MembersChanged, MemberError>,
) -> Bytes {
    let mut buf = vec![MEMBERS_CHANGED];
    buf.put_u64_le(number);
    buf.put_u64_le(index);
    put_members_changed(result, &mut buf);
    buf.into()
}

/// Encodes the request for a hash.
pub(super) fn encode_hash_request(number: u64, revision: i64) -> Bytes {
    let mut buf = vec![HASH_REQUEST];
    buf.put_u64_le(number);
    buf.put_i64_le(revision);
    buf.into()
}

/// Encodes the answer to the request for a hash.
pub(super) fn encode_hash(number: u64, result: &Result<HistoryHash, Error>) -> Bytes {
    let mut buf = vec![HASH];
    buf.put_u64_le(number);
    match result {
        Ok(HistoryHash { hash, compact_revision, revision, current }) => {
            buf.put_u8(HASHED);
            buf.put_u32_le(*hash);
            [compact_revision, revision, current]
                .iter()
                .for_each(|number| buf.put_i64_le(**number));
        }
        Err(error) => {
            buf.put_u8(NOT_HASHED);
            encode_error(error, &mut buf);
        }
    }
    buf.into()
}

// The kinds of answers to the request for a hash.
const HASHED: u8 = 0;
const NOT_HASHED: u8 = 1;

fn decode_hash_request(number: u64, mut bytes: Bytes) -> Result<Forwarded, WireError> {
    let revision = bytes.try_get_i64_le()?;
    Ok(Forwarded::HashRequest { number, revision })
}

fn decode_hash(number: u64, mut bytes: Bytes) -> Result<Forwarded, WireError> {
    let result = match bytes.try_get_u8()? {
        HASHED => Ok(HistoryHash {
            hash: bytes.try_get_u32_le()?,
            compact_revision: bytes.try_get_i64_le()?,
            revision: bytes.try_get_i64_le()?,
            current: bytes.try_get_i64_le()?,
        }),
        NOT_HASHED => Err(decode_error(bytes)?),
        other => return Err(WireError::Unknown("answer to the request for a hash", other)),
    };
    Ok(Forwarded::Hash { number, result })
}

fn decode_members_changed(number: u64, mut bytes: Bytes) -> Result<Forwarded, WireError> {
    let index = bytes.try_get_u64_le()?;
    let result = get_members_changed(bytes)?;
    Ok(Forwarded::MembersChanged { number, index, result })
}

fn decode_command_of(number: u64, mut bytes: Bytes) -> Result<Forwarded, WireError> {
    let caller = get_caller(&mut bytes)?;
    let size = bytes.try_get_u64_le()?;
    let command = get_command(bytes)?;
    Ok(Forwarded::Command { number, caller, bytes: size, command })
}

fn decode_response(number: u64, mut bytes: Bytes) -> Result<Forwarded, WireError> {
    let index = bytes.try_get_u64_le()?;
    let result = get_reply(bytes)?;
    Ok(Forwarded::Response { number, index, result })
}

// Callers.

const STORE: u8 = 0;
const ANONYMOUS: u8 = 1;
const USER: u8 = 2;

fn put_caller(caller: &Caller, buf: &mut Vec<u8>) {
    match caller {
        Caller::Store => buf.put_u8(STORE),
        Caller::Anonymous => buf.put_u8(ANONYMOUS),
        Caller::User { name, revision } => {
            buf.put_u8(USER);
            put_bytes(name.as_bytes(), buf);
            buf.put_u64_le(*revision);
        }
    }
}

fn get_caller(bytes: &mut Bytes) -> Result<Caller, WireError> {
    match bytes.try_get_u8()? {
        STORE => Ok(Caller::Store),
        ANONYMOUS => Ok(Caller::Anonymous),
        USER => {
            Ok(Caller::User { name: get_string(bytes)?.into(), revision: bytes.try_get_u64_le()? })
        }
        other => Err(WireError::Unknown("caller", other)),
    }
}

// Commands.

const PUT: u8 = 1;
const DELETE_RANGE: u8 = 2;
const TXN: u8 = 3;
const COMPACT: u8 = 4;
const LEASE_GRANT: u8 = 5;
const LEASE_RENEW: u8 = 6;
const LEASE_REVOKE: u8 = 7;
const ALARM: u8 = 8;
const AUTH: u8 = 9;

fn put_command(command: &Command, buf: &mut Vec<u8>) {
    match command {
        Command::Put(request) => put_message(PUT, request, buf),
        Command::DeleteRange(request) => put_message(DELETE_RANGE, request, buf),
        Command::Txn(request) => put_message(TXN, request, buf),
        Command::Compact { revision } => put_numbers(COMPACT, &[*revision], buf),
        Command::LeaseGrant { id, ttl_seconds } => {
            put_numbers(LEASE_GRANT, &[*id, *ttl_seconds], buf);
        }
        Command::LeaseRenew { id } => put_numbers(LEASE_RENEW, &[*id], buf),
        Command::LeaseRevoke { id } => put_numbers(LEASE_REVOKE, &[*id], buf),
        Command::Alarm { alarm, raised } => {
            let numbers = [alarm.kind as i64, alarm.member_id as i64, i64::from(*raised)];
            put_numbers(ALARM, &numbers, buf);
        }
        Command::Auth(command) => {
            buf.put_u8(AUTH);
            put_auth(command, buf);
        }
    }
}

fn get_command(mut bytes: Bytes) -> Result<Command, WireError> {
    Ok(match bytes.try_get_u8()? {
        PUT => Command::Put(PutRequest::decode(bytes)?),
        DELETE_RANGE => Command::DeleteRange(DeleteRangeRequest::decode(bytes)?),
        TXN => Command::Txn(TxnRequest::decode(bytes)?),
        COMPACT => Command::Compact { revision: bytes.try_get_i64_le()? },
        LEASE_GRANT => Command::LeaseGrant {
            id: bytes.try_get_i64_le()?,
            ttl_seconds: bytes.try_get_i64_le()?,
        },
        LEASE_RENEW => Command::LeaseRenew { id: bytes.try_get_i64_le()? },
        LEASE_REVOKE => Command::LeaseRevoke { id: bytes.try_get_i64_le()? },
        ALARM => {
            let kind = bytes.try_get_i64_le()?;
            let kind =
                AlarmKind::try_from(kind).map_err(|()| WireError::Unknown("alarm", kind as u8))?;
            let member_id = bytes.try_get_u64_le()?;
            let raised = bytes.try_get_i64_le()? != 0;
            Command::Alarm { alarm: Alarm { kind, member_id }, raised }
        }
        AUTH => Command::Auth(get_auth(bytes)?),
        other => return Err(WireError::Unknown("command", other)),
    })
}

const ENABLE: u8 = 1;
const DISABLE: u8 = 2;
const USER_ADD: u8 = 3;
const USER_DELETE: u8 = 4;
const USER_CHANGE_PASSWORD: u8 = 5;
const USER_GRANT_ROLE: u8 = 6;
const USER_REVOKE_ROLE: u8 = 7;
const ROLE_ADD: u8 = 8;
const ROLE_DELETE: u8 = 9;
const ROLE_GRANT_PERMISSION: u8 = 10;
const ROLE_REVOKE_PERMISSION: u8 = 11;

fn put_auth(command: &auth::Command, buf: &mut Vec<u8>) {
    use auth::Command::*;
    match command {
        Enable => buf.put_u8(ENABLE),
        Disable => buf.put_u8(DISABLE),
        UserAdd { name, password_hash, no_password } => {
            put_strings(USER_ADD, &[name.as_bytes(), password_hash], buf);
            buf.put_u8((*no_password).into());
        }
        UserDelete { name } => put_strings(USER_DELETE, &[name.as_bytes()], buf),
        UserChangePassword { name, password_hash } => {
            put_strings(USER_CHANGE_PASSWORD, &[name.as_bytes(), password_hash], buf);
        }
        UserGrantRole { user, role } => {
            put_strings(USER_GRANT_ROLE, &[user.as_bytes(), role.as_bytes()], buf);
        }
        UserRevokeRole { user, role } => {
            put_strings(USER_REVOKE_ROLE, &[user.as_bytes(), role.as_bytes()], buf);
        }
        RoleAdd { name } => put_strings(ROLE_ADD, &[name.as_bytes()], buf),
        RoleDelete { name } => put_strings(ROLE_DELETE, &[name.as_bytes()], buf),
        RoleGrantPermission { role, permission } => {
            put_strings(ROLE_GRANT_PERMISSION, &[role.as_bytes()], buf);
            buf.put_u8(permission.is_some().into());
            permission.iter().for_each(|permission| buf.extend(permission.encode_to_vec()));
        }
        RoleRevokePermission { role, key, range_end } => {
            put_strings(ROLE_REVOKE_PERMISSION, &[role.as_bytes(), key, range_end], buf);
        }
    }
}

fn get_auth(mut bytes: Bytes) -> Result<auth::Command, WireError> {
    use auth::Command::*;
    let kind = bytes.try_get_u8()?;
    let bytes = &mut bytes;
    Ok(match kind {
        ENABLE => Enable,
        DISABLE => Disable,
        USER_ADD => UserAdd {
            name: get_string(bytes)?,
            password_hash: get_bytes(bytes)?.into(),
            no_password: bytes.try_get_u8()? != 0,
        },
        USER_DELETE => UserDelete { name: get_string(bytes)? },
        USER_CHANGE_PASSWORD => {
            UserChangePassword { name: get_string(bytes)?, password_hash: get_bytes(bytes)?.into() }
        }
        USER_GRANT_ROLE => UserGrantRole { user: get_string(bytes)?, role: get_string(bytes)? },
        USER_REVOKE_ROLE => UserRevokeRole { user: get_string(bytes)?, role: get_string(bytes)? },
        ROLE_ADD => RoleAdd { name: get_string(bytes)? },
        ROLE_DELETE => RoleDelete { name: get_string(bytes)? },
        ROLE_GRANT_PERMISSION => {
            let role = get_string(bytes)?;
            let permission = match bytes.try_get_u8()? {
                0 => None,
                _ => Some(authpb::Permission::decode(bytes)?),
            };
            RoleGrantPermission { role, permission }
        }
        ROLE_REVOKE_PERMISSION => RoleRevokePermission {
            role: get_string(bytes)?,
            key: get_bytes(bytes)?.into(),
            range_end: get_bytes(bytes)?.into(),
        },
        other => return Err(WireError::Unknown("command for users and roles", other)),
    })
}

// Replies.

const FAILED: u8 = 0;
const PUT_REPLY: u8 = 1;
const DELETE_RANGE_REPLY: u8 = 2;
const TXN_REPLY: u8 = 3;
const DONE: u8 = 4;
const ALARM_REPLY: u8 = 5;

fn put_reply(reply: &Reply, buf: &mut Vec<u8>) {
    match reply {
        Reply::Put(response) => put_message(PUT_REPLY, response, buf),
        Reply::DeleteRange(response) => put_message(DELETE_RANGE_REPLY, response, buf),
        Reply::Txn(response) => put_message(TXN_REPLY, response, buf),
        Reply::OpenTxn(_) => unreachable!("its ranges are read before it is forwarded"),
        Reply::Done { revision } => put_numbers(DONE, &[*revision], buf),
        Reply::Alarm { changed, revision } => {
            put_numbers(ALARM_REPLY, &[i64::from(*changed), *revision], buf);
        }
    }
}

fn get_reply(mut bytes: Bytes) -> Result<Result<Reply, Error>, WireError> {
    Ok(Ok(match bytes.try_get_u8()? {
        FAILED => return decode_error(bytes).map(Err),
        PUT_REPLY => Reply::Put(PutResponse::decode(bytes)?),
        DELETE_RANGE_REPLY => Reply::DeleteRange(DeleteRangeResponse::decode(bytes)?),
        TXN_REPLY => Reply::Txn(TxnResponse::decode(bytes)?),
        DONE => Reply::Done { revision: bytes.try_get_i64_le()? },
        ALARM_REPLY => Reply::Alarm {
            changed: bytes.try_get_i64_le()? != 0,
            revision: bytes.try_get_i64_le()?,
        },
        other => return Err(WireError::Unknown("reply", other)),
    }))
}

// Primitives.

fn put_message(tag: u8, message: &impl Message, buf: &mut Vec<u8>) {
    buf.put_u8(tag);
    message.encode(buf).expect("a vector has room");
}

fn put_numbers(tag: u8, numbers: &[i64], buf: &mut Vec<u8>) {
    buf.put_u8(tag);
    numbers.iter().for_each(|number| buf.put_i64_le(*number));
}

fn put_strings(tag: u8, strings: &[&[u8]], buf: &mut Vec<u8>) {
    buf.put_u8(tag);
    strings.iter().for_each(|bytes| put_bytes(bytes, buf));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> Vec<Command> {
        let name = || "name".to_owned();
        let (key, range_end) = (b"k".to_vec(), b"l".to_vec());
        let permission = authpb::Permission { perm_type: 2, ..Default::default() };
        let put = PutRequest { key: key.clone().into(), lease: 7, ..Default::default() };
        let alarm = Alarm { kind: AlarmKind::Corrupt, member_id: u64::MAX };
        let auth = [
            auth::Command::Enable,
            auth::Command::Disable,
            auth::Command::UserAdd { name: name(), password_hash: vec![1], no_password: true },
            auth::Command::UserDelete { name: name() },
            auth::Command::UserChangePassword { name: name(), password_hash: vec![] },
            auth::Command::UserGrantRole { user: name(), role: "r".into() },
            auth::Command::UserRevokeRole { user: name(), role: "r".into() },
            auth::Command::RoleAdd { name: name() },
            auth::Command::RoleDelete { name: name() },
            auth::Command::RoleGrantPermission { role: name(), permission: Some(permission) },
            auth::Command::RoleGrantPermission { role: name(), permission: None },
            auth::Command::RoleRevokePermission { role: name(), key, range_end },
        ];
        let others = [
            Command::Put(put),
            Command::DeleteRange(DeleteRangeRequest::default()),
            Command::Txn(TxnRequest::default()),
            Command::Compact { revision: 9 },
            Command::LeaseGrant { id: -1, ttl_seconds: 5 },
            Command::LeaseRenew { id: 3 },
            Command::LeaseRevoke { id: i64::MIN },
            Command::Alarm { alarm, raised: true },
        ];
        others.into_iter().chain(auth.map(Command::Auth)).collect()
    }

    #[test]
    fn commands_are_read_as_written() {
        let callers =
            [Caller::Store, Caller::Anonymous, Caller::User { name: "user".into(), revision: 3 }];
        for (command, caller) in commands().into_iter().zip(callers.iter().cycle()) {
            let mut buf = Vec::new();
            write_command(5, caller, 100, &command, &mut buf);
            let bytes = Bytes::from(buf);
            let decoded = Forwarded::decode(bytes.clone()).unwrap();
            let expected =
                Forwarded::Command { number: 5, caller: caller.clone(), bytes: 100, command };
            assert_eq!(format!("{decoded:?}"), format!("{expected:?}"));
            for cut in 0..bytes.len() {
                // Protobuf messages may be shorter; nothing panics.
                let _ = Forwarded::decode(bytes.slice(..cut));
            }
        }
        let (number, _) =
            Forwarded::decode(vec![COMMAND, 5, 0, 0, 0, 0, 0, 0, 0, 77].into()).err().unwrap();
        assert_eq!(number, Some(5));
    }

    #[test]
    fn hashes_are_read_as_written() {
        let decoded = Forwarded::decode(encode_hash_request(7, 12)).unwrap();
        assert!(matches!(decoded, Forwarded::HashRequest { number: 7, revision: 12 }));
        let hash = HistoryHash { hash: 9, compact_revision: -1, revision: 12, current: 15 };
        for result in [Ok(hash), Err(mvcc::Error::Compacted.into())] {
            let bytes = encode_hash(7, &result);
            for cut in 0..bytes.len() {
                assert!(Forwarded::decode(bytes.slice(..cut)).is_err());
            }
            let decoded = Forwarded::decode(bytes).unwrap();
            let expected = Forwarded::Hash { number: 7, result };
            assert_eq!(format!("{decoded:?}"), format!("{expected:?}"));
        }
    }

    #[test]
    fn responses_are_read_as_written() {
        let results = [
            Ok(Reply::Put(PutResponse::default())),
            Ok(Reply::DeleteRange(DeleteRangeResponse { deleted: 3, ..Default::default() })),
            Ok(Reply::Txn(TxnResponse { succeeded: true, ..Default::default() })),
            Ok(Reply::Done { revision: 12 }),
            Ok(Reply::Alarm { changed: true, revision: 4 }),
            Err(mvcc::Error::LeaseNotFound.into()),
            Err(Error::NoLeader),
        ];
        for result in results {
            let mut buf = Vec::new();
            write_response(6, 9, &result, &mut buf);
            let decoded = Forwarded::decode(buf.into()).unwrap();
            let expected = Forwarded::Response { number: 6, index: 9, result };
            assert_eq!(format!("{decoded:?}"), format!("{expected:?}"));
        }
    }
}
