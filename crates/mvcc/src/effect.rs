//! Effects: the changes of a command, in the format in which the log stores them.
//!
//! The log contains effects instead of commands. Replay therefore evaluates
//! nothing and is deterministic, and commands that failed or only read take no
//! space in the log.
//!
//! # Format
//! Effects are concatenated. Each is a tag byte followed by its fields. Numbers
//! are LEB128 varints (negative numbers as their 64-bit two's complement). Byte
//! strings are preceded by their length. Future versions must read this format;
//! a changed effect gets a new tag.
//!
//! | tag | effect | fields |
//! |---|---|---|
//! | 1 | put | mod revision, create revision, version, lease, key, value |
//! | 2 | delete | mod revision, key |
//! | 3 | lease granted | id, TTL in seconds |
//! | 4 | lease revoked | id |
//! | 5 | compacted | revision |
//! | 6 | base | as put: a pair from before the history of a snapshot |
//! | 7 | revision | the store's revision |
//! | 8 | visible-revision bound | revision |
//! | 9 | opened | flags (1: some keys are not logged, 2: the log is not synced), boot ID |
//! | 10 | closed | the store's revision, 1 if the log contains the whole state, else 0 |
//! | 11 | span removed | first key, end in the convention of `range_end` |
//! | 12 | lease granted | id, TTL in seconds, store time in milliseconds |
//! | 13 | lease renewed | id, store time in milliseconds |
//! | 14 | all leases renewed | store time in milliseconds |
//! | 15 | clock | store time in milliseconds |
//! | 20 | alarm raised | kind, member ID |
//! | 21 | alarm cleared | kind, member ID |
//!
//! Tag 3 is no longer written.

use etcdpb::{Key, Record};
use prost::bytes::{Buf, BufMut};
use prost::encoding::{decode_varint, encode_varint};

use crate::alarm::{Alarm, AlarmKind};

/// One change of the state, or a fact about the log.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A key was written or, with a tombstone, deleted.
    Write(Record),
    /// A lease was granted.
    LeaseGranted {
        /// The lease ID, never 0.
        id: i64,
        /// The granted TTL in seconds.
        ttl_seconds: i64,
        /// Store time of the grant or the last renewal, in milliseconds. `None` in
        /// logs of the first version.
        at_ms: Option<i64>,
    },
    /// The TTL of a lease was restarted.
    LeaseRenewed {
        /// The lease ID.
        id: i64,
        /// Store time in milliseconds.
        at_ms: i64,
    },
    /// The TTL of every lease was restarted: after an unclean stop, renewals may be
    /// missing from the log.
    AllLeasesRenewed {
        /// Store time in milliseconds.
        at_ms: i64,
    },
    /// The store time: how long the store has been running in total.
    Clock {
        /// Store time in milliseconds.
        ms: i64,
    },
    /// A lease was revoked or expired. The deletions of its keys are separate effects.
    LeaseRevoked {
        /// The lease ID.
        id: i64,
    },
    /// The history before `revision` is no longer readable.
    Compacted {
        /// The first revision that can still be read.
        revision: i64,
    },
    /// In a snapshot, a pair from before the history that follows. Base effects are
    /// in key order and are not events.
    Base(Record),
    /// The store's revision. It may be greater than that of the last event.
    Revision(i64),
    /// All keys of a span were removed with their history, without events.
    SpanRemoved {
        /// The first key.
        key: Vec<u8>,
        /// The end, in etcd's convention for `range_end`.
        range_end: Vec<u8>,
    },
    /// The visible-revision bound: it is made durable before any revision up to it
    /// is exposed to clients. A fact about the log; replay ignores it.
    VisibleBound(i64),
    /// A process has opened the log. A fact about the log; replay ignores it.
    Opened(Opened),
    /// The process has closed the log cleanly. A fact about the log; replay ignores
    /// it.
    Closed {
        /// The last published revision.
        revision: i64,
        /// Whether the log contains the whole state.
        complete: bool,
    },
    /// An alarm was raised or cleared.
    Alarm {
        /// The alarm.
        alarm: Alarm,
        /// Whether the alarm is raised (true) or cleared (false).
        raised: bool,
    },
}

