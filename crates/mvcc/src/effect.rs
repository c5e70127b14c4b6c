//! What a command did, as it is kept in the log.
//!
//! The log holds effects and not commands: a replay then needs no evaluation,
//! cannot come out differently, and costs nothing for what failed or only read.
//!
//! # Format
//! Effects are written one behind the other, each a tag byte and its fields.
//! Numbers are LEB128 varints (negative ones as their 64-bit two's complement),
//! bytes are preceded by their length. This format is kept readable for ever;
//! a change gets a new tag.
//!
//! | tag | effect | fields |
//! |---|---|---|
//! | 1 | put | mod revision, create revision, version, lease, key, value |
//! | 2 | delete | mod revision, key |
//! | 3 | lease granted | id, TTL in seconds |
//! | 4 | lease revoked | id |
//! | 5 | compacted | revision |
//! | 6 | base | as put: a pair that stands at the start of a snapshot's history |
//! | 7 | revision | the store's revision |
//! | 8 | revision ceiling | revision |
//! | 9 | opened | flags (1: some keys are not logged, 2: the end may only be buffered), boot ID |
//! | 10 | ended | the store's revision, 1 if all of the state is in the log, else 0 |
//! | 11 | forgotten | first key, end as `range_end` has it |
//! | 12 | lease granted | id, TTL in seconds, store time in milliseconds |
//! | 13 | lease renewed | id, store time in milliseconds |
//! | 14 | all leases renewed | store time in milliseconds |
//! | 15 | clock | store time in milliseconds |
//! | 20 | alarm raised | kind, member ID |
//! | 21 | alarm cleared | kind, member ID |
//!
//! 3 is no longer written.

use etcdpb::{Key, Record};
use prost::bytes::{Buf, BufMut};
use prost::encoding::{decode_varint, encode_varint};

use crate::{Alarm, AlarmKind};

/// One thing that a command changed.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A key was written, or (with a tombstone) deleted.
    Write(Record),
    /// A lease came to be.
    LeaseGranted {
        /// Its identity, never 0.
        id: i64,
        /// What was granted, in seconds.
        ttl_seconds: i64,
        /// Store time of the grant or the last renewal; the first version of the
        /// log did not say.
        at_ms: Option<i64>,
    },
    /// A lease got its full TTL again.
    LeaseRenewed {
        /// Its identity.
        id: i64,
        /// Store time.
        at_ms: i64,
    },
    /// Every lease got its full TTL again, because nobody knows which of them did.
    AllLeasesRenewed {
        /// Store time.
        at_ms: i64,
    },
    /// How long the store has been running in all.
    Clock {
        /// Store time.
        ms: i64,
    },
    /// A lease ended; the deletions of its keys are effects of their own.
    LeaseRevoked {
        /// Its identity.
        id: i64,
    },
    /// History before `revision` may no longer be read.
    Compacted {
        /// The first revision that can still be read.
        revision: i64,
    },
    /// In a snapshot: a pair as it was before the history that follows. Comes
    /// in the order of keys, and is no event.
    Base(Record),
    /// The store's revision, be it that of the last event or not.
    Revision(i64),
    /// The keys of a span are not kept any longer: gone, and no event.
    Forgotten {
        /// The first of them.
        key: Vec<u8>,
        /// Their end, in etcd's convention.
        range_end: Vec<u8>,
    },
    /// Revisions up to this one may have been shown to somebody. Like the two that
    /// follow it is about the log, and changes nothing in the state.
    RevisionCeiling(i64),
    /// A process begins to work on the log.
    Opened(Opened),
    /// It has ended in good order.
    Ended {
        /// The last revision that anybody saw.
        revision: i64,
        /// Whether all of the state is in the log.
        complete: bool,
    },
    /// An alarm was raised or cleared.
    Alarm {
        /// Which one.
        alarm: Alarm,
        /// Whether it stands from here on.
        raised: bool,
    },
}

/// What may be missing from the log behind this point if the process that wrote
/// it did not end in good order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Whether there are keys whose writes are not logged.
    pub unlogged: bool,
    /// If the end of the log may be lost with the machine: which run of which
    /// machine. Empty if that could not be found out.
    pub buffered_on: Option<Vec<u8>>,
}

/// The effects of a run of commands, in order.
pub type Effects = Vec<Effect>;

/// The bytes are not effects that this version writes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeEffectError {
    /// The tag is not in the table above.
    #[error("unknown effect tag {0}")]
    UnknownTag(u8),
    /// The bytes end inside an effect, or a number is not a varint.
    #[error("effect is cut short or malformed")]
    Malformed,
    /// The numbers of a write contradict each other.
    #[error("effect has impossible revisions")]
    Impossible,
    /// An alarm of a kind that this version does not know.
    #[error("unknown kind of alarm {0}")]
    UnknownAlarm(i64),
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const LEASE_GRANTED: u8 = 3;
const LEASE_REVOKED: u8 = 4;
const COMPACTED: u8 = 5;
const BASE: u8 = 6;
const REVISION: u8 = 7;
const REVISION_CEILING: u8 = 8;
const OPENED: u8 = 9;
const ENDED: u8 = 10;
const FORGOTTEN: u8 = 11;
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
            Effect::Forgotten { key, range_end } => {
                buf.put_u8(FORGOTTEN);
                put_bytes(key, buf);
                put_bytes(range_end, buf);
            }
            Effect::RevisionCeiling(revision) => put_numbers(REVISION_CEILING, &[*revision], buf),
            Effect::Opened(opened) => opened.encode(buf),
            Effect::Ended { revision, complete } => {
                put_numbers(ENDED, &[*revision, i64::from(*complete)], buf)
            }
            Effect::Alarm { alarm, raised } => {
                buf.put_u8(if *raised { ALARM_RAISED } else { ALARM_CLEARED });
                put_number(alarm.kind as i64, buf);
                put_number(alarm.member_id as i64, buf);
            }
        }
    }

    /// Takes one effect off the front of `buf`.
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
            FORGOTTEN => {
                let (key, range_end) = (bytes(buf)?.to_vec(), bytes(buf)?.to_vec());
                Ok(Effect::Forgotten { key, range_end })
            }
            REVISION_CEILING => number(buf).map(Effect::RevisionCeiling),
            OPENED => Opened::decode(buf).map(Effect::Opened),
            ENDED => Ok(Effect::Ended { revision: number(buf)?, complete: number(buf)? != 0 }),
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
        return Err(DecodeEffectError::Impossible);
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

    /// The bytes of each effect as version 1 of the format writes them. They
    /// never change: logs in the field hold them.
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
            (Effect::RevisionCeiling(301), b"\x08\xad\x02"),
            (Effect::Opened(opened), b"\x09\x03\x02id"),
            (Effect::Opened(strict), b"\x09\0\0"),
            (Effect::Ended { revision: 300, complete: true }, b"\x0a\xac\x02\x01"),
            (Effect::Forgotten { key: b"k".to_vec(), range_end: b"l".to_vec() }, b"\x0b\x01k\x01l"),
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
