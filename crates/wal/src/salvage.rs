//! Finds the intact records of a damaged log, which cannot be opened.

use files::framing::{self, HEADER_BYTES, Header};
use files::record_search::RecordSearch;
use files::{Error, PayloadError};

use crate::content::Content;
use crate::medium::Medium;
use crate::scan;
use crate::segment;

/// Passes the payload of every intact record to `visit`, including records after damage or
/// after a part that cannot be read.
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
        let content = Content::read(&*file).map_err(Error::io("read", &path))?.bytes;
        match framing::decode_header(segment::MAGIC, &content) {
            Header::Valid { number, salt, .. } => {
                let found = salvage_segment(&content, number, salt, &mut visit);
                highest = highest.max(found.map_err(|(error, offset)| error.at(&path, offset))?);
            }
            Header::Newer { format } => return Err(Error::newer_format(&path, format)),
            // Without the salt of a segment its records cannot be verified.
            Header::Damaged => {}
        }
    }
    Ok(highest)
}

/// Passes the payloads of the intact records of one segment to `visit`. `first` is the
/// sequence of its first record. Returns their highest sequence. An error of `visit` is
/// returned with the offset of the record.
fn salvage_segment(
    content: &[u8],
    first: u64,
    salt: u32,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), PayloadError>,
) -> Result<u64, (PayloadError, u64)> {
    let search = RecordSearch::new(content, salt);
    let is_plausible = |offset, sequence, durable| {
        durable < sequence && scan::may_contain(first, offset, sequence)
    };
    let (mut highest, mut from) = (0, HEADER_BYTES);
    while let Some((offset, record)) = search.find(from, is_plausible) {
        visit(record.payload).map_err(|error| (error, offset as u64))?;
        highest = highest.max(record.sequence);
        from = offset + record.encoded_len();
    }
    Ok(highest)
}