/// The durability of the log after this point. It determines what may be missing if
/// the process did not close the log cleanly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Whether there are keys whose writes are not logged.
    pub unlogged: bool,
    /// Set if the log is not synced, so that its end may be lost if the machine
    /// crashes: the boot ID of the machine. Empty if the boot ID is unknown.
    pub buffered_on: Option<Vec<u8>>,
}

/// The effects of one or more commands, in order.
pub type Effects = Vec<Effect>;

/// The reason why bytes cannot be decoded as an effect.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeEffectError {
    /// The tag is unknown.
    #[error("unknown effect tag {0}")]
    UnknownTag(u8),
    /// The bytes end within an effect, or a number is not a valid varint.
    #[error("effect is truncated or malformed")]
    Malformed,
    /// The revisions and the version of a write contradict each other.
    #[error("effect has inconsistent revisions")]
    Inconsistent,
    /// The alarm kind is unknown.
    #[error("unknown alarm kind {0}")]
    UnknownAlarm(i64),
}

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

const UNLOGGED: u8 = 1;
const BUFFERED: u8 = 2;
const ALARM_RAISED: u8 = 20;
const ALARM_CLEARED: u8 = 21;

impl Effect {
    /// Appends the effect to `buf`.
    pub fn encode(&self, buf: &mut Vec<u8>) {
        match self {
            Effect::Write(record) if record.is_tombstone() => {
                buf.put_u8(DELETE);
                put_number(record.mod_revision(), buf);
                put_bytes(record.key().as_bytes(), buf);
            }
            Effect::Write(record) => put_pair(PUT, record, buf),
            Effect::Base(record) => put_pair(BASE, record, buf),
            Effect::Revision(revision) => put_numbers(REVISION, &[*revision], buf),
            Effect::LeaseGranted { id, ttl_seconds, at_ms: None } => {
                put_numbers(LEASE_GRANTED, &[*id, *ttl_seconds], buf)
            }
            Effect::LeaseGranted { id, ttl_seconds, at_ms: Some(at_ms) } => {
                put_numbers(LEASE_GRANTED_AT, &[*id, *ttl_seconds, *at_ms], buf)
            }
            Effect::LeaseRevoked { id } => put_numbers(LEASE_REVOKED, &[*id], buf),
            Effect::LeaseRenewed { id, at_ms } => put_numbers(LEASE_RENEWED, &[*id, *at_ms], buf),
            Effect::AllLeasesRenewed { at_ms } => put_numbers(ALL_LEASES_RENEWED, &[*at_ms], buf),
            Effect::Clock { ms } => put_numbers(CLOCK, &[*ms], buf),
            Effect::Compacted { revision } => put_numbers(COMPACTED, &[*revision], buf),
            Effect::SpanRemoved { key, range_end } => {
                buf.put_u8(SPAN_REMOVED);
                put_bytes(key, buf);
                put_bytes(range_end, buf);
            }
            Effect::VisibleBound(revision) => put_numbers(VISIBLE_BOUND, &[*revision], buf),
            Effect::Opened(opened) => opened.encode(buf),
            Effect::Closed { revision, complete } => {
                put_numbers(CLOSED, &[*revision, i64::from(*complete)], buf)
            }
            Effect::Alarm { alarm, raised } => {
                buf.put_u8(if *raised { ALARM_RAISED } else { ALARM_CLEARED });
                put_number(alarm.kind as i64, buf);
                put_number(alarm.member_id as i64, buf);
            }
        }
    }

