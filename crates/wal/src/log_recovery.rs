//! Opens a log: scans it, truncates an unfinished write, and makes the rest durable.

use files::Error;

use crate::covered::Covered;
use crate::head;
use crate::medium::Medium;
use crate::scan::{self, ScannedLog, ScannedSegment, UnfinishedWrite};
use crate::segment::{self, Segment};

/// The result of opening a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecoveredLog {
    /// Number of records that were read, including those that the snapshot covers.
    pub records: u64,
    /// Total size of their payloads in bytes.
    pub payload_bytes: u64,
    /// Where an unfinished write was truncated.
    pub unfinished_write: Option<UnfinishedWrite>,
    /// Whether a write or an fsync of the previous process failed. Then unsynced records
    /// may be missing although the machine has kept running.
    pub failed_before: bool,
}

/// The end of a recovered log, where appending continues.
pub(crate) struct LogEnd {
    /// Sequence number of the next record.
    pub(crate) next: u64,
    /// The segment to which the next record is appended; `None` if one must be created.
    pub(crate) tail: Option<Segment>,
    /// Sequence number of the first record in the segment that the file `HEAD` names; 0 if `HEAD`
    /// names no segment.
    pub(crate) head: u64,
}

/// Passes the payload of each record after the record `covered` to `visit`, in order.
/// `covered` is the last record that the snapshot covers. Truncates the log before an
/// unfinished write. If `visit` fails for a record, returns [`Error::Corrupt`] for it.
pub(crate) fn recover(
    medium: &dyn Medium,
    covered: Covered,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<(RecoveredLog, LogEnd), Error> {
    let (required, covered) = (covered, covered.record);
    let ScannedLog {
        records,
        payload_bytes,
        unfinished_write,
        mut segments,
        next,
        head,
        segments_after_end,
    } = scan::scan(medium, covered, visit)?;
    required.require(medium, next)?;
    for ScannedSegment { segment, path, .. } in &segments {
        // The previous process may have left records in the page cache only.
        segment.file.sync().map_err(Error::io("fsync", path))?;
    }
    let tail = segments.pop();
    if let (Some(write), Some(ScannedSegment { segment, path, .. })) = (&unfinished_write, &tail)
        && write.file == *path
    {
        segment.file.zero_from(segment.position).map_err(Error::io("truncate", path))?;
        segment.file.sync().map_err(Error::io("fsync", path))?;
    }
    let recovered = RecoveredLog { records, payload_bytes, unfinished_write, failed_before: false };
    let tail_first = tail.as_ref().map_or(0, |scanned| scanned.segment.first);
    let head =
        if segments_after_end.contains(&head) { set_head(medium, tail_first)? } else { head };
    remove_segments(medium, &segments_after_end)?;
    if next <= covered {
        // The log ends before the last covered record, because the machine lost the end
        // of the log. The snapshot contains the changes of all remaining records. Remove
        // them: appending after them would leave a gap.
        let head = set_head(medium, 0)?;
        remove_segments(medium, &segment::list(medium)?)?;
        return Ok((recovered, LogEnd { next: covered + 1, tail: None, head }));
    }
    Ok((recovered, LogEnd { next, tail: tail.map(|scanned| scanned.segment), head }))
}

/// Makes `HEAD` name the segment whose first record has the sequence number `first`; 0
/// means no segment. Call this before you remove the segment that `HEAD` currently names.
fn set_head(medium: &dyn Medium, first: u64) -> Result<u64, Error> {
    head::write(medium, first).map_err(Error::io("write HEAD in", medium.path()))?;
    Ok(first)
}

fn remove_segments(medium: &dyn Medium, segments: &[u64]) -> Result<(), Error> {
    // Remove the newest segment first, so that a crash in between leaves no gap.
    for &first in segments.iter().rev() {
        let name = segment::file_name(first);
        medium.remove(&name).map_err(Error::io("remove", medium.path().join(name)))?;
    }
    Ok(())
}
