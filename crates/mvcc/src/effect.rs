//! Effects: the changes of a command, in the format in which the log stores them.
//!
//! The log contains effects instead of commands. Therefore replay is deterministic: it
//! does not evaluate comparisons or resolve ranges. Commands that failed or only read
//! take no space in the log.
//!
//! # Format
//! Effects are concatenated. Each is a tag byte followed by its fields. Numbers are
//! LEB128 varints (negative numbers as their 64-bit two's complement). Byte strings are
//! preceded by their length. Future versions must read this format. An effect whose
//! fields change gets a new tag. A new tag, flag or kind increments
//! `files::framing::FORMAT`, because earlier versions cannot read it.
//!
//! | tag | effect | fields |
//! |---|---|---|
//! | 1 | put | mod revision, create revision, version, lease, key, value |
//! | 2 | delete | mod revision, key |
//! | 3 | lease granted | id, TTL in seconds |
//! | 4 | lease revoked | id |
//! | 5 | compacted | revision |
//! | 6 | base | as put; only in snapshots: a pair from before the snapshot's history |
//! | 7 | revision | the store's revision |
//! | 8 | visible-revision bound | revision |
//! | 9 | opened | flags (1: some keys are not logged, 2: some writes are buffered), boot ID |
//! | 10 | closed | the store's revision; 1 if the log contains all changes, otherwise 0 |
//! | 11 | span removed | first key, end (as `range_end`) |
//! | 12 | lease granted | id, TTL in seconds, store time in milliseconds |
//! | 13 | lease renewed | id, store time in milliseconds |
//! | 14 | all leases renewed | store time in milliseconds |
//! | 15 | clock | store time in milliseconds |
//! | 20 | alarm raised | kind, member ID |
//! | 21 | alarm cleared | kind, member ID |
//! | 22 | authentication enabled | auth revision |
//! | 23 | authentication disabled | auth revision |
//! | 24 | user put | auth revision, message `authpb.User` |
//! | 25 | user deleted | auth revision, name |
//! | 26 | role put | auth revision, message `authpb.Role` |
//! | 27 | role deleted | auth revision, name |
//!
//! This version does not write tag 3.

use auth::ChangeKind;
use etcdpb::Record;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{decode_varint, encode_varint};

use crate::alarm::{Alarm, AlarmKind};

/// One change of the state, or a fact about the log. Facts about the log are for
/// `pipeline::continuity`; replay ignores them.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A key was written, or deleted if the record is a tombstone.
    Write(Record),
    /// A lease was granted.
    LeaseGranted {
        /// The lease ID, never 0.
        id: i64,
        /// The granted TTL in seconds.
        ttl_seconds: i64,
        /// Store time of the grant or of the last renewal in milliseconds. `None` in logs
        /// of the first version.
        at_ms: Option<i64>,
    },
    /// The TTL of a lease was restarted.
    LeaseRenewed {
        /// The lease ID.
        id: i64,
        /// Store time of the renewal in milliseconds.
        at_ms: i64,
    },
    /// The TTL of every lease was restarted, because renewals may be missing from the
    /// log.
    AllLeasesRenewed {
        /// Store time of the renewal in milliseconds.
        at_ms: i64,
    },
    /// The store time: how long the store has been running in total.
    Clock {
        /// Store time in milliseconds.
        ms: i64,
    },
    /// A lease was revoked, possibly because it expired. The deletions of its keys are
    /// separate effects.
    LeaseRevoked {
        /// The lease ID.
        id: i64,
    },
    /// The history before `revision` is no longer readable.
    Compacted {
        /// The first revision that can still be read.
        revision: i64,
    },
    /// A pair from before the history that the snapshot contains; only in snapshots. Base
    /// effects are in key order and create no events.
    Base(Record),
    /// The store's revision, which may be greater than that of the last event.
    Revision(i64),
    /// All keys of a span were removed with their history, without events.
    SpanRemoved {
        /// The first key.
        key: Vec<u8>,
        /// The end, in etcd's convention for `range_end`.
        range_end: Vec<u8>,
    },
    /// The visible-revision bound: no revision above it is published until a higher bound
    /// is durable. A fact about the log.
    VisibleBound(i64),
    /// A process has opened the log. A fact about the log.
    Opened(LogDurability),
    /// The process has shut down cleanly. A fact about the log.
    Closed {
        /// The last published revision.
        revision: i64,
        /// Whether the log contains all changes.
        complete: bool,
    },
    /// An alarm was raised or cleared.
    Alarm {
        /// The alarm.
        alarm: Alarm,
        /// Whether the alarm is raised (true) or cleared (false).
        raised: bool,
    },
    /// Users, roles, or whether authentication is enabled, have changed.
    Auth(auth::Change),
}