    /// Decodes one effect from the start of `buf` and advances `buf` past it.
    ///
    /// # Errors
    /// Fails if the bytes are not an effect of this format. `buf` is then in an
    /// unspecified position.
    pub fn decode(buf: &mut &[u8]) -> Result<Effect, DecodeEffectError> {
        if buf.is_empty() {
            return Err(DecodeEffectError::Malformed);
        }
        match buf.get_u8() {
            PUT => pair(buf).map(Effect::Write),
            BASE => pair(buf).map(Effect::Base),
            REVISION => number(buf).map(Effect::Revision),
            DELETE => {
                let revision = number(buf)?;
                let key = Key::new(bytes(buf)?);
                Ok(Effect::Write(Record::tombstone(key, revision)))
            }
            LEASE_GRANTED => {
                let (id, ttl_seconds) = (number(buf)?, number(buf)?);
                Ok(Effect::LeaseGranted { id, ttl_seconds, at_ms: None })
            }
            LEASE_GRANTED_AT => {
                let (id, ttl_seconds) = (number(buf)?, number(buf)?);
                Ok(Effect::LeaseGranted { id, ttl_seconds, at_ms: Some(number(buf)?) })
            }
            LEASE_RENEWED => Ok(Effect::LeaseRenewed { id: number(buf)?, at_ms: number(buf)? }),
            ALL_LEASES_RENEWED => Ok(Effect::AllLeasesRenewed { at_ms: number(buf)? }),
            CLOCK => Ok(Effect::Clock { ms: number(buf)? }),
            SPAN_REMOVED => {
                let (key, range_end) = (bytes(buf)?.to_vec(), bytes(buf)?.to_vec());
                Ok(Effect::SpanRemoved { key, range_end })
            }
            VISIBLE_BOUND => number(buf).map(Effect::VisibleBound),
            OPENED => Opened::decode(buf).map(Effect::Opened),
            CLOSED => Ok(Effect::Closed { revision: number(buf)?, complete: number(buf)? != 0 }),
            LEASE_REVOKED => Ok(Effect::LeaseRevoked { id: number(buf)? }),
            COMPACTED => Ok(Effect::Compacted { revision: number(buf)? }),
            ALARM_RAISED => Ok(Effect::Alarm { alarm: alarm(buf)?, raised: true }),
            ALARM_CLEARED => Ok(Effect::Alarm { alarm: alarm(buf)?, raised: false }),
            tag => Err(DecodeEffectError::UnknownTag(tag)),
        }
    }
}

impl Opened {
    fn encode(&self, buf: &mut Vec<u8>) {
        let unlogged = if self.unlogged { UNLOGGED } else { 0 };
        let buffered = if self.buffered_on.is_some() { BUFFERED } else { 0 };
        buf.put_slice(&[OPENED, unlogged | buffered]);
        put_bytes(self.buffered_on.as_deref().unwrap_or_default(), buf);
    }

    fn decode(buf: &mut &[u8]) -> Result<Opened, DecodeEffectError> {
        let flags = if buf.is_empty() { u8::MAX } else { buf.get_u8() };
        if flags > UNLOGGED | BUFFERED {
            return Err(DecodeEffectError::Malformed);
        }
        let boot_id = bytes(buf)?.to_vec();
        let buffered_on = (flags & BUFFERED != 0).then_some(boot_id);
        Ok(Opened { unlogged: flags & UNLOGGED != 0, buffered_on })
    }
}

fn put_numbers(tag: u8, numbers: &[i64], buf: &mut Vec<u8>) {
    buf.put_u8(tag);
    numbers.iter().for_each(|number| put_number(*number, buf));
}

fn put_pair(tag: u8, record: &Record, buf: &mut Vec<u8>) {
    buf.put_u8(tag);
    put_number(record.mod_revision(), buf);
    put_number(record.create_revision(), buf);
    put_number(record.version(), buf);
    put_number(record.lease(), buf);
    put_bytes(record.key().as_bytes(), buf);
    put_bytes(record.value(), buf);
}

