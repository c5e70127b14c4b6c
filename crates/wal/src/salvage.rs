//! Finds the intact records of a damaged log, which cannot be opened.

use files::framing::{self, HEADER_BYTES, Header};
use files::{Error, PayloadError};

use crate::medium::Medium;
use crate::segment;

/// Maximum plausible difference between the sequence of a record and the first sequence
/// of its segment.
const MAX_SEQUENCE_DISTANCE: u64 = u32::MAX as u64;

/// Passes the payload of every intact record to `visit`, including records after damage.
/// Returns the highest sequence of an intact record; 0 if there is none. Changes nothing.
/// Fails if a newer version wrote a segment, or if `visit` fails.
pub fn salvage(
    medium: &dyn Medium,
    mut visit: impl FnMut(&[u8]) -> Result<(), PayloadError>,
) -> Result<u64, Error> {
    let mut highest = 0;
    for first in segment::list(medium)? {
        let name = segment::file_name(first);
        let path = medium.path().join(&name);
        let file = medium.open(&name).map_err(Error::io("open", &path))?;
        let content = file.read().map_err(Error::io("read", &path))?;
        match framing::decode_header(segment::MAGIC, &content) {
            Header::Valid { salt, .. } => {
                let found = salvage_segment(&content, first, salt, &mut visit);
                highest = highest.max(found.map_err(|(error, offset)| error.at(&path, offset))?);
            }
            Header::Newer { format } => return Err(Error::newer_format(&path, format)),
            // Without the salt of a segment its records cannot be verified.
            Header::Damaged => {}
        }
    }
    Ok(highest)
}

/// Passes the payloads of the intact records of one segment to `visit`. Returns their
/// highest sequence. An error of `visit` is returned with the offset of the record.
fn salvage_segment(
    content: &[u8],
    first: u64,
    salt: u32,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), PayloadError>,
) -> Result<u64, (PayloadError, u64)> {
    let (mut highest, mut offset) = (0, HEADER_BYTES);
    while let Some((sequence, durable)) = content.get(offset..).and_then(framing::peek_sequences) {
        // Computing a checksum at every offset would take hours. So check the numbers
        // first.
        let plausible = durable < sequence
            && sequence
                .checked_sub(first)
                .is_some_and(|distance| distance <= MAX_SEQUENCE_DISTANCE);
        let record = match plausible {
            true => framing::decode_record(salt, &content[offset..]),
            false => None,
        };
        match record {
            Some(record) => {
                visit(record.payload).map_err(|error| (error, offset as u64))?;
                highest = highest.max(sequence);
                offset += record.encoded_len();
            }
            None => offset += 1,
        }
    }
    Ok(highest)
}
