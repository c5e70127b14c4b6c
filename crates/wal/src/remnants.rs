//! What is still to be found in a log that cannot be opened.

use crate::Error;
use crate::medium::Medium;
use crate::recovery;
use crate::segment::{self, HEADER_BYTES, Header};

/// A record further from the first one of its segment than this is none.
const MOST_RECORDS: u64 = u32::MAX as u64;

/// Hands the payload of every intact record to `visit`, also of those behind
/// damage, and returns the highest number of them; 0 if there is none. Nothing is
/// changed.
pub fn remnants(medium: &dyn Medium, mut visit: impl FnMut(&[u8])) -> Result<u64, Error> {
    let mut highest = 0;
    for first in recovery::list(medium)? {
        let name = segment::file_name(first);
        let path = medium.path().join(&name);
        let file = medium.open(&name).map_err(Error::io("open", &path))?;
        let content = file.read().map_err(Error::io("read", &path))?;
        // The records of a segment without its salt cannot be told from others.
        if let Header::Valid { salt, .. } = segment::decode_header(segment::SEGMENT, &content) {
            highest = highest.max(in_segment(&content, first, salt, &mut visit));
        }
    }
    Ok(highest)
}

fn in_segment(content: &[u8], first: u64, salt: u32, visit: &mut dyn FnMut(&[u8])) -> u64 {
    let (mut highest, mut offset) = (0, HEADER_BYTES);
    while let Some((sequence, durable)) = content.get(offset..).and_then(segment::claims) {
        // Looked at first, because a checksum at every offset would take hours.
        let plausible = durable < sequence
            && sequence.checked_sub(first).is_some_and(|behind| behind <= MOST_RECORDS);
        let record = match plausible {
            true => segment::decode_record(salt, &content[offset..]),
            false => None,
        };
        match record {
            Some(record) => {
                visit(record.payload);
                highest = highest.max(sequence);
                offset += record.encoded_len();
            }
            None => offset += 1,
        }
    }
    highest
}