/// The durability of the writes of a process. It determines which changes may be missing
/// from the log if the process did not shut down cleanly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogDurability {
    /// Whether there are keys whose writes are not logged.
    pub unlogged: bool,
    /// The boot ID of the machine if a key has buffered writes, which a crash of the
    /// machine can lose; empty if the boot ID is unknown. `None` if all logged writes are
    /// synced.
    pub buffered_boot_id: Option<Vec<u8>>,
}

/// The effects of one or more commands, in order.
pub type Effects = Vec<Effect>;

/// The error of bytes that cannot be decoded as an effect.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeEffectError {
    /// The tag is unknown.
    #[error("unknown effect tag {0}")]
    UnknownTag(u8),
    /// The bytes end within an effect, or a number is not a valid varint.
    #[error("effect is truncated or malformed")]
    Malformed,
    /// The version and the revisions of a write contradict each other.
    #[error("effect has inconsistent revisions")]
    Inconsistent,
    /// The alarm kind is unknown.
    #[error("unknown alarm kind {0}")]
    UnknownAlarm(i64),
    /// A user or role is malformed.
    #[error(transparent)]
    MalformedAuth(#[from] auth::MalformedChange),
    /// A flag of the effect "opened" is unknown.
    #[error("unknown flag in {0:#b} of the effect \"opened\"")]
    UnknownFlag(u8),
}

impl DecodeEffectError {
    /// Whether the bytes are an effect of a newer version, if their record is intact.
    pub fn is_newer(&self) -> bool {
        match self {
            DecodeEffectError::UnknownTag(_)
            | DecodeEffectError::UnknownAlarm(_)
            | DecodeEffectError::UnknownFlag(_) => true,
            DecodeEffectError::Malformed
            | DecodeEffectError::Inconsistent
            | DecodeEffectError::MalformedAuth(_) => false,
        }
    }
}

// The tags of the effects, as in the table above.
const PUT: u8 = 1;
const DELETE: u8 = 2;
const LEASE_GRANTED: u8 = 3;
const LEASE_REVOKED: u8 = 4;
const COMPACTED: u8 = 5;
const BASE: u8 = 6;
const REVISION: u8 = 7;
const VISIBLE_BOUND: u8 = 8;
const OPENED: u8 = 9;
const CLOSED: u8 = 10;
const SPAN_REMOVED: u8 = 11;
const LEASE_GRANTED_AT: u8 = 12;
const LEASE_RENEWED: u8 = 13;
const ALL_LEASES_RENEWED: u8 = 14;
const CLOCK: u8 = 15;
const ALARM_RAISED: u8 = 20;
const ALARM_CLEARED: u8 = 21;
const AUTH_ENABLED: u8 = 22;
const AUTH_DISABLED: u8 = 23;
const USER_PUT: u8 = 24;
const USER_DELETED: u8 = 25;
const ROLE_PUT: u8 = 26;
const ROLE_DELETED: u8 = 27;

/// Flags of the effect "opened".
const UNLOGGED: u8 = 1;
const BUFFERED: u8 = 2;

