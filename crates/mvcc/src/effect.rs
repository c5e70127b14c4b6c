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

use etcdpb::{Key, Record};
use prost::bytes::{Buf, BufMut};
use prost::encoding::{decode_varint, encode_varint};

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
    /// In a snapshot: the store's revision, be it that of the last event or not.
    Revision(i64),
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
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const LEASE_GRANTED: u8 = 3;
const LEASE_REVOKED: u8 = 4;
const COMPACTED: u8 = 5;
const BASE: u8 = 6;
const REVISION: u8 = 7;

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
            Effect::Revision(revision) => {
                buf.put_u8(REVISION);
                put_number(*revision, buf);
            }
            Effect::LeaseGranted { id, ttl_seconds } => {
                buf.put_u8(LEASE_GRANTED);
                put_number(*id, buf);
                put_number(*ttl_seconds, buf);
            }
            Effect::LeaseRevoked { id } => {
                buf.put_u8(LEASE_REVOKED);
                put_number(*id, buf);
            }
            Effect::Compacted { revision } => {
                buf.put_u8(COMPACTED);
                put_number(*revision, buf);
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
                Ok(Effect::LeaseGranted { id: number(buf)?, ttl_seconds: number(buf)? })
            }
            LEASE_REVOKED => Ok(Effect::LeaseRevoked { id: number(buf)? }),
            COMPACTED => Ok(Effect::Compacted { revision: number(buf)? }),
            tag => Err(DecodeEffectError::UnknownTag(tag)),
        }
    }
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
        let cases: [(Effect, &[u8]); 7] = [
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
            (Effect::LeaseGranted { id: 7, ttl_seconds: 60 }, b"\x03\x07\x3c"),
            (Effect::LeaseRevoked { id: 7 }, b"\x04\x07"),
            (Effect::Compacted { revision: 300 }, b"\x05\xac\x02"),
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
