//! Reads the log after damage that the snapshot covers, for `mem_etcd repair`.
//!
//! A segment may begin with records that the snapshot covers. A start refuses damage to them,
//! but nothing of them is needed: the record after the last covered one continues the
//! snapshot, and its number identifies it.

use files::framing::{self, HEADER_BYTES, Header};
use files::record_search::RecordSearch;
use files::{Error, PayloadError};

use crate::content::Content;
use crate::medium::Medium;
use crate::scan::{self, ScannedLog};
use crate::segment;

/// The records that [`read_records`] has visited.
pub struct LogRecords {
    /// Sequence of the next record.
    pub next: u64,
    /// Damage to records that the snapshot covers.
    pub covered_damage: Option<Error>,
}

/// Passes the payload of each record after `covered` to `visit`, in order, for a repair.
/// Unlike [`crate::check`], it does not require what `HEAD` states, so it also reads a log
/// whose `HEAD` is damaged, or whose end is missing. It also reads a log of which only records
/// up to `covered` are damaged.
pub fn read_records(
    medium: &dyn Medium,
    covered: u64,
    mut visit: impl FnMut(&[u8]) -> Result<(), PayloadError>,
) -> Result<LogRecords, Error> {
    let mut visited = false;
    let scanned = scan::scan_without_head(medium, covered, &mut |payload| {
        visited = true;
        visit(payload)
    });
    let (next, damage) = match scanned {
        Ok(log) => (log.next, log.covered_damage(covered)),
        Err(error @ Error::Corrupt { .. }) if !visited => (0, Some(error)),
        Err(error) => return Err(error),
    };
    let Some(damage) = damage else { return Ok(LogRecords { next, covered_damage: None }) };
    match (scan_from(medium, covered + 1, &mut visit)?, damage) {
        (Some(log), damage) => Ok(LogRecords { next: log.next, covered_damage: Some(damage) }),
        (None, damage) if next == 0 => Err(damage),
        (None, _) => Ok(LogRecords { next, covered_damage: None }),
    }
}

impl ScannedLog {
    /// Returns the damage if the log ends with an unfinished write before the record `covered`.
    fn covered_damage(self, covered: u64) -> Option<Error> {
        let write = self.unfinished_write.filter(|_| self.next <= covered)?;
        let reason = format!("record {} is damaged or missing", self.next);
        Some(Error::Corrupt { file: write.file, offset: write.offset, reason })
    }
}

/// Reads the log from the record `from` on. Returns `None` if this record is not intact.
fn scan_from(
    medium: &dyn Medium,
    from: u64,
    visit: scan::Visit<'_>,
) -> Result<Option<ScannedLog>, Error> {
    let mut segments = segment::list(medium)?;
    segments.drain(..segment::count_covered(&segments, from - 1));
    let Some(&first) = segments.first() else { return Ok(None) };
    let name = segment::file_name(first);
    let path = medium.path().join(&name);
    let file = medium.open(&name).map_err(Error::io("open", &path))?;
    let readable = Content::read(&*file).map_err(Error::io("read", &path))?;
    let content = &readable.bytes;
    let (number, salt) = match framing::decode_header(segment::MAGIC, content) {
        Header::Valid { number, salt, .. } => (number, salt),
        Header::Newer { format } => return Err(Error::newer_format(&path, format)),
        // Without the salt of a segment its records cannot be verified.
        Header::Damaged => return Ok(None),
    };
    let is_it =
        |offset, sequence, _| sequence == from && scan::may_contain(number, offset, sequence);
    let found = RecordSearch::new(content, salt).find(HEADER_BYTES, is_it);
    let Some((start, _)) = found else { return Ok(None) };
    let mut log = ScannedLog { next: from, ..ScannedLog::default() };
    let end = scan::read_records((content, start), salt, &path, from - 1, &mut log, visit)?;
    readable.require_readable(&path, end)?;
    scan::judge_end(medium, &segments, (content, end), &path, &mut log)?;
    scan::scan_rest(medium, &segments[1..], from - 1, &mut log, visit)?;
    Ok(Some(log))
}