impl Effect {
    /// Appends the effect to `buf`.
    pub fn encode(&self, buf: &mut Vec<u8>) {
        match self {
            Effect::Write(record) if record.is_tombstone() => {
                buf.put_u8(DELETE);
                encode_number(record.mod_revision(), buf);
                encode_bytes(record.key(), buf);
            }
            Effect::Write(record) => encode_pair(PUT, record, buf),
            Effect::Base(record) => encode_pair(BASE, record, buf),
            Effect::Revision(revision) => encode_numbers(REVISION, &[*revision], buf),
            Effect::LeaseGranted { id, ttl_seconds, at_ms: None } => {
                encode_numbers(LEASE_GRANTED, &[*id, *ttl_seconds], buf)
            }
            Effect::LeaseGranted { id, ttl_seconds, at_ms: Some(at_ms) } => {
                encode_numbers(LEASE_GRANTED_AT, &[*id, *ttl_seconds, *at_ms], buf)
            }
            Effect::LeaseRevoked { id } => encode_numbers(LEASE_REVOKED, &[*id], buf),
            Effect::LeaseRenewed { id, at_ms } => {
                encode_numbers(LEASE_RENEWED, &[*id, *at_ms], buf)
            }
            Effect::AllLeasesRenewed { at_ms } => {
                encode_numbers(ALL_LEASES_RENEWED, &[*at_ms], buf)
            }
            Effect::Clock { ms } => encode_numbers(CLOCK, &[*ms], buf),
            Effect::Compacted { revision } => encode_numbers(COMPACTED, &[*revision], buf),
            Effect::SpanRemoved { key, range_end } => {
                buf.put_u8(SPAN_REMOVED);
                encode_bytes(key, buf);
                encode_bytes(range_end, buf);
            }
            Effect::VisibleBound(revision) => encode_numbers(VISIBLE_BOUND, &[*revision], buf),
            Effect::Opened(opened) => opened.encode(buf),
            Effect::Closed { revision, complete } => {
                encode_numbers(CLOSED, &[*revision, i64::from(*complete)], buf)
            }
            Effect::Alarm { alarm, raised } => {
                buf.put_u8(if *raised { ALARM_RAISED } else { ALARM_CLEARED });
                encode_number(alarm.kind as i64, buf);
                encode_number(alarm.member_id as i64, buf);
            }
            Effect::Auth(change) => encode_auth(change, buf),
        }
    }

    /// Decodes one effect from the start of `buf` and advances `buf` past it.
    ///
    /// # Errors
    /// Fails if `buf` does not start with an effect. The position of `buf` is then
    /// unspecified.
    pub fn decode(buf: &mut &[u8]) -> Result<Effect, DecodeEffectError> {
        if buf.is_empty() {
            return Err(DecodeEffectError::Malformed);
        }
        match buf.get_u8() {
            PUT => decode_pair(buf).map(Effect::Write),
            BASE => decode_pair(buf).map(Effect::Base),
            REVISION => decode_number(buf).map(Effect::Revision),
            DELETE => {
                let revision = decode_number(buf)?;
                let key = decode_bytes(buf)?;
                Ok(Effect::Write(Record::tombstone(key, revision)))
            }
            LEASE_GRANTED => {
                let (id, ttl_seconds) = (decode_number(buf)?, decode_number(buf)?);
                Ok(Effect::LeaseGranted { id, ttl_seconds, at_ms: None })
            }
            LEASE_GRANTED_AT => {
                let (id, ttl_seconds) = (decode_number(buf)?, decode_number(buf)?);
                Ok(Effect::LeaseGranted { id, ttl_seconds, at_ms: Some(decode_number(buf)?) })
            }
            LEASE_RENEWED => {
                Ok(Effect::LeaseRenewed { id: decode_number(buf)?, at_ms: decode_number(buf)? })
            }
            ALL_LEASES_RENEWED => Ok(Effect::AllLeasesRenewed { at_ms: decode_number(buf)? }),
            CLOCK => Ok(Effect::Clock { ms: decode_number(buf)? }),
            SPAN_REMOVED => {
                let (key, range_end) = (decode_bytes(buf)?.to_vec(), decode_bytes(buf)?.to_vec());
                Ok(Effect::SpanRemoved { key, range_end })
            }
            VISIBLE_BOUND => decode_number(buf).map(Effect::VisibleBound),
            OPENED => LogDurability::decode(buf).map(Effect::Opened),
            CLOSED => Ok(Effect::Closed {
                revision: decode_number(buf)?,
                complete: decode_number(buf)? != 0,
            }),
            LEASE_REVOKED => Ok(Effect::LeaseRevoked { id: decode_number(buf)? }),
            COMPACTED => Ok(Effect::Compacted { revision: decode_number(buf)? }),
            ALARM_RAISED => Ok(Effect::Alarm { alarm: decode_alarm(buf)?, raised: true }),
            ALARM_CLEARED => Ok(Effect::Alarm { alarm: decode_alarm(buf)?, raised: false }),
            tag @ AUTH_ENABLED..=ROLE_DELETED => decode_auth(tag, buf).map(Effect::Auth),
            tag => Err(DecodeEffectError::UnknownTag(tag)),
        }
    }
}

impl LogDurability {
    fn encode(&self, buf: &mut Vec<u8>) {
        let unlogged = if self.unlogged { UNLOGGED } else { 0 };
        let buffered = if self.buffered_boot_id.is_some() { BUFFERED } else { 0 };
        buf.put_slice(&[OPENED, unlogged | buffered]);
        encode_bytes(self.buffered_boot_id.as_deref().unwrap_or_default(), buf);
    }

