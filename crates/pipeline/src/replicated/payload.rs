//! The payload of an entry: the effects of a batch, and the revisions before and after it.
//!
//! Every member checks both revisions, so members whose stores differ notice it.

use bytes::Bytes;
use mvcc::{DecodeEffectError, Effect, Effects};

/// The version of the format, which is the first byte.
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 17;
/// Maximum size of the memory that is reserved for effects, in bytes.
const RESERVED_BYTES: usize = 4 << 20;
/// Unused memory of an entry that is kept, in bytes, beside a quarter of its size.
const UNUSED_BYTES: usize = 512;

/// The effects of a batch.
pub(super) struct Batch {
    /// The revision of the store on which the batch was evaluated.
    pub(super) before: i64,
    /// The revision after the batch.
    pub(super) after: i64,
    pub(super) effects: Effects,
}

/// Why a payload cannot be decoded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum PayloadError {
    #[error("the format {0} is unknown; use the same version of mem_etcd on all members")]
    Version(u8),
    #[error("truncated")]
    Truncated,
    #[error(transparent)]
    Effect(#[from] DecodeEffectError),
}

/// Encodes a batch. `max_bytes` is the maximum size of its effects.
pub(super) fn encode(before: i64, after: i64, effects: &Effects, max_bytes: usize) -> Bytes {
    let mut buf = Vec::with_capacity(HEADER_BYTES + max_bytes.min(RESERVED_BYTES));
    buf.push(VERSION);
    buf.extend_from_slice(&before.to_le_bytes());
    buf.extend_from_slice(&after.to_le_bytes());
    effects.iter().for_each(|effect| effect.encode(&mut buf));
    // Entries stay in memory for a while, and their unused memory is not counted.
    if buf.capacity() - buf.len() > buf.len() / 4 + UNUSED_BYTES {
        buf.shrink_to_fit();
    }
    buf.into()
}

/// Decodes a batch.
pub(super) fn decode(bytes: &[u8]) -> Result<Batch, PayloadError> {
    let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(PayloadError::Truncated)?;
    if header[0] != VERSION {
        return Err(PayloadError::Version(header[0]));
    }
    let number = |at: usize| i64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    let mut batch = Batch { before: number(1), after: number(9), effects: Effects::new() };
    while !rest.is_empty() {
        batch.effects.push(Effect::decode(&mut rest)?);
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_read_as_written() {
        let effects = vec![Effect::Compacted { revision: 7 }, Effect::LeaseRevoked { id: 3 }];
        let bytes = encode(7, 9, &effects, 0);
        let batch = decode(&bytes).unwrap();
        assert_eq!((batch.before, batch.after), (7, 9));
        assert_eq!(format!("{:?}", batch.effects), format!("{effects:?}"));
        assert!(decode(&encode(1, 1, &Effects::new(), 0)).unwrap().effects.is_empty());
        assert_eq!(decode(&bytes[..10]).err(), Some(PayloadError::Truncated));
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        assert_eq!(encode(7, 9, &effects, 1 << 20), bytes);
        assert_eq!(decode(&[9; 17]).err(), Some(PayloadError::Version(9)));
    }
}
