//! Segments: the files of a log.
//!
//! A segment has a header, records (see [`files::framing`]) and zeros up to its allocated
//! size. Its file name is the sequence of its first record, so the names sort in the
//! order of the log.

use std::sync::Arc;

use files::Error;
use files::framing::Magic;

use crate::medium::{LogFile, Medium};

/// First bytes of every segment.
pub(crate) const MAGIC: Magic = *b"K1MWAL";
/// Extension of the file name of a segment.
const EXTENSION: &str = ".wal";

/// A segment that is open for writing.
pub(crate) struct Segment {
    /// Sequence of the first record, which may not be written yet.
    pub(crate) first: u64,
    /// The format in the header. Only segments of the current format get more records.
    pub(crate) format: u16,
    /// Start value of the checksums of the records.
    pub(crate) salt: u32,
    pub(crate) file: Arc<dyn LogFile>,
    /// Offset of the next record in bytes.
    pub(crate) position: u64,
    /// Allocated size in bytes.
    pub(crate) size: u64,
}

/// Returns the file name of the segment whose first sequence is `first`.
pub(crate) fn file_name(first: u64) -> String {
    format!("{first:020}{EXTENSION}")
}

/// Returns the first sequences of all segments on `medium`, in ascending order.
pub(crate) fn list(medium: &dyn Medium) -> Result<Vec<u64>, Error> {
    let names = medium.list().map_err(Error::io("list", medium.path()))?;
    let mut segments: Vec<u64> = names.iter().filter_map(|name| parse_file_name(name)).collect();
    segments.sort_unstable();
    Ok(segments)
}

/// Returns how many of `segments`, from the oldest on, contain only records up to
/// `covered`.
pub(crate) fn count_covered(segments: &[u64], covered: u64) -> usize {
    segments.iter().skip(1).take_while(|next| **next <= covered + 1).count()
}

/// Returns the first sequence of the segment with this file name.
fn parse_file_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(EXTENSION)?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_their_sequences() {
        assert_eq!(parse_file_name(&file_name(42)), Some(42));
        assert!(file_name(9) < file_name(10));
        assert_eq!(parse_file_name("42.wal"), None);
    }
}