    fn decode(buf: &mut &[u8]) -> Result<LogDurability, DecodeEffectError> {
        if buf.is_empty() {
            return Err(DecodeEffectError::Malformed);
        }
        let flags = buf.get_u8();
        if flags > UNLOGGED | BUFFERED {
            return Err(DecodeEffectError::UnknownFlag(flags));
        }
        let boot_id = decode_bytes(buf)?.to_vec();
        let buffered_boot_id = (flags & BUFFERED != 0).then_some(boot_id);
        Ok(LogDurability { unlogged: flags & UNLOGGED != 0, buffered_boot_id })
    }
}

fn encode_numbers(tag: u8, numbers: &[i64], buf: &mut Vec<u8>) {
    buf.put_u8(tag);
    numbers.iter().for_each(|number| encode_number(*number, buf));
}

fn encode_pair(tag: u8, record: &Record, buf: &mut Vec<u8>) {
    buf.put_u8(tag);
    encode_number(record.mod_revision(), buf);
    encode_number(record.create_revision(), buf);
    encode_number(record.version(), buf);
    encode_number(record.lease(), buf);
    encode_bytes(record.key(), buf);
    encode_bytes(record.value(), buf);
}

fn decode_pair(buf: &mut &[u8]) -> Result<Record, DecodeEffectError> {
    let mod_revision = decode_number(buf)?;
    let create_revision = decode_number(buf)?;
    let version = decode_number(buf)?;
    let lease = decode_number(buf)?;
    let key = decode_bytes(buf)?;
    let value = decode_bytes(buf)?;
    if version < 1 || create_revision < 1 || create_revision > mod_revision {
        return Err(DecodeEffectError::Inconsistent);
    }
    Ok(Record::put(key, value, create_revision, mod_revision, version, lease))
}

fn decode_alarm(buf: &mut &[u8]) -> Result<Alarm, DecodeEffectError> {
    let kind = decode_number(buf)?;
    let kind = AlarmKind::try_from(kind).map_err(|()| DecodeEffectError::UnknownAlarm(kind))?;
    Ok(Alarm { kind, member_id: decode_number(buf)? as u64 })
}

fn encode_auth(change: &auth::Change, buf: &mut Vec<u8>) {
    let tag = match &change.kind {
        ChangeKind::Enabled => AUTH_ENABLED,
        ChangeKind::Disabled => AUTH_DISABLED,
        ChangeKind::UserPut(_) => USER_PUT,
        ChangeKind::UserDeleted { .. } => USER_DELETED,
        ChangeKind::RolePut(_) => ROLE_PUT,
        ChangeKind::RoleDeleted { .. } => ROLE_DELETED,
    };
    buf.put_u8(tag);
    encode_number(change.revision as i64, buf);
    if tag >= USER_PUT {
        encode_bytes(&change.kind.encode_content(), buf);
    }
}

/// Decodes what follows a tag from [`AUTH_ENABLED`] to [`ROLE_DELETED`].
fn decode_auth(tag: u8, buf: &mut &[u8]) -> Result<auth::Change, DecodeEffectError> {
    let revision = decode_number(buf)? as u64;
    let kind = match tag {
        AUTH_ENABLED => ChangeKind::Enabled,
        AUTH_DISABLED => ChangeKind::Disabled,
        USER_PUT => ChangeKind::decode_user(decode_bytes(buf)?)?,
        USER_DELETED => ChangeKind::decode_deleted_user(decode_bytes(buf)?)?,
        ROLE_PUT => ChangeKind::decode_role(decode_bytes(buf)?)?,
        _ => ChangeKind::decode_deleted_role(decode_bytes(buf)?)?,
    };
    Ok(auth::Change { revision, kind })
}

fn encode_number(number: i64, buf: &mut Vec<u8>) {
    encode_varint(number as u64, buf);
}

fn encode_bytes(bytes: &[u8], buf: &mut Vec<u8>) {
    encode_varint(bytes.len() as u64, buf);
    buf.extend_from_slice(bytes);
}

fn decode_number(buf: &mut &[u8]) -> Result<i64, DecodeEffectError> {
    decode_varint(buf).map(|n| n as i64).map_err(|_| DecodeEffectError::Malformed)
}