fn pair(buf: &mut &[u8]) -> Result<Record, DecodeEffectError> {
    let mod_revision = number(buf)?;
    let create_revision = number(buf)?;
    let version = number(buf)?;
    let lease = number(buf)?;
    let key = Key::new(bytes(buf)?);
    let value = bytes(buf)?;
    if version < 1 || create_revision < 1 || create_revision > mod_revision {
        return Err(DecodeEffectError::Inconsistent);
    }
    Ok(Record::put(key, value, create_revision, mod_revision, version, lease))
}

fn alarm(buf: &mut &[u8]) -> Result<Alarm, DecodeEffectError> {
    let kind = number(buf)?;
    let kind = AlarmKind::try_from(kind).map_err(|()| DecodeEffectError::UnknownAlarm(kind))?;
    Ok(Alarm { kind, member_id: number(buf)? as u64 })
}

fn put_number(number: i64, buf: &mut Vec<u8>) {
    encode_varint(number as u64, buf);
}

fn put_bytes(bytes: &[u8], buf: &mut Vec<u8>) {
    encode_varint(bytes.len() as u64, buf);
    buf.extend_from_slice(bytes);
}

fn number(buf: &mut &[u8]) -> Result<i64, DecodeEffectError> {
    decode_varint(buf).map(|n| n as i64).map_err(|_| DecodeEffectError::Malformed)
}

fn bytes<'a>(buf: &mut &'a [u8]) -> Result<&'a [u8], DecodeEffectError> {
    let len = number(buf)? as u64;
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

    /// The bytes of each effect in version 1 of the format. They must never change,
    /// because existing logs contain them.
    #[test]
    fn format_is_fixed() {
        let put = Record::put(Key::new(b"k"), b"vv", 2, 300, 5, -1);
        let opened = Opened { unlogged: true, buffered_on: Some(b"id".to_vec()) };
        let strict = Opened::default();
        let alarm = Alarm { kind: AlarmKind::Corrupt, member_id: 300 };
        let cases: [(Effect, &[u8]); 18] = [
            (
                Effect::Write(put.clone()),
                b"\x01\xac\x02\x02\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01k\x02vv",
            ),
            (
                Effect::Base(put),
                b"\x06\xac\x02\x02\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01k\x02vv",
            ),
            (Effect::Revision(301), b"\x07\xad\x02"),
            (Effect::Write(Record::tombstone(Key::new(b"k"), 301)), b"\x02\xad\x02\x01k"),
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
            (Effect::Opened(strict), b"\x09\0\0"),
            (Effect::Closed { revision: 300, complete: true }, b"\x0a\xac\x02\x01"),
            (
                Effect::SpanRemoved { key: b"k".to_vec(), range_end: b"l".to_vec() },
                b"\x0b\x01k\x01l",
            ),
            (Effect::LeaseRevoked { id: 7 }, b"\x04\x07"),
            (Effect::Compacted { revision: 300 }, b"\x05\xac\x02"),
            (Effect::Alarm { alarm, raised: true }, b"\x14\x02\xac\x02"),
            (Effect::Alarm { alarm, raised: false }, b"\x15\x02\xac\x02"),
        ];
        for (effect, expected) in cases {
            let mut encoded = Vec::new();
            effect.encode(&mut encoded);
            assert_eq!(encoded, expected, "{effect:?}");
            let mut rest = &encoded[..];
            let decoded = Effect::decode(&mut rest).unwrap();
            assert!(rest.is_empty());
            assert_eq!(format!("{decoded:?}"), format!("{effect:?}"));
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let mut encoded = Vec::new();
        Effect::Write(Record::put(Key::new(b"key"), b"value", 1, 2, 2, 3)).encode(&mut encoded);
        for len in 0..encoded.len() {
            assert!(Effect::decode(&mut &encoded[..len]).is_err(), "{len} bytes");
        }
    }
}
