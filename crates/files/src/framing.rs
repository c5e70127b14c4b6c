//! The layout of log segments and snapshots: a file header, followed by records.
//!
//! ```text
//! file:    header  record  record  …
//! header:  magic (6) · format u16 · number u64 · salt u32 · crc32c u32  = 24 bytes
//! record:  crc32c u32 · payload length u32 · sequence u64 · durable u64 · payload
//! ```
//! All numbers are little-endian. `number` is the first sequence of a log segment, or
//! the last record that a snapshot covers.
//!
//! The checksum of a record covers all bytes of the record after the checksum. Its start
//! value is the salt of the file. The log chooses a random salt for each file, so bytes
//! inside a value that look like a record have a wrong checksum.
//!
//! `durable` is the highest sequence that was known to be on disk when the record was
//! written. Recovery of the log uses it to distinguish damage from an unfinished write.

use crc32c::{crc32c, crc32c_append};

/// The format that this version writes. This version also reads all formats before it. The
/// number changes whenever an earlier version could not read what is written: a file with
/// format n can be read by the versions whose `FORMAT` is at least n. So no version writes
/// to an existing file of an earlier format. `docs/store-format.md` lists the formats.
pub const FORMAT: u16 = 4;
/// Size of a file header in bytes.
pub const HEADER_BYTES: usize = 24;
/// Size of a record without its payload, in bytes.
pub const RECORD_HEADER_BYTES: usize = 24;

/// The first bytes of a file, which identify its kind.
pub type Magic = [u8; 6];

/// Encodes a file header of the current format.
pub fn encode_header(magic: Magic, number: u64, salt: u32) -> [u8; HEADER_BYTES] {
    encode_header_of(FORMAT, magic, number, salt)
}

fn encode_header_of(format: u16, magic: Magic, number: u64, salt: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..6].copy_from_slice(&magic);
    header[6..8].copy_from_slice(&format.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    header[16..20].copy_from_slice(&salt.to_le_bytes());
    let crc = crc32c(&header[..20]);
    header[20..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A decoded file header.
#[derive(Debug, PartialEq, Eq)]
pub enum Header {
    /// A header of a format that this version reads.
    Valid {
        /// The format of the file, at most [`FORMAT`].
        format: u16,
        /// The first sequence of a segment, or the last record that a snapshot covers.
        number: u64,
        /// Start value of the records' checksums.
        salt: u32,
    },
    /// A header of a newer format.
    Newer {
        /// The number of that format.
        format: u16,
    },
    /// No valid header: the content is too short, the magic is wrong, or the checksum is
    /// wrong.
    Damaged,
}

/// Decodes the header at the start of `content`.
pub fn decode_header(magic: Magic, content: &[u8]) -> Header {
    let Some(header) = content.first_chunk::<HEADER_BYTES>() else { return Header::Damaged };
    let format = u16::from_le_bytes([header[6], header[7]]);
    if header[..6] == magic && format > FORMAT {
        return Header::Newer { format };
    }
    let (number, salt) = (u64_at(header, 8), u32_at(header, 16));
    match format > 0 && encode_header_of(format, magic, number, salt) == *header {
        true => Header::Valid { format, number, salt },
        false => Header::Damaged,
    }
}

/// Appends a record to `buf`. Panics if the payload has 4 GiB or more.
pub fn encode_record(salt: u32, sequence: u64, durable: u64, payload: &[u8], buf: &mut Vec<u8>) {
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

/// A decoded record with a valid checksum.
#[derive(Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Sequence number of the record.
    pub sequence: u64,
    /// Highest sequence that was durable when the record was written.
    pub durable: u64,
    /// Content of the record.
    pub payload: &'a [u8],
}

impl Record<'_> {
    /// Size of the record in the file, in bytes.
    pub fn encoded_len(&self) -> usize {
        RECORD_HEADER_BYTES + self.payload.len()
    }
}

/// Decodes the record at the start of `bytes`. Returns `None` if `bytes` does not start
/// with an intact record.
pub fn decode_record(salt: u32, bytes: &[u8]) -> Option<Record<'_>> {
    let header = bytes.first_chunk::<RECORD_HEADER_BYTES>()?;
    let len = u32_at(header, 4) as usize;
    let payload = bytes.get(RECORD_HEADER_BYTES..)?.get(..len)?;
    if crc32c_append(crc32c_append(salt, &header[4..]), payload) != u32_at(header, 0) {
        return None;
    }
    Some(Record { sequence: u64_at(header, 8), durable: u64_at(header, 16), payload })
}

/// Reads `sequence` and `durable` as if a record started at `bytes`, without verifying
/// the checksum. A caller that scans every offset uses this to skip implausible offsets
/// cheaply; see [`crate::record_search`].
pub fn peek_sequences(bytes: &[u8]) -> Option<(u64, u64)> {
    let header = bytes.first_chunk::<RECORD_HEADER_BYTES>()?;
    Some((u64_at(header, 8), u64_at(header, 16)))
}

/// Returns the length of the payload of the intact record at the start of `bytes`.
pub fn peek_payload_len(bytes: &[u8]) -> usize {
    u32_at(bytes, 4) as usize
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

    const MAGIC: Magic = *b"K1MWAL";

    fn bytes_of(hex: &str) -> Vec<u8> {
        let digits = hex.replace(' ', "");
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    /// The layout never changes, because existing files have it.
    #[test]
    fn format_is_fixed() {
        let mut segment = encode_header(MAGIC, 7, 0x5a17).to_vec();
        encode_record(0x5a17, 7, 6, b"payload", &mut segment);
        let expected = "4b314d57414c0400 0700000000000000 175a0000 4473caee \
                        2f58d3e8 07000000 0700000000000000 0600000000000000 7061796c6f6164";
        assert_eq!(segment, bytes_of(expected));
        let header = Header::Valid { format: 4, number: 7, salt: 0x5a17 };
        assert_eq!(decode_header(MAGIC, &segment), header);
        let record = decode_record(0x5a17, &segment[HEADER_BYTES..]).unwrap();
        assert_eq!(record, Record { sequence: 7, durable: 6, payload: b"payload" });
    }

    #[test]
    fn earlier_formats_are_read() {
        for (format, header) in [
            (1, "4b314d57414c0100 0700000000000000 175a0000 eb053cef"),
            (3, "4b314d57414c0300 0700000000000000 175a0000 67af3247"),
        ] {
            let expected = Header::Valid { format, number: 7, salt: 0x5a17 };
            assert_eq!(decode_header(MAGIC, &bytes_of(header)), expected);
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let mut record = Vec::new();
        encode_record(9, 1, 0, b"some payload", &mut record);
        for bit in 0..record.len() * 8 {
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_record(9, &record), None, "bit {bit}");
            record[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_newer_format_is_not_reported_as_damage() {
        let mut header = encode_header(MAGIC, 1, 2);
        header[6] = 5;
        assert_eq!(decode_header(MAGIC, &header), Header::Newer { format: 5 });
        header[0] = b'X';
        assert_eq!(decode_header(MAGIC, &header), Header::Damaged);
        assert_eq!(decode_header(MAGIC, &[]), Header::Damaged);
    }
}
