//! The header of a snapshot file.
//!
//! ```text
//! format 3, 4:  magic (6) · format u16 · covered u64 · cluster u64 · member u64 · ID u64 · crc32c u32
//! format 1, 2:  magic (6) · format u16 · covered u64 · salt (0) u32 · crc32c u32
//! ```
//! All numbers are little-endian. The checksum covers the bytes before it. Earlier versions
//! wrote formats 1 and 2 to data directories. Exported snapshots still have format 1, because
//! they belong to no store.

use std::io::{self, Read};

use crc32c::crc32c;
use files::Identity;
use files::framing::Magic;

/// First bytes of every snapshot.
const MAGIC: Magic = *b"K1MSNP";
/// The newest format that this version reads.
pub(crate) const FORMAT: u16 = 4;
/// The first format with identity.
const FIRST_OWNED_FORMAT: u16 = 3;
/// The first format without identity, which this version writes for exported snapshots.
const UNOWNED_FORMAT: u16 = 1;
/// Size of the magic and of the format number in bytes.
const START_BYTES: usize = 8;
/// Size of a header without identity in bytes.
const UNOWNED_BYTES: usize = 24;
/// Size of a header with identity in bytes.
const OWNED_BYTES: usize = 44;

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The last record of the log that the snapshot covers.
    pub(crate) covered: u64,
    /// The owner; `None` in formats 1 and 2.
    pub(crate) owner: Option<Owner>,
}

/// The store that a snapshot belongs to, and the place of the snapshot in its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The store that wrote the snapshot.
    pub(crate) identity: Identity,
    /// Random ID of the snapshot. The manifest of the data directory lists it.
    pub(crate) id: u64,
}

/// The reason why a header cannot be read.
#[derive(Debug)]
pub(crate) enum HeaderError {
    /// The content is no valid header.
    Damaged,
    /// The file ends within the header.
    Truncated,
    /// The header has a newer format.
    Newer(u16),
    /// The file cannot be read.
    Io(io::Error),
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_as(if self.owner.is_some() { FORMAT } else { UNOWNED_FORMAT })
    }

    fn encode_as(&self, format: u16) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(format.to_le_bytes());
        bytes.extend(self.covered.to_le_bytes());
        match self.owner {
            Some(Owner { identity, id }) => {
                let numbers = [identity.cluster_id, identity.member_id, id];
                numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
            None => bytes.extend([0; 4]),
        }
        let checksum = crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    /// Reads a header. Also returns its size in bytes.
    pub(crate) fn read(file: &mut impl Read) -> Result<(Header, usize), HeaderError> {
        let mut bytes = [0; OWNED_BYTES];
        read_exact(file, &mut bytes[..START_BYTES])?;
        let format = u16::from_le_bytes([bytes[6], bytes[7]]);
        let size = match format {
            _ if bytes[..6] != MAGIC => return Err(HeaderError::Damaged),
            0 => return Err(HeaderError::Damaged),
            UNOWNED_FORMAT..FIRST_OWNED_FORMAT => UNOWNED_BYTES,
            FIRST_OWNED_FORMAT..=FORMAT => OWNED_BYTES,
            newer => return Err(HeaderError::Newer(newer)),
        };
        read_exact(file, &mut bytes[START_BYTES..size])?;
        let number = |offset: usize| {
            u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
        };
        let owner = (size == OWNED_BYTES).then(|| Owner {
            identity: Identity { cluster_id: number(16), member_id: number(24) },
            id: number(32),
        });
        let header = Header { covered: number(8), owner };
        match header.encode_as(format) == bytes[..size] {
            true => Ok((header, size)),
            false => Err(HeaderError::Damaged),
        }
    }
}

fn read_exact(file: &mut impl Read, bytes: &mut [u8]) -> Result<(), HeaderError> {
    file.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => HeaderError::Truncated,
        _ => HeaderError::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout never changes, because existing files have it.
    #[test]
    fn format_is_fixed() {
        let identity = Identity { cluster_id: 0xc1, member_id: 0x3e };
        let owned = Header { covered: 4710, owner: Some(Owner { identity, id: 0x1d }) };
        let unowned = Header { covered: 4710, owner: None };
        let hex = |header: Header| {
            header.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let expected = "4b314d534e500400 6612000000000000 c100000000000000 3e00000000000000 \
                        1d00000000000000 992302b1";
        assert_eq!(hex(owned), expected.replace(' ', ""));
        let expected = "4b314d534e500100 6612000000000000 00000000 ad4ecf25";
        assert_eq!(hex(unowned), expected.replace(' ', ""));
        for header in [owned, unowned] {
            let bytes = header.encode();
            assert_eq!(Header::read(&mut &bytes[..]).unwrap(), (header, bytes.len()));
        }
    }

    #[test]
    fn earlier_formats_are_read() {
        let header = Header { covered: 4710, owner: None };
        let bytes = header.encode_as(2);
        assert_eq!(Header::read(&mut &bytes[..]).unwrap(), (header, UNOWNED_BYTES));
        let identity = Identity { cluster_id: 0xc1, member_id: 0x3e };
        let header = Header { covered: 4710, owner: Some(Owner { identity, id: 0x1d }) };
        let bytes = header.encode_as(3);
        assert_eq!(Header::read(&mut &bytes[..]).unwrap(), (header, OWNED_BYTES));
    }

    #[test]
    fn a_newer_format_is_not_reported_as_damage() {
        let mut bytes = Header { covered: 1, owner: None }.encode();
        bytes[6] = 5;
        assert!(matches!(Header::read(&mut &bytes[..]), Err(HeaderError::Newer(5))));
        bytes[0] = b'X';
        assert!(matches!(Header::read(&mut &bytes[..]), Err(HeaderError::Damaged)));
        assert!(matches!(Header::read(&mut &bytes[..5]), Err(HeaderError::Truncated)));
    }
}