fn decode_bytes<'a>(buf: &mut &'a [u8]) -> Result<&'a [u8], DecodeEffectError> {
    let len = decode_number(buf)? as u64;
    if len > buf.len() as u64 {
        return Err(DecodeEffectError::Malformed);
    }
    let (bytes, rest) = buf.split_at(len as usize);
    *buf = rest;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of each effect. They must never change, because existing logs contain
    /// them.
    #[test]
    fn format_is_fixed() {
        let put = Record::put(b"k", b"vv", 2, 300, 5, -1);
        let opened = LogDurability { unlogged: true, buffered_boot_id: Some(b"id".to_vec()) };
        let synced = LogDurability::default();
        let alarm = Alarm { kind: AlarmKind::Corrupt, member_id: 300 };
        let auth = |kind| Effect::Auth(auth::Change { revision: 300, kind });
        let user = etcdpb::authpb::User {
            name: "u".into(),
            password: "h".into(),
            roles: vec!["r".into()],
            options: Some(etcdpb::authpb::UserAddOptions { no_password: true }),
        };
        let permission =
            etcdpb::authpb::Permission { perm_type: 2, key: "k".into(), range_end: "l".into() };
        let role = etcdpb::authpb::Role { name: "r".into(), key_permission: vec![permission] };
        let cases: [(Effect, &[u8]); 24] = [
            (
                Effect::Write(put.clone()),
                b"\x01\xac\x02\x02\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01k\x02vv",
            ),
            (
                Effect::Base(put),
                b"\x06\xac\x02\x02\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01k\x02vv",
            ),
            (Effect::Revision(301), b"\x07\xad\x02"),
            (Effect::Write(Record::tombstone(b"k", 301)), b"\x02\xad\x02\x01k"),
            (Effect::LeaseGranted { id: 7, ttl_seconds: 60, at_ms: None }, b"\x03\x07\x3c"),
            (
                Effect::LeaseGranted { id: 7, ttl_seconds: 60, at_ms: Some(300) },
                b"\x0c\x07\x3c\xac\x02",
            ),
            (Effect::LeaseRenewed { id: 7, at_ms: 301 }, b"\x0d\x07\xad\x02"),
            (Effect::AllLeasesRenewed { at_ms: 301 }, b"\x0e\xad\x02"),
            (Effect::Clock { ms: 301 }, b"\x0f\xad\x02"),
            (Effect::VisibleBound(301), b"\x08\xad\x02"),
            (Effect::Opened(opened), b"\x09\x03\x02id"),
            (Effect::Opened(synced), b"\x09\0\0"),
            (Effect::Closed { revision: 300, complete: true }, b"\x0a\xac\x02\x01"),
            (
                Effect::SpanRemoved { key: b"k".to_vec(), range_end: b"l".to_vec() },
                b"\x0b\x01k\x01l",
            ),
            (Effect::LeaseRevoked { id: 7 }, b"\x04\x07"),
            (Effect::Compacted { revision: 300 }, b"\x05\xac\x02"),
            (Effect::Alarm { alarm, raised: true }, b"\x14\x02\xac\x02"),
            (Effect::Alarm { alarm, raised: false }, b"\x15\x02\xac\x02"),
            (auth(ChangeKind::Enabled), b"\x16\xac\x02"),
            (auth(ChangeKind::Disabled), b"\x17\xac\x02"),
            (
                auth(ChangeKind::UserPut(user)),
                b"\x18\xac\x02\x0d\x0a\x01u\x12\x01h\x1a\x01r\x22\x02\x08\x01",
            ),
            (auth(ChangeKind::UserDeleted { name: "u".into() }), b"\x19\xac\x02\x01u"),
            (
                auth(ChangeKind::RolePut(role)),
                b"\x1a\xac\x02\x0d\x0a\x01r\x12\x08\x08\x02\x12\x01k\x1a\x01l",
            ),
            (auth(ChangeKind::RoleDeleted { name: "r".into() }), b"\x1b\xac\x02\x01r"),
        ];
        for (effect, expected) in cases {
            let mut encoded = Vec::new();
            effect.encode(&mut encoded);
            assert_eq!(encoded, expected, "the bytes of {effect:?} have changed");
            let mut rest = &encoded[..];
            let decoded = Effect::decode(&mut rest).unwrap();
            assert!(rest.is_empty());
            assert_eq!(format!("{decoded:?}"), format!("{effect:?}"));
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let mut encoded = Vec::new();
        Effect::Write(Record::put(b"key", b"value", 1, 2, 2, 3)).encode(&mut encoded);
        for len in 0..encoded.len() {
            assert!(Effect::decode(&mut &encoded[..len]).is_err(), "the first {len} bytes");
        }
    }
}
