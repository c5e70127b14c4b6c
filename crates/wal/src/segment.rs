//! How bytes lie in a segment.
//!
//! ```text
//! segment:  header  record  record  …  zeros up to the allocated size
//! header:   magic "K1MWAL" (6) · format u16 · first sequence u64 · salt u32 · crc32c u32  = 24 bytes
//! record:   crc32c u32 · payload length u32 · sequence u64 · durable u64 · payload
//! ```
//! All numbers are little-endian. A record's checksum covers everything behind
//! it and starts from the segment's salt, which is drawn at random: so bytes that
//! look like a record, inside a value, are not taken for one. `durable` is the highest sequence known to be on disk when the record was
//! written: it tells, of a damaged record, whether it was ever promised.

use crc32c::{crc32c, crc32c_append};

/// The format that this version writes, and the newest that it reads.
pub(crate) const FORMAT: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 24;
pub(crate) const RECORD_HEADER_BYTES: usize = 24;
/// What a file of each kind begins with.
pub(crate) type Magic = [u8; 6];
pub(crate) const SEGMENT: Magic = *b"K1MWAL";
pub(crate) const SNAPSHOT: Magic = *b"K1MSNP";
const EXTENSION: &str = ".wal";

/// File name of the segment that begins with `first`.
pub(crate) fn file_name(first: u64) -> String {
    format!("{first:020}{EXTENSION}")
}

/// The first sequence of the segment with this name, if it is one.
pub(crate) fn parse_file_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(EXTENSION)?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

pub(crate) fn encode_header(magic: Magic, first: u64, salt: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..6].copy_from_slice(&magic);
    header[6..8].copy_from_slice(&FORMAT.to_le_bytes());
    header[8..16].copy_from_slice(&first.to_le_bytes());
    header[16..20].copy_from_slice(&salt.to_le_bytes());
    let crc = crc32c(&header[..20]);
    header[20..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// What the first bytes of a file say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// A segment that begins with this sequence.
    Valid {
        first: u64,
        salt: u32,
    },
    /// A segment of a format that is not known here.
    Newer {
        format: u16,
    },
    Damaged,
}

pub(crate) fn decode_header(magic: Magic, content: &[u8]) -> Header {
    let Some(header) = content.first_chunk::<HEADER_BYTES>() else { return Header::Damaged };
    let format = u16::from_le_bytes([header[6], header[7]]);
    if header[..6] == magic && format > FORMAT {
        return Header::Newer { format };
    }
    let (first, salt) = (u64_at(header, 8), u32_at(header, 16));
    match encode_header(magic, first, salt) == *header {
        true => Header::Valid { first, salt },
        false => Header::Damaged,
    }
}

/// Appends a record to `buf`.
///
/// The payload must be shorter than 4 GiB.
pub(crate) fn encode_record(
    salt: u32,
    sequence: u64,
    durable: u64,
    payload: &[u8],
    buf: &mut Vec<u8>,
) {
    let len = u32::try_from(payload.len()).expect("shorter than 4 GiB");
    let start = buf.len();
    buf.extend_from_slice(&[0; 4]);
    buf.extend_from_slice(&len.to_le_bytes());
    buf.extend_from_slice(&sequence.to_le_bytes());
    buf.extend_from_slice(&durable.to_le_bytes());
    let crc = crc32c_append(crc32c_append(salt, &buf[start + 4..]), payload);
    buf[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    buf.extend_from_slice(payload);
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) sequence: u64,
    pub(crate) durable: u64,
    pub(crate) payload: &'a [u8],
}

impl Record<'_> {
    pub(crate) fn encoded_len(&self) -> usize {
        RECORD_HEADER_BYTES + self.payload.len()
    }
}

/// The record at the front of `bytes`, if there is an intact one.
pub(crate) fn decode_record(salt: u32, bytes: &[u8]) -> Option<Record<'_>> {
    let header = bytes.first_chunk::<RECORD_HEADER_BYTES>()?;
    let len = u32_at(header, 4) as usize;
    let payload = bytes.get(RECORD_HEADER_BYTES..)?.get(..len)?;
    if crc32c_append(crc32c_append(salt, &header[4..]), payload) != u32_at(header, 0) {
        return None;
    }
    Some(Record { sequence: u64_at(header, 8), durable: u64_at(header, 16), payload })
}

/// Sequence and `durable` as the bytes have them, if they are a record; cheap,
/// and to be believed only after [`decode_record`].
pub(crate) fn claims(bytes: &[u8]) -> Option<(u64, u64)> {
    let header = bytes.first_chunk::<RECORD_HEADER_BYTES>()?;
    Some((u64_at(header, 8), u64_at(header, 16)))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of format 1. They never change: logs in the field hold them.
    #[test]
    fn format_is_fixed() {
        let mut segment = encode_header(SEGMENT, 7, 0x5a17).to_vec();
        encode_record(0x5a17, 7, 6, b"payload", &mut segment);
        let expected = "4b314d57414c0100 0700000000000000 175a0000 eb053cef \
                        2f58d3e8 07000000 0700000000000000 0600000000000000 7061796c6f6164";
        let hex: String = segment.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected.replace(' ', ""));
        assert_eq!(decode_header(SEGMENT, &segment), Header::Valid { first: 7, salt: 0x5a17 });
        let record = decode_record(0x5a17, &segment[HEADER_BYTES..]).unwrap();
        assert_eq!(record, Record { sequence: 7, durable: 6, payload: b"payload" });
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut record = Vec::new();
        encode_record(9, 1, 0, b"some payload", &mut record);
        for bit in 0..record.len() * 8 {
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_record(9, &record), None, "bit {bit}");
            record[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut header = encode_header(SEGMENT, 1, 2);
        header[6] = 2;
        assert_eq!(decode_header(SEGMENT, &header), Header::Newer { format: 2 });
        header[0] = b'X';
        assert_eq!(decode_header(SEGMENT, &header), Header::Damaged);
        assert_eq!(decode_header(SEGMENT, &[]), Header::Damaged);
    }

    #[test]
    fn names_sort_as_their_sequences() {
        assert_eq!(parse_file_name(&file_name(42)), Some(42));
        assert!(file_name(9) < file_name(10));
        assert_eq!(parse_file_name("42.wal"), None);
    }
}
